"""Connect four on six rows of seven columns. Seat 0 moves first.

Each side is a bitboard of seven bits a column (the top one stays empty, so that lines do not wrap); what the seats see
is kept beside it as bytes, so that a move costs a few integer operations and one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harena.match.game import BaseGame, IllegalAction, Outcome
from harena.match.spaces import Box, Discrete

ROWS, COLUMNS = 6, 7
_CELLS = ROWS * COLUMNS
_MINE, _THEIRS = 1, 255  # int8 1 and -1
_NO_REWARDS: Mapping[int, float] = {}
_MOVES: tuple[tuple[int], tuple[int]] = ((0,), (1,))
_WINS: tuple[Mapping[int, float], ...] = ({0: 1.0, 1: -1.0}, {0: -1.0, 1: 1.0})
_DIRECTIONS = ((1, 0), (0, 1), (1, 1), (1, -1))


class ConnectFour(BaseGame):
    """Four in a row: drop a disc into one of seven columns."""

    id: ClassVar[str] = "connect_four-v1"
    max_steps = _CELLS
    _observation = Box((_CELLS,), "int8", -1, 1)
    _action = Discrete(COLUMNS)

    def __init__(self) -> None:
        self.reset(0)

    def observation_space(self, seat: int) -> Box:
        return self._observation

    def action_space(self, seat: int) -> Discrete:
        return self._action

    def reset(self, seed: int) -> None:
        self._boards = (bytearray(_CELLS), bytearray(_CELLS))
        self._bits = [0, 0]
        self._heights = [0] * COLUMNS
        self._steps = 0
        self._seat = 0
        self._last: int | None = None
        self._winner: int | None = None
        self._to_move: Sequence[int] = _MOVES[0]

    def to_move(self) -> Sequence[int]:
        return self._to_move

    def observe(self, seat: int) -> bytes:
        return bytes(self._boards[seat])

    def action_mask(self, seat: int) -> list[int]:
        return [int(height < ROWS) for height in self._heights]

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        seat = self._seat
        column: int = actions[seat]
        height = self._heights[column]
        if height == ROWS:
            raise IllegalAction(seat, f"column {column} is full")
        self._heights[column] = height + 1
        cell = (ROWS - 1 - height) * COLUMNS + column
        other = 1 - seat
        boards = self._boards
        boards[seat][cell] = _MINE
        boards[other][cell] = _THEIRS
        self._last = cell
        self._steps += 1
        bits = self._bits[seat] = self._bits[seat] | 1 << column * 7 + height
        up = bits & bits >> 1
        across = bits & bits >> 7
        rising = bits & bits >> 8
        falling = bits & bits >> 6
        if up & up >> 2 or across & across >> 14 or rising & rising >> 16 or falling & falling >> 12:
            self._winner = seat
            self._to_move = ()
            return _WINS[seat]
        if self._steps == _CELLS:
            self._to_move = ()
        else:
            self._seat = other
            self._to_move = _MOVES[other]
        return _NO_REWARDS

    def outcome(self) -> Outcome:
        if self._winner is None:
            return Outcome((0.0, 0.0), None, "board full")
        return Outcome((1.0, -1.0) if self._winner == 0 else (-1.0, 1.0), self._winner, "four in a row")

    def view(self) -> dict[str, Any]:
        """`cells`: 0 empty, 1 seat 0, 2 seat 1, row by row from the top; `last` and `line` are cell numbers."""
        return {
            "rows": ROWS,
            "columns": COLUMNS,
            "cells": [0 if not cell else 1 if cell == _MINE else 2 for cell in self._boards[0]],
            "last": self._last,
            "line": self._line(),
            "to_move": list(self._to_move),
        }

    def _line(self) -> list[int] | None:
        """Four of the winner's in a row, the last move among them."""
        if self._winner is None or self._last is None:
            return None
        board = self._boards[self._winner]
        row, column = divmod(self._last, COLUMNS)
        for down, right in _DIRECTIONS:
            line: list[int] = []
            for k in range(-3, 4):
                y, x = row + k * down, column + k * right
                if not (0 <= y < ROWS and 0 <= x < COLUMNS and board[y * COLUMNS + x] == _MINE):
                    line.clear()
                    continue
                line.append(y * COLUMNS + x)
                if len(line) == 4:
                    return line
        return None

    def text(self) -> str:
        marks = [".XO"[cell] for cell in self.view()["cells"]]
        rows = [" ".join(marks[at : at + COLUMNS]) for at in range(0, _CELLS, COLUMNS)]
        return "\n".join([*rows, "0 1 2 3 4 5 6"])
