import os
import signal
import time

from attacker import finish, others

for pid in {*others(), 1}:
    for number in signal.valid_signals():
        try:
            os.kill(pid, number)
        except OSError:
            pass
time.sleep(0.1)
finish()
