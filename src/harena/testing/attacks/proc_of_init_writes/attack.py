import errno
import os

from attacker import ABSENT, READ_ONLY, attempt, finish, others, rewrite

for pid in others():
    for folder in (f"/proc/{pid}", f"/proc/{pid}/task/{pid}"):
        try:
            names = os.listdir(folder)
        except OSError:
            names = ["comm", "mem", "oom_score_adj"]
        for name in names:
            path = f"{folder}/{name}"
            if os.path.isfile(path) and not os.path.islink(path):
                attempt(path, rewrite, path, also=(*ABSENT, *READ_ONLY, errno.EINVAL))
finish()
