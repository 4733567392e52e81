import errno
import os

from attacker import TARGET, attempt, escaped, finish, pids

for pid in pids():
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if TARGET["victim_name"].encode() in file.read():
                escaped(f"sees the victim as pid {pid}")
    except (PermissionError, FileNotFoundError, ProcessLookupError):  # hidden, or of another machine, or ended
        pass
if os.path.exists(f"/proc/{TARGET['victim_pid']}"):
    escaped("the victim's pid number exists here")
attempt("signal 0 to the victim", os.kill, TARGET["victim_pid"], 0, also=(errno.ESRCH,))
attempt("signal 0 to the host process", os.kill, TARGET["host_pid"], 0, also=(errno.ESRCH,))
finish()
