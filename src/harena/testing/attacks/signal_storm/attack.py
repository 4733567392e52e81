import signal
import time

from attacker import finish

signal.signal(signal.SIGALRM, lambda number, frame: None)
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
end = time.monotonic() + 0.3
while time.monotonic() < end:
    pass
signal.setitimer(signal.ITIMER_REAL, 0)
finish()
