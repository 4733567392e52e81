import os

null = os.open("/dev/null", os.O_RDWR)
for fd in range(64):
    if fd != null:
        os.dup2(null, fd)
