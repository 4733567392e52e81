"""Alpha-beta search on bitboards: as deep as its time allows, six moves or more.

A side is one integer with seven bits a column, the top one empty, so that four in a row is a few shifts.
"""

from __future__ import annotations

import time

ORDER = (3, 2, 4, 1, 5, 0, 6)
FULL = sum(63 << 7 * column for column in range(7))
WIN = 1000
BUDGET_S = 0.1
"""Processor time for one move; the clock of a match gives 5 s unless it is told otherwise."""


class OutOfTime(Exception):
    pass


class Agent:
    def act(self, observation):
        mine, theirs = bits(observation, 1), bits(observation, -1)
        self.ends_at = time.process_time() + BUDGET_S
        free = 42 - (mine | theirs).bit_count()
        best = next(column for column in ORDER if room(mine | theirs, column))
        for depth in range(1, free + 1):
            self.known = {}
            try:
                value, best = self.best_move(mine, theirs, depth, best)
            except OutOfTime:
                break
            if abs(value) > WIN:  # the end is in sight: deeper shows nothing new
                break
        return best

    def best_move(self, mine, theirs, depth, first):
        best, alpha = first, -10 * WIN
        for column in (first, *(column for column in ORDER if column != first)):
            if not room(mine | theirs, column):
                continue
            value = -self.search(theirs, dropped(mine, theirs, column), depth - 1, -10 * WIN, -alpha)
            if value > alpha:
                alpha, best = value, column
        return alpha, best

    def search(self, mine, theirs, depth, alpha, beta):
        """What the position is worth to who is to move; the other has just moved."""
        if four(theirs):
            return -WIN - depth
        taken = mine | theirs
        if taken == FULL:
            return 0
        if depth == 0:
            return threats(mine, taken) - threats(theirs, taken)
        if time.process_time() > self.ends_at:
            raise OutOfTime
        key = (mine, theirs)
        if key in self.known:
            depth_known, value = self.known[key]
            if depth_known == depth and value >= beta:
                return value
        for column in ORDER:
            if room(taken, column):
                value = -self.search(theirs, dropped(mine, theirs, column), depth - 1, -beta, -alpha)
                if value >= beta:
                    self.known[key] = (depth, value)
                    return value
                alpha = max(alpha, value)
        return alpha


def bits(observation, side):
    board = 0
    for cell in range(42):
        if observation[cell] == side:
            row, column = divmod(cell, 7)
            board |= 1 << 7 * column + 5 - row
    return board


def room(taken, column):
    return not taken >> 7 * column + 5 & 1


def dropped(mine, theirs, column):
    taken = mine | theirs
    return mine | (taken + (1 << 7 * column)) & ~taken & 127 << 7 * column


def four(board):
    for shift in (1, 7, 8, 6):
        pairs = board & board >> shift
        if pairs & pairs >> 2 * shift:
            return True
    return False


def threats(board, taken):
    """The empty squares that would make four."""
    wins = board << 1 & board << 2 & board << 3
    for shift in (6, 7, 8):
        pairs = board << shift & board << 2 * shift
        wins |= pairs & board << 3 * shift | pairs & board >> shift
        pairs = board >> shift & board >> 2 * shift
        wins |= pairs & board >> 3 * shift | pairs & board << shift
    return (wins & ~taken & FULL).bit_count()
