import os

for _ in range(6):
    if os.fork() == 0:
        break
while True:
    os.write(1, b"flood " * 1000)
