"""Answers correctly, but three seconds late."""

from __future__ import annotations

import time


def act(observation):
    time.sleep(3)
    return 3
