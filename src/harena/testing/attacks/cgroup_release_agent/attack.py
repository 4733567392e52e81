import os

from attacker import ABSENT, READ_ONLY, attempt, finish, syscall, touch

os.makedirs("/tmp/cg", exist_ok=True)
for kind, options in ((b"cgroup", b"memory"), (b"cgroup", b"rdma"), (b"cgroup", b"none,name=x"), (b"cgroup2", b"")):
    attempt(f"mount {kind} {options}", syscall, "mount", b"none", b"/tmp/cg", kind, 0, options)
for path in ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/release_agent", "/tmp/cg/release_agent"):
    attempt(path, touch, path, os.O_WRONLY, also=ABSENT + READ_ONLY)
os.rmdir("/tmp/cg")
finish()
