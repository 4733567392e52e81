"""`harena replay show|html|json|verify`. The file may come from a stranger: it is read with size caps, and its text
cannot move the cursor of the terminal."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from harena.command import USAGE, fail, print_json
from harena.errors import SpecError
from harena.match.cli import commands as cli
from harena.terminal import Screen, framed, safe

if TYPE_CHECKING:
    from harena.match.replay.replay import Replay, ReplayFrame

NEXT, BACK, QUIT = (
    {"n", " ", "\r", "\n", "l", "\033[C", "\033[B"},
    {"p", "b", "h", "\033[D", "\033[A"},
    {"q", "\033", ""},
)
KEYS = "n next, p previous, g first, G last, q quit"


def show(args: argparse.Namespace) -> int:
    replay = _load(args.file)
    if args.frame is not None:
        if not 0 <= args.frame <= replay.steps:
            return fail(USAGE, f"--frame {args.frame}: {args.file} has the frames 0 to {replay.steps}")
        frame = next(itertools.islice(replay.frames(), args.frame, None))
        print(framed(_head(replay, frame), frame.text, _foot(replay, frame)), end="")
    elif args.fps is None and sys.stdin.isatty() and sys.stdout.isatty():
        _browse(replay)
    else:
        with Screen(checked_fps(args.fps)) as screen:
            for frame in replay.frames():
                screen.draw(_head(replay, frame), frame.text, _foot(replay, frame))
    return cli.OK


def html(args: argparse.Namespace) -> int:
    from harena.match.replay import viewer

    page = viewer.html(_load(args.file))
    out = args.output or str(Path(args.file).with_suffix(".html"))
    _write(out, page)
    if out != "-":
        print(out)
    return cli.OK


def as_json(args: argparse.Namespace) -> int:
    text = json.dumps(_load(args.file).to_json())
    _write(args.output or "-", text + "\n")
    return cli.OK


def verify(args: argparse.Namespace) -> int:
    found = _load(args.file).verify()
    if args.json:
        print_json(
            {
                "ok": found.ok,
                "steps": found.steps,
                "frame": found.frame,
                "recorded": found.recorded,
                "replayed": found.replayed,
            }
        )
    else:
        print(safe(str(found)))
    return cli.OK if found.ok else cli.NO


def checked_fps(fps: float | None) -> float | None:
    if fps is not None and not 0 < fps <= 1000:
        raise SpecError(f"--fps {fps:g}: must be above 0 and at most 1000")
    return fps


def _load(path: str) -> Replay:
    from harena.match.replay.replay import Replay

    return Replay.load(Path(path))


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error.strerror}") from None


def _head(replay: Replay, frame: ReplayFrame) -> str:
    names = " against ".join(replay.agents)
    return f"{replay.environment}, seed {replay.seed}, frame {frame.number} of {replay.steps}: {names}"


def _foot(replay: Replay, frame: ReplayFrame) -> str:
    lines = [f"{safe(replay.agents[seat])}: {action}" for seat, action in frame.actions.items()]
    if frame.done:
        winner = "no winner" if replay.winner is None else f"{safe(replay.agents[replay.winner])} wins"
        scores = ", ".join(f"{score:g}" for score in replay.scores)
        lines.append(f"{replay.status}: {winner}, scores {scores}" + (f" ({replay.reason})" if replay.reason else ""))
    return "\n".join(lines)


# ---- step by step ----


def _browse(replay: Replay) -> None:
    """Show frames by key. Frames come from re-running the game, and are kept to step back."""
    frames, source, at = list["ReplayFrame"](), replay.frames(), 0
    with _keys(), Screen(1000) as screen:
        while True:
            frames += itertools.islice(source, max(0, at + 1 - len(frames)))
            at = min(at, len(frames) - 1)
            screen.draw(_head(replay, frames[at]), frames[at].text, f"{_foot(replay, frames[at])}\n{KEYS}".lstrip())
            key = _key()
            if key in QUIT:
                return
            at = moved(key, at, replay.steps)


def moved(key: str, at: int, last: int) -> int:
    """Number of the frame that a key leads to."""
    if key in NEXT:
        return min(at + 1, last)
    if key in BACK:
        return max(at - 1, 0)
    return {"g": 0, "G": last}.get(key, at)


def _key() -> str:
    return os.read(sys.stdin.fileno(), 8).decode("ascii", "replace")


@contextlib.contextmanager
def _keys() -> Generator[None]:
    """Read single keys without Enter; Ctrl-C still interrupts."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
