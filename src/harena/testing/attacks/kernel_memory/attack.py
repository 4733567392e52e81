import os

from attacker import ABSENT, attempt, escaped, finish, touch

for path in ("/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port", "/proc/vmcore", "/proc/kpageflags"):
    attempt(path, touch, path, os.O_RDONLY, also=ABSENT)
try:
    with open("/proc/kallsyms") as file:
        if any(int(line.split()[0], 16) for line, _ in zip(file, range(200))):
            escaped("kernel addresses are readable")
except OSError:
    pass
finish()
