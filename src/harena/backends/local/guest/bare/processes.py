"""Ends processes that no pid namespace holds together."""

from __future__ import annotations

import _signal
import os
import signal
import time

from ..kernel import WALL, take
from ..watch import listed


def set_mask(signals):
    _signal.pthread_sigmask(_signal.SIG_SETMASK, signals)  # without the enums that `signal` makes of numbers


EVERY_SIGNAL = tuple(int(number) for number in signal.valid_signals())


def children_of(pid):
    found = []
    for thread in listed(f"/proc/{pid}/task") or ():
        found += take(f"/proc/{pid}/task/{thread}/children", 1 << 20).split()
    return [int(one) for one in found]


def below(pid):
    """All descendants, each once."""
    found, level = {}, [pid]
    while level:
        level = [child for one in level for child in children_of(one) if child not in found]
        found.update(dict.fromkeys(level))
    return list(found)


def end_one_by_one(top):
    """Ends what is below a process, where no kill(-1) may be used: stops all first, so that nobody starts more."""
    stopped = set()
    while True:
        new = [pid for pid in below(top) if pid not in stopped]
        if not new:
            break
        for pid in new:
            send(pid, signal.SIGSTOP)
        stopped.update(new)
    for pid in stopped:
        send(pid, signal.SIGKILL)


def send(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass


def end_all(scoped):
    """Ends all processes below this one and waits for them."""
    while True:
        os.kill(-1, signal.SIGKILL) if scoped else end_one_by_one(os.getpid())
        try:
            while os.waitpid(-1, WALL | (0 if scoped else os.WNOHANG))[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)
