import os

for _ in range(3):
    os.fork()
print("a copy", os.getpid())
