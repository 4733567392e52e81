"""Any column that has room."""

import random


def act(observation):
    return random.choice([column for column in range(7) if observation[column] == 0])
