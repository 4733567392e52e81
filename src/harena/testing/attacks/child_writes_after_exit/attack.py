import os
import time

from attacker import daemonise, finish

main = os.getpid()
if daemonise():
    for _ in range(100):
        time.sleep(0.05)
        try:
            os.kill(main, 0)
            continue  # it has not ended yet
        except OSError:
            pass
        try:
            os.write(1, b"ESCAPED: late output\n")
        except OSError:
            pass
    os._exit(0)
finish()
