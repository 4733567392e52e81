import time

from attacker import daemonise

if daemonise():
    while True:
        pass
time.sleep(60)
