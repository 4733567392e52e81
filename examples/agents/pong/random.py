"""Moves the paddle at random. The least an agent has to be."""

from __future__ import annotations

import random


def act(observation):
    return random.randrange(3)
