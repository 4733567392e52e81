import os
import time

from attacker import daemonise, finish, syscall

PR_SET_PDEATHSIG = 1
if daemonise():
    try:
        syscall("prctl", PR_SET_PDEATHSIG, 0, 0, 0, 0)
    except OSError:
        pass
    time.sleep(20)
    os._exit(0)
time.sleep(0.1)
finish()
