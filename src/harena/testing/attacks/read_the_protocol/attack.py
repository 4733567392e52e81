import os

for fd in range(64):
    try:
        os.set_blocking(fd, False)
        os.read(fd, 1 << 20)
    except OSError:
        pass
