import errno
import os

from attacker import attempt, finish

open("plain", "w").close()
CAPS = bytes.fromhex("0100000200200000000000000000000000000000")
NAMES = ("security.capability", "trusted.overlay.opaque", "trusted.x")
for name in NAMES:
    attempt(name, os.setxattr, "plain", name, CAPS, also=(errno.EOPNOTSUPP, errno.EINVAL))
os.unlink("plain")
finish()
