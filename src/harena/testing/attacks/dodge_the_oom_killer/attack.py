import os

from attacker import ABSENT, READ_ONLY, attempt, finish, others


def write(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


attempt("own score", write, "/proc/self/oom_score_adj", b"-1000", also=READ_ONLY)
for pid in others():
    attempt(f"score of {pid}", write, f"/proc/{pid}/oom_score_adj", b"1000", also=ABSENT + READ_ONLY)
finish()
