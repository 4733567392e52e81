import errno
import os

from attacker import READ_ONLY, attempt, finish

for path in (os.__file__, "/usr/bin/env", "/usr"):
    attempt(f"utime {path}", os.utime, path, also=READ_ONLY)
    attempt(f"chmod {path}", os.chmod, path, 0o777, also=READ_ONLY)
    attempt(f"chown {path}", os.chown, path, os.getuid(), os.getgid(), also=READ_ONLY)
    attempt(f"chown {path} to root", os.chown, path, 0, 0, also=READ_ONLY + (errno.EINVAL,))
    attempt(f"setxattr {path}", os.setxattr, path, "user.x", b"1", also=READ_ONLY + (errno.EOPNOTSUPP,))
finish()
