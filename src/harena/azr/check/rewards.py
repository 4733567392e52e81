"""What a completion earns. Pure functions of what the verifier found.

solve      1 for a right answer, -0.5 for a wrong one, -1 for one that is not in the form that was asked for
propose    -1 for a wrong form, else what the task teaches, by the share of sampled solves that were right:

                          invalid    share 0 or 1     share p between
           paper          -0.5       0                1 - p
           authors        -1         -0.5             1 - p          (their code, which differs from their paper)
           quadratic      -0.5       0                4p(1 - p)

With a novelty guard, a program that was seen before earns what the guard says, whatever it would teach.
"""

from __future__ import annotations

import enum

WRONG = -0.5
BAD_FORM = -1.0
RIGHT = 1.0


class Learnability(enum.StrEnum):
    PAPER = "paper"
    AUTHORS = "authors"
    QUADRATIC = "quadratic"


def solve_reward(*, well_formed: bool, right: bool) -> float:
    if not well_formed:
        return BAD_FORM
    return RIGHT if right else WRONG


def learnability(share: float, form: Learnability = Learnability.PAPER) -> float:
    """What a valid task is worth to a solver that gets this share of it right."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share={share!r}: from 0 to 1")
    if form is Learnability.QUADRATIC:
        return 4.0 * share * (1.0 - share)
    if 0.0 < share < 1.0:
        return 1.0 - share
    return WRONG if form is Learnability.AUTHORS else 0.0


def propose_reward(
    *,
    well_formed: bool,
    share: float | None,
    form: Learnability = Learnability.PAPER,
    seen_before: bool = False,
    guard: float | None = None,
) -> float:
    """share: of right solves; None for a proposal that is no valid task. guard: what a repeated program earns; None: no
    guard."""
    if not well_formed:
        return BAD_FORM
    if share is None:
        return BAD_FORM if form is Learnability.AUTHORS else WRONG
    if seen_before and guard is not None:
        return guard
    return learnability(share, form)
