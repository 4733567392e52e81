"""Walks frames, objects, modules and its own memory for the game, the score and the other. Fails if it finds any."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys

RULES = re.compile(b"fou[r] in a row")  # the game's own words; this pattern does not match itself
MOST = 8 << 20


def walk():
    for name, module in list(sys.modules.items()):
        if name == "harena" or name.startswith("harena."):
            yield f"module {module}"
    frame = sys._getframe()
    while frame is not None:
        for name in frame.f_locals:
            if name in ("game", "match", "opponent", "score", "scores", "winner", "seats_of_all"):
                yield f"{name} in {frame.f_code.co_name}"
        frame = frame.f_back
    for thing in gc.get_objects():
        if str(type(thing).__module__).startswith("harena.match"):
            yield f"object {type(thing)}"


def memory():
    with open("/proc/self/maps") as maps:
        places = [line.split() for line in maps]
    for place in places:
        low, high = (int(end, 16) for end in place[0].split("-"))
        if place[1].startswith("rw") and high - low <= MOST and "[v" not in place[-1]:
            with contextlib.suppress(OSError):
                found = RULES.search(ctypes.string_at(low, high - low))
                if found:
                    yield f"the game's code at {low + found.start():x}"


class Agent:
    def __init__(self):
        for find in (*walk(), *memory()):
            raise RuntimeError(f"FOUND {find}")

    def act(self, observation):
        for find in walk():
            raise RuntimeError(f"FOUND {find}")
        return next(column for column in (3, 2, 4, 1, 5, 0, 6) if observation[column] == 0)
