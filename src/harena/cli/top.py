"""`harena top`: sessions, pools, verdicts and latencies of a server, or the boxes of this machine, live.

Guarantees: text of others moves no cursor; a pipe or a file gets plain lines; the terminal is as before at the end,
also after SIGTERM and Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

from harena.cli.usage import add_server, number, remote
from harena.command import print_json
from harena.errors import SpecError, WireError
from harena.terminal import CLEAR, HIDE_CURSOR, SHOW_CURSOR, safe, table, wants_colour

ENTER, LEAVE = "\033[?1049h", "\033[?1049l"
"""The other screen of a terminal: what was shown before comes back."""
BOLD, PLAIN = "\033[1m", "\033[0m"
Frame = dict[str, Any]


def fill(name: str, command: argparse.ArgumentParser) -> None:
    command.epilog = (
        "Without --server it shows the boxes of this user on this machine. memory_mb is resident memory, with\n"
        "shared pages counted in each process. q or Ctrl-C ends it."
    )
    add_server(command)
    command.add_argument("--local", action="store_true", help="this machine, also where HARENA_SERVER is set")
    command.add_argument("--once", action="store_true", help="print it once")
    command.add_argument(
        "--json", action="store_true", help="print JSON: one object with --once, else one for each line"
    )
    command.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between two looks (2)")
    command.set_defaults(action=_top)


def _top(args: argparse.Namespace) -> int:
    if not 0.1 <= args.interval <= 3600:
        raise SpecError("--interval: from 0.1 to 3600 seconds")
    engine = None if args.local else remote(args)
    local = LocalView()
    look: Callable[[], Frame] = local.look if engine is None else lambda: engine.get("/v1/stats")
    text = local_text if engine is None else server_text
    if args.once:
        if engine is None:
            look()
            time.sleep(0.2)  # CPU time is a difference
        if args.json:
            print_json(look())
        else:
            print(text(look()))
        return 0
    if args.json or not sys.stdout.isatty():
        return _print_forever(args, look, text)
    with _terminal() as wait_for_key:
        while True:
            _draw(text(look()))
            if wait_for_key(args.interval) in (b"q", b"Q", b"\x03", b"\x04"):
                return 0


def _print_forever(args: argparse.Namespace, look: Callable[[], Frame], text: Callable[[Frame], str]) -> int:
    import json

    while True:
        frame = look()
        print(json.dumps(frame, allow_nan=False) if args.json else text(frame) + "\n", flush=True)
        time.sleep(args.interval)


def _draw(text: str) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())
    lines = [line[: size.columns - 1] for line in text.splitlines()]
    if len(lines) > size.lines - 1:
        lines = [*lines[: size.lines - 2], "…"]
    if lines and wants_colour(sys.stdout):
        lines[0] = f"{BOLD}{lines[0]}{PLAIN}"
    sys.stdout.write(CLEAR + "\n".join(lines) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _terminal() -> Generator[Callable[[float], bytes]]:
    """Use the other screen, without a cursor and without echo. Yields a function that waits for a key."""
    import termios
    import tty

    keys = sys.stdin.isatty()
    before = termios.tcgetattr(sys.stdin) if keys else None

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    def wait(seconds: float) -> bytes:
        ready, _, _ = select.select([sys.stdin] if keys else [], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1) or b"q" if ready else b""

    handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        sys.stdout.write(ENTER + HIDE_CURSOR)
        if keys:
            tty.setcbreak(sys.stdin)
        yield wait
    finally:
        sys.stdout.write(SHOW_CURSOR + LEAVE)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        for number_, handler in handlers.items():
            signal.signal(number_, handler)


# ---- a server ----


def server_text(frame: Frame) -> str:
    sessions, pools = _records(frame, "sessions"), _records(frame, "pools")
    verdicts, latency, used = _record(frame, "verdicts"), _record(frame, "latency_ms"), _record(frame, "usage")
    head = f"{safe(str(frame.get('owner', '')))}: {number(frame.get('boxes'))} boxes, {len(sessions)} sessions, "
    lines = [f"{head}{len(pools)} pools   {time.strftime('%H:%M:%S')}"]
    shown = "  ".join(f"{safe(name)} {number(count)}" for name, count in verdicts.items())
    lines.append(f"verdicts   {shown or 'none yet'}")
    shown = "  ".join(f"{safe(name)} {number(value)} ms" for name, value in latency.items())
    lines.append(f"latency    {shown or 'nothing ran yet'}")
    lines.append("used       " + "  ".join(f"{safe(name)} {number(value)}" for name, value in used.items()))
    budget = {name: value for name, value in _record(frame, "budget").items() if value is not None}
    if budget:
        lines.append(
            "budget     " + "  ".join(f"{safe(str(name))} {safe(str(value))}" for name, value in budget.items())
        )
    if pools:
        columns = ("name", "namespace", "phase", "ready", "allocated", "replicas", "image")
        lines += ["", table(columns, [[_cell(one.get(name)) for name in columns] for one in pools], left=columns)]
    if sessions:
        columns = ("id", "boxId", "image", "isolation", "createdAt")
        rows = [[_cell(one.get(name)) for name in columns] for one in sessions]
        lines += ["", table(columns, rows, left=columns)]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return "" if value is None else str(value)[:80]


def _records(frame: Frame, name: str) -> list[Frame]:
    found = frame.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):  # pyright: ignore
        raise WireError(f"the server sent no {name}")
    return found  # pyright: ignore[reportUnknownVariableType]


def _record(frame: Frame, name: str) -> Frame:
    found = frame.get(name, {})
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise WireError(f"the server sent no {name}")
    return found  # pyright: ignore[reportUnknownVariableType]


# ---- this machine ----


class LocalView:
    """Processes of this user that hold boxes, with all processes below them. A second look knows the CPU share."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}
        self._looked_at = 0.0

    def look(self) -> Frame:
        from harena.cli.host import live_boxes

        boxes = live_boxes()
        table_of = _processes()
        now = time.monotonic()
        owners: list[Frame] = []
        cpu_now: dict[int, float] = {}
        for pid in dict.fromkeys(box["owner"] for box in boxes):
            mine = [box for box in boxes if box["owner"] == pid]
            tree = _tree(table_of, pid)
            cpu_now[pid] = sum(table_of[one][1] for one in tree)
            share = None
            if pid in self._before and now > self._looked_at:
                share = round(100 * max(0.0, cpu_now[pid] - self._before[pid]) / (now - self._looked_at), 1)
            memory = sum(table_of[one][2] for one in tree)
            owner = {"pid": pid, "boxes": len(mine), "processes": len(tree), "cpu_percent": share}
            owners.append({**owner, "memory_mb": round(memory, 1), "command": mine[0]["command"]})
        self._before, self._looked_at = cpu_now, now
        return {"boxes": [{"id": box["id"], "owner": box["owner"]} for box in boxes], "owners": owners}


