import os

from attacker import ABSENT, READ_ONLY, attempt, finish, pids, touch

for pid in pids():
    attempt(f"/proc/{pid}/exe", touch, f"/proc/{pid}/exe", os.O_WRONLY, also=ABSENT + READ_ONLY)
    try:
        fd = os.open(f"/proc/{pid}/exe", os.O_PATH)
    except OSError:
        continue
    attempt(f"reopened exe of {pid}", touch, f"/proc/self/fd/{fd}", os.O_RDWR, also=READ_ONLY)
    attempt(f"truncated exe of {pid}", os.truncate, f"/proc/self/fd/{fd}", 0, also=READ_ONLY)
    os.close(fd)
finish()
