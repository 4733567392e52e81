"""Keeps its paddle level with the ball."""

from __future__ import annotations

UP, STAY, DOWN = 0, 1, 2


class Agent:
    def __init__(self, player_id):
        self.mine = 4 + player_id  # where the observation has this player's paddle

    def act(self, observation):
        gap = observation[1] - observation[self.mine]
        if abs(gap) < 0.02:
            return STAY
        return DOWN if gap > 0 else UP
