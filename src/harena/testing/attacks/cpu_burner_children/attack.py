import os

while True:
    pid = os.fork()
    if pid == 0:
        sum(range(3_000_000))
        os._exit(0)
    os.waitpid(pid, 0)
