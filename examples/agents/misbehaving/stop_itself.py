"""Stops its own process, so that nothing answers."""

from __future__ import annotations

import os
import signal


def act(observation):
    os.kill(os.getpid(), signal.SIGSTOP)
    return 3
