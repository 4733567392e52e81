import os
import time

from attacker import daemonise, finish

if daemonise():
    for _ in range(100):
        time.sleep(0.05)
        try:
            os.write(1, b"ESCAPED: late output\n")
        except OSError:
            pass
    os._exit(0)
finish()
