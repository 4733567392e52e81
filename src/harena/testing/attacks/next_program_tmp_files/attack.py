import os

from attacker import TARGET, finish

for folder in ("/tmp", "/workspace", "/dev/shm", "/var/tmp", "/run", "/"):
    try:
        open(f"{folder}/{TARGET['mark']}", "w").close()
        os.mkdir(f"{folder}/dir-{TARGET['mark']}")
    except OSError:
        pass
finish()
