import os
import time

from attacker import daemonise, finish

if daemonise():
    time.sleep(1000)
    os._exit(0)
finish()
