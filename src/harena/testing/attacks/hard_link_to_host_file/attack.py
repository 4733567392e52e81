import errno
import os

from attacker import ABSENT, READ_ONLY, TARGET, attempt, finish

OUTSIDE = (*ABSENT, *READ_ONLY, errno.EXDEV)
for path in (TARGET["secret"], "/usr/bin/env", os.__file__, "/etc/passwd"):
    attempt(f"link {path}", os.link, path, "/workspace/linked", also=OUTSIDE)
    attempt(f"by proc {path}", os.link, f"/proc/self/root{path}", "/tmp/linked", also=OUTSIDE)
finish()
