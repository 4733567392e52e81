"""Moves at random."""

import random


def act(observation):
    return random.randrange(3)
