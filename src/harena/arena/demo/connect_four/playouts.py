"""Monte Carlo: plays every move to the end at random, many times, and takes the one that won most. Thinks for 50 ms."""

import random
import time

BUDGET_S = 0.05
SHIFTS = (1, 7, 8, 6)


def act(observation):
    mine, theirs = bits(observation, 1), bits(observation, -1)
    moves = [column for column in range(7) if room(mine | theirs, column)]
    for side, other in ((mine, theirs), (theirs, mine)):
        for column in moves:
            if four(side | landing(side | other, column)):
                return column
    won, played = dict.fromkeys(moves, 0.0), dict.fromkeys(moves, 1)
    end = time.process_time() + BUDGET_S
    while time.process_time() < end:
        for column in moves:
            won[column] += playout(theirs, mine | landing(mine | theirs, column))
            played[column] += 1
    return max(moves, key=lambda column: won[column] / played[column])


def playout(to_move, waiting):
    """1 when the side that waits wins, 0.5 for a draw."""
    mover = 0
    while True:
        taken = to_move | waiting
        moves = [column for column in range(7) if room(taken, column)]
        if not moves:
            return 0.5
        to_move |= landing(taken, random.choice(moves))
        if four(to_move):
            return float(mover)
        to_move, waiting, mover = waiting, to_move, 1 - mover


def bits(observation, side):
    """Seven bits a column, the top one empty."""
    return sum(1 << 7 * (cell % 7) + 5 - cell // 7 for cell in range(42) if observation[cell] == side)


def room(taken, column):
    return not taken >> 7 * column + 5 & 1


def landing(taken, column):
    return (taken + (1 << 7 * column)) & ~taken & 127 << 7 * column


def four(board):
    for shift in SHIFTS:
        pairs = board & board >> shift
        if pairs & pairs >> 2 * shift:
            return True
    return False
