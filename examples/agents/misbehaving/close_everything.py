"""Closes all of its descriptors."""

from __future__ import annotations

import os


def act(observation):
    os.closerange(0, 4096)
    return 3
