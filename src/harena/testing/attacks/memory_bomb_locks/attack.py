import fcntl
import os
import struct
import time

from attacker import TMP

EACH = 4000
for number in range(6):
    if os.fork() == 0:
        for file in range(100):
            fd = os.open(f"{TMP}/locked-{number}-{file}", os.O_RDWR | os.O_CREAT)
            for at in range(2 * EACH, 0, -2):
                fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, at, 1, 0))
        time.sleep(0.6)
        os._exit(0)
if not all(os.wait()[1] == 0 for _ in range(6)):
    print("denied", flush=True)  # where no process may lock anything, the first lock fails
    raise SystemExit
print("ESCAPED: 2.4 million locks, 439 MiB", flush=True)
