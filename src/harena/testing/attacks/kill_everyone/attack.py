import os
import signal
import time

from attacker import finish

try:
    os.kill(-1, signal.SIGKILL)
except OSError:
    pass
time.sleep(0.1)
finish()
