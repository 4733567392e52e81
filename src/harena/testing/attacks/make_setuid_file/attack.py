import os
import stat

from attacker import attempt, escaped, finish, syscall

open("plain", "w").close()
fd = os.open("plain", os.O_RDONLY)
for mode in (0o4755, 0o2755, 0o6777):
    attempt(f"chmod {mode:o}", os.chmod, "plain", mode)
    attempt(f"fchmod {mode:o}", os.fchmod, fd, mode)
    attempt(f"fchmodat2 {mode:o}", syscall, "fchmodat2", -100, b"plain", mode, 0)
    births = {
        "open": lambda mode=mode: os.close(os.open("born", os.O_CREAT | os.O_WRONLY, mode)),
        "mknod": lambda mode=mode: os.mknod("born", stat.S_IFREG | mode),
    }
    for name, make in births.items():
        try:
            make()
        except OSError:
            continue
        if os.stat("born").st_mode & 0o6000:
            escaped(f"{name} gave birth to mode {os.stat('born').st_mode:o}")
        os.unlink("born")
os.close(fd)
os.unlink("plain")
finish()
