import os

from attacker import ABSENT, TARGET, attempt, finish, pids, read

for pid in pids():
    for door in ("root", "cwd", "task/1/root"):
        attempt(f"pid {pid} {door}", read, f"/proc/{pid}/{door}/{'../' * 20}{TARGET['secret']}", also=ABSENT)
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        continue
    for fd in descriptors:
        attempt(f"pid {pid} fd {fd}", read, f"/proc/{pid}/fd/{fd}/{'../' * 20}{TARGET['secret']}", also=ABSENT)
finish()
