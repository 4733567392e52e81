import os

from attacker import ABSENT, attempt, escaped, finish, touch

for fd in range(3):
    if os.path.exists(f"/proc/self/fd/{fd}") and os.isatty(fd):
        escaped(f"descriptor {fd} is the terminal {os.readlink(f'/proc/self/fd/{fd}')}")
for path in ("/dev/tty", "/dev/console", "/dev/tty0", "/dev/ttyS0"):
    attempt(path, touch, path, os.O_RDWR | os.O_NONBLOCK, also=ABSENT)
try:
    names = set(os.listdir("/dev/pts")) - {"ptmx"}
except OSError:
    names = set()
if names:
    escaped(f"terminals {names}")
finish()
