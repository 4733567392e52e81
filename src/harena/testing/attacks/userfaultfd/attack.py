import os

from attacker import ABSENT, attempt, finish, syscall, touch

for flags in (0, 1, 0o2000000, 0o2000001):
    attempt(f"userfaultfd {flags:#o}", syscall, "userfaultfd", flags)
attempt("/dev/userfaultfd", touch, "/dev/userfaultfd", os.O_RDWR, also=ABSENT)
finish()
