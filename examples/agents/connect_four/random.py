"""Drops into any column that has room."""

from __future__ import annotations

import random


def act(observation):
    return random.choice([column for column in range(7) if observation[column] == 0])
