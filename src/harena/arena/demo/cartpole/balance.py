"""Pushes to where the pole falls, and gently back to the middle.

The observation is position, speed, angle, turning speed. The action is 0 left, 1 right.
"""


def act(observation):
    position, speed, angle, turning = observation
    return int(angle + 0.6 * turning + 0.02 * position + 0.06 * speed > 0)
