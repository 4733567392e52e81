"""Balances the pole by hand: pushes to where the pole falls, and gently back to the middle."""

from __future__ import annotations

LEFT, RIGHT = 0, 1


def act(observation):
    position, speed, angle, turning = observation
    return RIGHT if angle + 0.6 * turning + 0.02 * position + 0.06 * speed > 0 else LEFT
