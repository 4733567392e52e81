"""Words and pictures for a terminal. Guarantees: nothing that a stranger wrote moves the cursor, and nothing but plain
lines goes to what is no terminal."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TextIO

CLEAR = "\033[H\033[J"
HIDE_CURSOR, SHOW_CURSOR = "\033[?25l", "\033[?25h"
COLOUR = re.compile(r"\033\[[0-9;]{0,16}m")
BAR = 30


def safe(text: str) -> str:
    """One line of it, for a table or a message."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def safe_lines(text: str) -> str:
    """Lines and tabs stay, all else that a terminal would obey goes."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def safe_picture(text: str) -> str:
    """Make lines safe as `safe_lines` does, but keep colours: a game may draw with them."""
    parts = zip([*COLOUR.findall(text), ""], COLOUR.split(text), strict=True)
    return "".join(safe_lines(plain) + colour for colour, plain in parts)


def wants_colour(stream: TextIO) -> bool:
    """True for a terminal whose user has not asked for plain text (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()) -> str:
    """Columns by their widest cell; numbers to the right, those named in `left` to the left. Empty columns go."""
    cells = [list(head), *([safe(cell) for cell in row] for row in rows)]
    kept = [at for at in range(len(head)) if not rows or any(row[at] for row in cells[1:])]
    widths = {at: max(len(row[at]) for row in cells) for at in kept}
    lines: list[str] = []
    for row in cells:
        parts = [row[at].ljust(widths[at]) if head[at] in left else row[at].rjust(widths[at]) for at in kept]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


class Progress:
    """A bar on stderr, where that is a terminal; else nothing at all."""

    def __init__(self, label: str, total: int, *, stream: TextIO | None = None) -> None:
        self._label, self._total = label, total
        self._stream = stream or sys.stderr
        self._on = total > 1 and self._stream.isatty()
        self._started = time.monotonic()
        self._shown_at = 0.0

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._on or (now - self._shown_at < 0.1 and done < total):
            return
        self._shown_at = now
        print("\r\033[K" + bar(self._label, done, total, now - self._started), end="", file=self._stream, flush=True)

    def __enter__(self) -> Callable[[int, int], None]:
        self.show(0, self._total)
        return self.show

    def __exit__(self, *exc: object) -> None:
        if self._on:
            print("\r\033[K", end="", file=self._stream, flush=True)


def bar(label: str, done: int, total: int, elapsed_s: float) -> str:
    filled = BAR * done // max(total, 1)
    text = f"{label} [{'#' * filled}{'.' * (BAR - filled)}] {done}/{total}"
    if not done or elapsed_s <= 0:
        return text
    rate = done / elapsed_s
    return f"{text}  {rate:.3g}/s  {_duration((total - done) / rate)} left"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def framed(head: str, picture: str, foot: str = "") -> str:
    body = f"{safe(head)}\n\n{safe_picture(picture).rstrip()}\n"
    return f"{body}\n{safe_lines(foot)}\n" if foot else body


class Screen:
    """Draws frames: in place and at `fps` on a terminal; one after the other elsewhere, paced only if asked."""

    def __init__(self, fps: float | None, *, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._colour = wants_colour(self._stream)
        self._pause_s = 1 / fps if fps else 0.1 if self._terminal else 0.0
        self._next_at = 0.0

    def draw(self, head: str, picture: str, foot: str = "") -> None:
        self._wait()
        body = framed(head, picture if self._colour else COLOUR.sub("", picture), foot)
        self._stream.write(CLEAR + body if self._terminal else body + "\n")  # in one write: it must not flicker
        self._stream.flush()

    def _wait(self) -> None:
        now = time.monotonic()
        if self._pause_s and self._next_at > now:
            time.sleep(self._next_at - now)
        self._next_at = max(now, self._next_at) + self._pause_s

    def __enter__(self) -> Screen:
        if self._terminal:
            self._stream.write(HIDE_CURSOR)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal:
            self._stream.write(SHOW_CURSOR)
            self._stream.flush()
