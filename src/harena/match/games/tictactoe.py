"""Tic-tac-toe. Cells are numbered row by row from the top left; seat 0 moves first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harena.match.game import BaseGame, IllegalAction, Outcome
from harena.match.spaces import Box, Discrete

_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_MINE, _THEIRS = 1, 255  # int8 1 and -1
_NO_REWARDS: Mapping[int, float] = {}


class TicTacToe(BaseGame):
    """Three in a row on three by three cells."""

    id: ClassVar[str] = "tictactoe-v1"
    max_steps = 9
    _observation = Box((9,), "int8", -1, 1)
    _action = Discrete(9)

    def __init__(self) -> None:
        self.reset(0)

    def observation_space(self, seat: int) -> Box:
        return self._observation

    def action_space(self, seat: int) -> Discrete:
        return self._action

    def reset(self, seed: int) -> None:
        self._boards = (bytearray(9), bytearray(9))
        self._steps = 0
        self._last: int | None = None
        self._line: tuple[int, int, int] | None = None

    def to_move(self) -> Sequence[int]:
        if self._line is not None or self._steps == 9:
            return ()
        return (1,) if self._steps & 1 else (0,)

    def observe(self, seat: int) -> bytes:
        return bytes(self._boards[seat])

    def action_mask(self, seat: int) -> list[int]:
        return [int(not cell) for cell in self._boards[seat]]

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        seat = self._steps & 1
        cell: int = actions[seat]
        mine = self._boards[seat]
        if mine[cell]:
            raise IllegalAction(seat, f"cell {cell} is taken")
        mine[cell] = _MINE
        self._boards[1 - seat][cell] = _THEIRS
        self._steps += 1
        self._last = cell
        for line in _LINES:
            if mine[line[0]] == mine[line[1]] == mine[line[2]] == _MINE:
                self._line = line
                return {seat: 1.0, 1 - seat: -1.0}
        return _NO_REWARDS

    def outcome(self) -> Outcome:
        if self._line is None:
            return Outcome((0.0, 0.0), None, "board full")
        winner = 1 - (self._steps & 1)
        return Outcome((1.0, -1.0) if winner == 0 else (-1.0, 1.0), winner, "three in a row")

    def view(self) -> dict[str, Any]:
        """`cells`: 0 empty, 1 seat 0, 2 seat 1, row by row; `last` and `line` are cell numbers."""
        return {
            "rows": 3,
            "columns": 3,
            "cells": [0 if not cell else 1 if cell == _MINE else 2 for cell in self._boards[0]],
            "last": self._last,
            "line": None if self._line is None else list(self._line),
            "to_move": list(self.to_move()),
        }

    def text(self) -> str:
        marks = [".XO"[cell] for cell in self.view()["cells"]]
        return "\n".join(" ".join(marks[row : row + 3]) for row in (0, 3, 6))
