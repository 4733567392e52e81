"""Has a helper.py, as the other has: each must get its own."""

from __future__ import annotations

import helper


def act(observation):
    assert helper.WHOSE == "b", "that is the other's helper"
    return next(column for column in helper.ORDER if observation[column] == 0)
