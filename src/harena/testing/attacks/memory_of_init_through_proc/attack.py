import os

from attacker import ABSENT, attempt, finish, others, touch

for pid in others():
    attempt(f"read memory of {pid}", touch, f"/proc/{pid}/mem", os.O_RDONLY, also=ABSENT)
    attempt(f"write memory of {pid}", touch, f"/proc/{pid}/mem", os.O_RDWR, also=ABSENT)
finish()
