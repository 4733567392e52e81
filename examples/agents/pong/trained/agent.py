"""A very small network that decides where on the paddle to take the ball: off the middle it flies back too steep to
follow.

The weights come from train.py and lie beside this file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

UP, STAY, DOWN = 0, 1, 2
NEAR_X, FAR_X = 0.05, 0.95
HALF_PADDLE = 0.1
FEATURES, OUTPUTS = 6, 2
SIZE = FEATURES * OUTPUTS


class Agent:
    def __init__(self, player_id):
        self.player_id = player_id
        with np.load(Path(__file__).with_name("weights.npz"), allow_pickle=False) as file:
            self.weights = file["weights"]

    def act(self, observation):
        return self.act_batch([observation])[0]

    def act_batch(self, observations):
        seen = from_the_left(np.asarray(observations, float), self.player_id)
        return decide(self.weights[None], seen[None])[0].tolist()


def from_the_left(seen, player_id):
    """The field as the left player sees it: x mirrored for the right one, one's own paddle first."""
    if player_id == 0:
        return seen
    seen = seen[..., [0, 1, 2, 3, 5, 4, 7, 6]]
    seen[..., 0] = 1 - seen[..., 0]
    seen[..., 2] = -seen[..., 2]
    return seen


def decide(weights, seen):
    """Actions of several networks (first axis), each for several views (second axis)."""
    x, y, vx, vy, mine, theirs = (seen[..., k] for k in range(6))
    coming = vx < 0
    steps = np.where(coming, (x - NEAR_X) / np.maximum(-vx, 1e-6), (FAR_X - x) / np.maximum(vx, 1e-6))
    arrives = bounced(y + vy * steps)
    features = np.stack([arrives - 0.5, theirs - 0.5, mine - 0.5, 20 * vx, 20 * vy, np.ones_like(x)], -1)
    hit, wait = np.moveaxis(np.tanh(features @ weights.reshape(-1, FEATURES, OUTPUTS)), -1, 0)
    where = np.where(coming, arrives - HALF_PADDLE * hit, 0.5 + 0.4 * wait)
    gap = where - mine
    return np.where(np.abs(gap) < 0.015, STAY, np.where(gap > 0, DOWN, UP))


def bounced(y):
    """Where a ball ends up that the walls at 0 and 1 reflect."""
    y = np.mod(y, 2)
    return np.where(y > 1, 2 - y, y)
