import os
import signal

from attacker import finish

try:
    os.kill(-1, signal.SIGSTOP)
except OSError:
    pass
finish()
