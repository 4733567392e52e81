import os

from attacker import escaped, finish

for fd in range(3, 1024):
    try:
        escaped(f"descriptor {fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
    except FileNotFoundError:
        pass
finish()
