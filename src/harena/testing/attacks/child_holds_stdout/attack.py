import os
import time

from attacker import daemonise, finish

if daemonise():
    time.sleep(20)
    os._exit(0)
finish()
