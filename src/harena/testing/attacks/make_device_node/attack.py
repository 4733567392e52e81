import os
import stat

from attacker import attempt, finish

DEVICES = ((stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 10, 232))
for folder in ("/workspace", "/tmp", "/dev/shm"):
    for kind, major, minor in DEVICES:
        attempt(f"{folder} {major}:{minor}", os.mknod, f"{folder}/node", kind | 0o666, os.makedev(major, minor))
finish()
