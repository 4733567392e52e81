import errno
import os
import signal

from attacker import TARGET, attempt, finish

for pid in (TARGET["victim_pid"], TARGET["host_pid"]):
    attempt(f"kill {pid}", os.kill, pid, signal.SIGKILL, also=(errno.ESRCH,))
    attempt(f"kill group {pid}", os.kill, -pid, signal.SIGKILL, also=(errno.ESRCH,))
finish()
