import os

from attacker import ABSENT, READ_ONLY, TMP, attempt, finish, syscall, touch

folder = f"{TMP}/cg"
os.makedirs(folder, exist_ok=True)
for kind, options in ((b"cgroup", b"memory"), (b"cgroup", b"rdma"), (b"cgroup", b"none,name=x"), (b"cgroup2", b"")):
    attempt(f"mount {kind} {options}", syscall, "mount", b"none", folder.encode(), kind, 0, options)
for path in ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/release_agent", f"{folder}/release_agent"):
    attempt(path, touch, path, os.O_WRONLY, also=ABSENT + READ_ONLY)
os.rmdir(folder)
finish()