def local_text(frame: Frame) -> str:
    owners = frame["owners"]
    head = f"{len(frame['boxes'])} boxes of {len(owners)} processes   {time.strftime('%H:%M:%S')}"
    if not owners:
        return head
    columns = ("pid", "boxes", "processes", "cpu_percent", "memory_mb", "command")
    rows = [["–" if one[name] is None else str(one[name]) for name in columns] for one in owners]
    ids = [[box["id"], str(box["owner"])] for box in frame["boxes"]]
    return f"{head}\n\n{table(columns, rows, left=('command',))}\n\n{table(('box', 'owner'), ids, left=('box',))}"


def _processes() -> dict[int, tuple[int, float, float]]:
    """Parent, seconds of CPU time and resident megabytes of every process."""
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    found: dict[int, tuple[int, float, float]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
                with open(f"/proc/{name}/stat", "rb") as file:
                    words = file.read(4096).rsplit(b")", 1)[1].split()
                cpu_s = (int(words[11]) + int(words[12])) / tick
                found[int(name)] = int(words[1]), cpu_s, int(words[21]) * page / 1e6
    return found


def _tree(processes: dict[int, tuple[int, float, float]], root: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for pid, (parent, _, _) in processes.items():
        below.setdefault(parent, []).append(pid)
    todo, seen = [root], list[int]()
    while todo:
        pid = todo.pop()
        if pid in processes and pid not in seen:
            seen.append(pid)
            todo += below.get(pid, ())
    return seen
