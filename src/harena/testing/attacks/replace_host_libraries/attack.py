import json
import os
import sys

from attacker import ABSENT, READ_ONLY, attempt, finish, touch

binaries = sys.executable, os.path.realpath(sys.executable), "/bin/sh"
for path in (*binaries, os.__file__, json.__file__, "/etc/passwd", "/etc/ld.so.cache"):
    attempt(f"append to {path}", touch, path, os.O_WRONLY | os.O_APPEND, also=ABSENT + READ_ONLY)
    attempt(f"rename {path}", os.rename, path, path + ".old", also=ABSENT + READ_ONLY)
    attempt(f"remove {path}", os.unlink, path, also=ABSENT + READ_ONLY)
for folder in {os.path.dirname(os.__file__), os.path.dirname(sys.executable), "/usr/lib", "/etc", "/"}:
    attempt(f"create in {folder}", touch, f"{folder}/planted.py", os.O_WRONLY | os.O_CREAT, also=ABSENT + READ_ONLY)
finish()
