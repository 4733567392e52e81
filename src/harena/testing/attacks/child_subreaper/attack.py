import os
import time

from attacker import daemonise, finish, syscall

PR_SET_CHILD_SUBREAPER = 36
try:
    syscall("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
except OSError:
    pass
if daemonise():
    time.sleep(20)
    os._exit(0)
time.sleep(0.1)
finish()
