"""Wins if it can, else stops the other from winning with the next move, else plays near the middle.

The observation is 42 numbers, row by row from the top: 1 mine, -1 theirs, 0 empty.
"""

from __future__ import annotations

import random

LINES = [
    [(row + k * down) * 7 + column + k * right for k in range(4)]
    for row in range(6)
    for column in range(7)
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    if row + 3 * down < 6 and 0 <= column + 3 * right < 7
]


class Agent:
    def __init__(self, seed=0):
        self.random = random.Random(seed)

    def act(self, observation):
        board = [int(cell) for cell in observation]
        columns = [column for column in range(7) if board[column] == 0]
        for player in (1, -1):
            for column in columns:
                if wins(board, landing(board, column), player):
                    return column
        return min(columns, key=lambda column: abs(column - 3) + 2 * self.random.random())


def landing(board, column):
    return max(cell for cell in range(column, 42, 7) if board[cell] == 0)


def wins(board, cell, player):
    return any(cell in line and all(board[other] == player for other in line if other != cell) for line in LINES)
