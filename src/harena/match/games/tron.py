"""Light cycles: everyone moves at once and leaves a wall behind; who hits a wall or the edge is out.

Directions are 0 up, 1 right, 2 down, 3 left, and every move is allowed: turning back into one's own wall is a crash,
not an illegal action. Two heads on one cell crash both. A seat's score is the number of rivals that crashed before it.
A seat that forfeits is out where it stands, with a score of -1, and the others ride on.
The start squares are turned copies of each other, on the middle of one side each, shifted alike by the seed; the seed
also deals them to the seats.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harena.match.game import BaseGame, Outcome
from harena.match.games import settings
from harena.match.spaces import Box, Dict, Discrete

NAMES = ("up", "right", "down", "left")
_STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))


class Tron(BaseGame):
    """Light cycles for two to four; the last one riding wins; config seats (4), size (16)."""

    id: ClassVar[str] = "tron-v1"
    simultaneous = True

    def __init__(self, *, seats: int = 4, size: int = 16) -> None:
        self.seats = settings.whole("seats", seats, 2, 4)
        self._size = settings.whole("size", size, 6, 64)
        self.max_steps = size * size
        self._observation = Dict(
            {
                "grid": Box((size, size), "int8", 0, seats),
                "heads": Box((seats, 2), "int8", 0, size - 1),
                "alive": Box((seats,), "int8", 0, 1),
            }
        )
        self._action = Discrete(4)
        self.reset(0)

    def observation_space(self, seat: int) -> Dict:
        """`grid[y][x]` is 0 where it is empty, 1 for one's own wall, 2 for the next seat's, and so on round the table;
        `heads` (x, y) and `alive` are in that order too."""
        return self._observation

    def action_space(self, seat: int) -> Discrete:
        return self._action

    def reset(self, seed: int) -> None:
        rng = random.Random(seed)
        size = self._size
        shift = size // 3 + int(rng.random() * (size - 2 * (size // 3)))
        corners = ((shift, 1), (size - 2, shift), (size - 1 - shift, size - 2), (1, size - 1 - shift))
        places = _dealt(rng, corners, self.seats)
        self._heads = list(places)
        self._alive = [True] * self.seats
        self._scores = [0.0] * self.seats
        self._steps = 0
        self._grids = [bytearray(size * size) for _ in range(self.seats)]
        self._moving = tuple(range(self.seats))
        for seat in self._moving:
            self._build(seat)

    def _build(self, seat: int) -> None:
        x, y = self._heads[seat]
        for viewer, grid in enumerate(self._grids):
            grid[y * self._size + x] = (seat - viewer) % self.seats + 1

    def to_move(self) -> Sequence[int]:
        return self._moving

    def observe(self, seat: int) -> dict[str, bytes]:
        order = [(seat + k) % self.seats for k in range(self.seats)]
        return {
            "grid": bytes(self._grids[seat]),
            "heads": bytes(part for other in order for part in self._heads[other]),
            "alive": bytes(self._alive[other] for other in order),
        }

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        targets: dict[int, tuple[int, int]] = {}
        for seat in self._moving:
            x, y = self._heads[seat]
            direction: int = actions[seat]
            right, down = _STEPS[direction]
            targets[seat] = (x + right, y + down)
        aims = list(targets.values())
        crashed = [seat for seat, aim in targets.items() if aims.count(aim) > 1 or self._blocked(aim)]
        for seat, aim in targets.items():
            if seat not in crashed:
                self._heads[seat] = aim
                self._build(seat)
        self._steps += 1
        return self._take_out(crashed)

    def _blocked(self, aim: tuple[int, int]) -> bool:
        x, y = aim
        return not (0 <= x < self._size and 0 <= y < self._size) or self._grids[0][y * self._size + x] != 0

    def withdraw(self, seats: Sequence[int]) -> bool:
        """They crash where they stand, with the score of a forfeit; somebody must be left to ride on."""
        if all(seat in seats for seat in self._moving):
            return False
        self._take_out([seat for seat in seats if self._alive[seat]])
        for seat in seats:
            self._scores[seat] = -1.0
        return True

    def _take_out(self, crashed: list[int]) -> Mapping[int, float]:
        if not crashed:
            return {}
        for seat in crashed:
            self._alive[seat] = False
        riding = tuple(seat for seat in self._moving if self._alive[seat])
        for seat in riding:
            self._scores[seat] += len(crashed)
        self._moving = riding if len(riding) > 1 else ()
        return {seat: float(len(crashed)) for seat in riding}

    def outcome(self) -> Outcome:
        riding = [seat for seat in range(self.seats) if self._alive[seat]]
        winner = riding[0] if len(riding) == 1 else None
        return Outcome(tuple(self._scores), winner, "all crashed" if winner is None else "last one riding")

    def view(self) -> dict[str, Any]:
        """`grid[y][x]`: 0 empty, else the seat whose wall it is, plus one."""
        size, grid = self._size, self._grids[0]
        return {
            "size": size,
            "grid": [list(grid[row * size : (row + 1) * size]) for row in range(size)],
            "heads": [list(head) for head in self._heads],
            "alive": list(self._alive),
            "scores": list(self._scores),
            "step": self._steps,
        }

    def text(self) -> str:
        marks = [[".abcd"[cell] for cell in row] for row in self.view()["grid"]]
        for seat, (x, y) in enumerate(self._heads):
            marks[y][x] = "ABCD"[seat] if self._alive[seat] else "*"
        riding = "  ".join(f"{'ABCD'[seat]} {score:g}" for seat, score in enumerate(self._scores))
        return "\n".join([*(" ".join(row) for row in marks), riding])


def _dealt(rng: random.Random, places: Sequence[tuple[int, int]], seats: int) -> list[tuple[int, int]]:
    """Opposite sides for two, else any. By random() alone, the one method that Python promises to keep the same."""
    left = list(places)
    first = left.pop(int(rng.random() * 4))
    if seats == 2:
        return [first, places[(places.index(first) + 2) % 4]]
    return [first, *(left.pop(int(rng.random() * len(left))) for _ in range(seats - 1))]
