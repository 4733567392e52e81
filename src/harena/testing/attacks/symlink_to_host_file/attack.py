import os

from attacker import TARGET, finish

os.symlink(TARGET["secret"], "link")
finish()
