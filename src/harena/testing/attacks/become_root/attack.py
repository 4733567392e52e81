import errno
import os

from attacker import attempt, escaped, finish, syscall

ids = os.getresuid(), os.getresgid(), os.getgroups()
for number in (0, 1, 65534, 1001):
    attempt(f"setuid {number}", os.setuid, number, also=(errno.EINVAL,))
    attempt(f"setresuid {number}", os.setresuid, number, number, number, also=(errno.EINVAL,))
    attempt(f"setreuid {number}", os.setreuid, number, number, also=(errno.EINVAL,))
    attempt(f"setgid {number}", os.setgid, number, also=(errno.EINVAL,))
    attempt(f"setresgid {number}", os.setresgid, number, number, number, also=(errno.EINVAL,))
    attempt(f"setgroups {number}", os.setgroups, [number], also=(errno.EINVAL,))
try:
    syscall("setfsuid", 0)
    if syscall("setfsuid", 0) == 0:
        escaped("setfsuid 0")
except OSError:
    pass
if ids != (os.getresuid(), os.getresgid(), os.getgroups()) or 0 in ids[0] + ids[1]:
    escaped(f"ids {ids} became {os.getresuid()} {os.getresgid()} {os.getgroups()}")
finish()
