import os
import select
import time

for _ in range(6):
    if os.fork() == 0:
        reader, _ = os.pipe()
        ends = [os.dup(reader) for _ in range(480)]
        polls = [select.epoll() for _ in range(480)]
        for poll in polls:
            for end in ends:
                poll.register(end)
        time.sleep(0.6)
        os._exit(0)
for _ in range(6):
    os.wait()
print("ESCAPED: 1.4 million waits of 200 bytes", flush=True)
