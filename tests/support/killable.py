"""An arena in a process of its own, which a test may kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

SOON_S = 60.0

ARENA = """
import json, sys
from harena.arena.arena import Arena
from harena.arena.settings import Settings
with Arena(Settings.from_env(sys.argv[1], json.loads(sys.argv[2]))) as arena:
    print(json.dumps([worker.process.pid for worker in arena.runner._workers]), flush=True)
    sys.stdin.read()
"""


class Server:
    def __init__(self, folder, environ=None):
        self.process = subprocess.Popen(
            [sys.executable, "-c", ARENA, folder, json.dumps(environ or {})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.players = json.loads(self.process.stdout.readline())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        until(lambda: not any(map(alive, self.players)))

    def stop(self):
        self.process.communicate()  # the end of its input
        assert self.process.returncode == 0


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(what, soon_s=SOON_S):
    end = time.monotonic() + soon_s
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
