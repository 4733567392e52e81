"""Left or right by the toss of a coin."""

import random


def act(observation):
    return random.randrange(2)
