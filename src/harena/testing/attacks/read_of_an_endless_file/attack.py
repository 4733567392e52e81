import os

from attacker import finish

os.symlink("/dev/zero", "zero")
finish()
