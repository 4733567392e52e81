"""Perfect play by looking at everything. Cells are 1 mine, -1 theirs, 0 empty."""

from __future__ import annotations

from functools import cache

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def best_move(cells):
    return max(moves(cells), key=lambda cell: -worth(after(cells, cell)))


def moves(cells):
    return [cell for cell in (4, 0, 2, 6, 8, 1, 3, 5, 7) if cells[cell] == 0]


def after(cells, cell):
    """As the other player sees it."""
    return tuple(-1 if place == cell else -value for place, value in enumerate(cells))


@cache
def worth(cells):
    if any(all(cells[cell] == -1 for cell in line) for line in LINES):
        return -1
    return max((-worth(after(cells, cell)) for cell in moves(cells)), default=0)
