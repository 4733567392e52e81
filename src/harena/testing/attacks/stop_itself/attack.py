import os
import signal

from attacker import finish

os.kill(os.getpid(), signal.SIGSTOP)
finish()  # init of a pid namespace cannot be stopped from inside
