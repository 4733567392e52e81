import os

from attacker import HOME, TARGET, TMP, escaped, finish

for folder in (TMP, HOME, "/dev/shm", "/var/tmp", "/run", "/"):
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    if any(TARGET["mark"] in name for name in names):
        escaped(f"found what was left in {folder}")
finish()
