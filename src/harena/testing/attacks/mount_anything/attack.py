import os

from attacker import TMP, attempt, finish, syscall

MS_BIND, MS_REC = 4096, 16384
folder = f"{TMP}/mnt"
os.makedirs(folder, exist_ok=True)
for kind in (b"tmpfs", b"proc", b"sysfs", b"devtmpfs", b"ramfs", b"mqueue", b"ext4", b"nfs", b"fuse"):
    attempt(f"mount {kind}", syscall, "mount", b"none", folder.encode(), kind, 0, b"")
options = f"lowerdir=/usr,upperdir={TMP},workdir={TMP}".encode()
attempt("mount overlay", syscall, "mount", b"overlay", folder.encode(), b"overlay", 0, options)
attempt("bind mount", syscall, "mount", b"/", folder.encode(), None, MS_BIND | MS_REC, None)
os.rmdir(folder)
finish()
