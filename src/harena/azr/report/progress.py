"""How far a command is and how long the rest takes: a counting line on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

TERMINAL_S = 0.1
PIPE_S = 10.0
"""Seconds between two lines of a command whose messages go to a file or another program."""

Clock = Callable[[], float]


@dataclass(slots=True)
class Pace:
    """How long the rest takes, by the mean of what was done since the start; evaluations and checkpoints count."""

    clock: Clock = time.monotonic
    done: int = 0
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.clock()

    def left(self, rest: int) -> str:
        """Count one more as done. Return the time that `rest` more take, in words; empty when none is left."""
        self.done += 1
        return in_words((self.clock() - self._started) / self.done * rest) if rest > 0 else ""


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def counter(stream: TextIO, *, clock: Clock = time.monotonic) -> Callable[[int, int], None]:
    """Show answers as they come. The first line of a pipe comes with the first answer."""
    is_terminal = stream.isatty()
    started = clock()
    shown_at = -PIPE_S

    def show(done: int, total: int) -> None:
        nonlocal shown_at
        now = clock()
        if now - shown_at < (TERMINAL_S if is_terminal else PIPE_S) and done < total:
            return
        shown_at = now
        left = in_words((now - started) / done * (total - done))
        text = f"answered {done}/{total}" + (f", about {left} left" if done < total else "")
        if is_terminal:
            text = f"\r\033[K{text}" if done < total else "\r\033[K"
        print(text, end="" if is_terminal else "\n", file=stream, flush=True)

    return show
