import os

from attacker import ABSENT, READ_ONLY, attempt, finish, rewrite

for folder, _, files in os.walk("/proc/sys"):
    for name in files:
        path = f"{folder}/{name}"
        attempt(path, rewrite, path, also=ABSENT + READ_ONLY)
finish()
