"""Pushes to the side that the pole leans to."""


def act(observation):
    return int(observation[2] > 0)
