import os
import stat

from attacker import TARGET, escaped, finish

SAFE = {"/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"}
KINDS = ("pidfd", "bpf", "perf", "uring", "userfault", "fscontext", "mount", "landlock", "seccomp")
for name in os.listdir("/proc/self/fd"):
    try:
        link, mode = os.readlink(f"/proc/self/fd/{name}"), os.fstat(int(name)).st_mode
    except OSError:
        continue  # the folder being listed
    if stat.S_ISDIR(mode) and link != f"/proc/{os.getpid()}/fd":
        escaped(f"{name} is the folder {link}")
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and link not in SAFE and not link.startswith("/dev/pts")):
        escaped(f"{name} is the device {link}")
    if stat.S_ISREG(mode) and not link.startswith(("/workspace", "/tmp", "/memfd:", "/usr/lib", "/usr/share")):
        escaped(f"{name} is the file {link}")
    if any(kind in link for kind in KINDS) or ":[" in link.removeprefix("pipe:[").removeprefix("socket:["):
        escaped(f"{name} is {link}")
    if stat.S_ISDIR(mode) and os.path.exists(f"/proc/self/fd/{name}/{'../' * 20}{TARGET['secret']}"):
        escaped(f"{name} leads to the secret")
finish()
