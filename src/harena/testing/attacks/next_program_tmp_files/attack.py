import os

from attacker import HOME, TARGET, TMP, finish

for folder in (TMP, HOME, "/dev/shm", "/var/tmp", "/run", "/"):
    try:
        open(f"{folder}/{TARGET['mark']}", "w").close()
        os.mkdir(f"{folder}/dir-{TARGET['mark']}")
    except OSError:
        pass
finish()
