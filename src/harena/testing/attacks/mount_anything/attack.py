import os

from attacker import attempt, finish, syscall

MS_BIND, MS_REC = 4096, 16384
os.makedirs("/tmp/mnt", exist_ok=True)
for kind in (b"tmpfs", b"proc", b"sysfs", b"devtmpfs", b"ramfs", b"mqueue", b"ext4", b"nfs", b"fuse"):
    attempt(f"mount {kind}", syscall, "mount", b"none", b"/tmp/mnt", kind, 0, b"")
options = b"lowerdir=/usr,upperdir=/tmp,workdir=/tmp"
attempt("mount overlay", syscall, "mount", b"overlay", b"/tmp/mnt", b"overlay", 0, options)
attempt("bind mount", syscall, "mount", b"/", b"/tmp/mnt", None, MS_BIND | MS_REC, None)
os.rmdir("/tmp/mnt")
finish()
