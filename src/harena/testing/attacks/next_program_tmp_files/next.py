import os

from attacker import TARGET, escaped, finish

for folder in ("/tmp", "/workspace", "/dev/shm", "/var/tmp", "/run", "/"):
    if os.path.isdir(folder) and any(TARGET["mark"] in name for name in os.listdir(folder)):
        escaped(f"found what was left in {folder}")
finish()
