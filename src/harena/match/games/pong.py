"""Pong. The field is one by one, x to the right, y downwards as on a screen; both seats see the same eight numbers.

Physics, per step: paddles move first (seat 0 at x = 0.05, seat 1 at x = 0.95), then the ball. A hit turns the ball back
3 % faster, up to a cap; where on the paddle it hits decides its slope, which can be steeper than a paddle is fast: who
only follows the ball loses to who aims. Serves come from the middle, to either side in turn; the seed chooses the side
of the first and the slope and height of each. Only + - * / on floats: the same on every machine.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harena.match.game import BaseGame, Outcome
from harena.match.spaces import Box, Discrete

UP, STAY, DOWN = 0, 1, 2
POINTS, STEPS = 11, 1000
LEFT_X, RIGHT_X = 0.05, 0.95
PADDLE_HEIGHT, PADDLE_SPEED = 0.2, 0.03
_HALF = PADDLE_HEIGHT / 2
_TOP, _BOTTOM = _HALF, 1.0 - _HALF
SERVE_SPEED, TOP_SPEED, SPEED_UP = 0.025, 0.04, 1.03
STEEPEST = 0.045
_MOVES = (-PADDLE_SPEED, 0.0, PADDLE_SPEED)
_BOTH = (0, 1)
_NO_REWARDS: Mapping[int, float] = {}
_POINT: tuple[Mapping[int, float], ...] = ({0: 1.0, 1: -1.0}, {0: -1.0, 1: 1.0})
_pack = struct.Struct("<8f").pack


class Pong(BaseGame):
    """Two paddles, one ball, both seats at once; first to 11 points, at most 1000 steps."""

    id: ClassVar[str] = "pong-v1"
    simultaneous = True
    max_steps = STEPS
    _observation = Box((8,), "float32", -1, POINTS)
    _action = Discrete(3)

    def __init__(self) -> None:
        self.reset(0)

    def observation_space(self, seat: int) -> Box:
        return self._observation

    def action_space(self, seat: int) -> Discrete:
        return self._action

    def reset(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._to_right = self._rng.random() < 0.5
        self._paddles = (0.5, 0.5)
        self._scores = [0, 0]
        self._steps = 0
        self._over = False
        self._serve()
        self._see()

    def _serve(self) -> None:
        rng = self._rng.random
        speed = SERVE_SPEED if self._to_right else -SERVE_SPEED
        self._ball = (0.5, 0.3 + 0.4 * rng(), speed, 0.04 * rng() - 0.02)
        self._to_right = not self._to_right

    def _see(self) -> None:
        self._seen = _pack(*self._ball, *self._paddles, *self._scores)

    def to_move(self) -> Sequence[int]:
        return () if self._over else _BOTH

    def observe(self, seat: int) -> bytes:
        return self._seen

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        left, right = self._paddles
        one: int = actions[0]
        two: int = actions[1]
        left += _MOVES[one]
        right += _MOVES[two]
        left = _TOP if left < _TOP else _BOTTOM if left > _BOTTOM else left
        right = _TOP if right < _TOP else _BOTTOM if right > _BOTTOM else right
        self._paddles = (left, right)

        was_x, y, vx, vy = self._ball
        x = was_x + vx
        y += vy
        if y < 0.0:
            y, vy = -y, -vy
        elif y > 1.0:
            y, vy = 2.0 - y, -vy
        if x <= LEFT_X < was_x and -_HALF <= y - left <= _HALF:
            x, vx, vy = 2 * LEFT_X - x, _faster(-vx), (y - left) / _HALF * STEEPEST
        elif x >= RIGHT_X > was_x and -_HALF <= y - right <= _HALF:
            x, vx, vy = 2 * RIGHT_X - x, -_faster(vx), (y - right) / _HALF * STEEPEST
        self._ball = (x, y, vx, vy)

        rewards = _NO_REWARDS
        if x <= 0.0 or x >= 1.0:
            scorer = 1 if x <= 0.0 else 0
            self._scores[scorer] += 1
            rewards = _POINT[scorer]
            self._over = self._scores[scorer] == POINTS
            self._serve()
        self._steps += 1
        if self._steps == STEPS:
            self._over = True
        self._seen = _pack(*self._ball, left, right, *self._scores)
        return rewards

    def outcome(self) -> Outcome:
        one, two = self._scores
        winner = None if one == two else int(two > one)
        reason = f"{POINTS} points" if POINTS in self._scores else f"{STEPS} steps"
        return Outcome((float(one), float(two)), winner, reason)

    def view(self) -> dict[str, Any]:
        x, y, vx, vy = self._ball
        return {
            "ball": {"x": x, "y": y, "vx": vx, "vy": vy},
            "paddles": [{"x": LEFT_X, "y": self._paddles[0]}, {"x": RIGHT_X, "y": self._paddles[1]}],
            "paddle_height": PADDLE_HEIGHT,
            "scores": list(self._scores),
            "step": self._steps,
        }

    def text(self) -> str:
        width, height = 60, 20
        rows = [[" "] * width for _ in range(height)]
        for row in range(height):
            middle = (row + 0.5) / height
            rows[row][width // 2] = ":" if row % 2 else " "
            for x, y in zip((LEFT_X, RIGHT_X), self._paddles, strict=True):
                if abs(middle - y) <= _HALF:
                    rows[row][int(x * width)] = "#"
        x, y = self._ball[:2]
        rows[min(height - 1, int(y * height))][min(width - 1, int(x * width))] = "O"
        edge = "+" + "-" * width + "+"
        score = f"{self._scores[0]} : {self._scores[1]}".center(width + 2).rstrip()
        return "\n".join([score, edge, *("|" + "".join(row) + "|" for row in rows), edge])


def _faster(speed: float) -> float:
    return min(speed * SPEED_UP, TOP_SPEED)
