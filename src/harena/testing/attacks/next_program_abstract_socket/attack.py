import os
import socket
import time

from attacker import daemonise, finish

if daemonise():
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0harena-escape")
    server.listen()
    time.sleep(20)
    os._exit(0)
time.sleep(0.2)
finish()
