import errno
import os

from attacker import ABSENT, READ_ONLY, attempt, finish, touch

ALLOWED = ("/workspace", "/tmp", "/dev/shm", "/dev/pts", "/proc")
for folder, folders, _ in os.walk("/"):
    if folder.startswith(ALLOWED):
        folders.clear()
        continue
    if folder.count("/") > 3:
        folders.clear()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    attempt(folder, touch, f"{folder}/planted", flags, also=ABSENT + READ_ONLY + (errno.EEXIST,))
finish()
