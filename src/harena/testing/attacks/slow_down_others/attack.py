import errno
import os

from attacker import attempt, finish, others

for pid in others():
    attempt(f"affinity of {pid}", os.sched_setaffinity, pid, {0})
    attempt(f"nice of {pid}", os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt(f"idle class for {pid}", os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0), also=(errno.EINVAL,))
finish()
