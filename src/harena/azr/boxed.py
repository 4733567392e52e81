"""What runs in a box to call the programs of tasks. It is sent there as text and never imported by the host.

Standard input: one JSON line of settings, then one for each job: [program, [argument list, …]]. What was standard
output gets a frame for each job, in order, as soon as it is done: a length and JSON, [status, outputs or the reason].
Every argument list was read and written anew by the host: it is a literal. Nothing here is a wall: a program that
shares this process with others was found to be plain (plain.py), any other has the process, and what it says, to
itself. What a plain one can leave behind is garbage and compiled patterns: these go, and where the garbage is more than
LEFTOVER_BYTES the process ends, so that the next ones have all of their memory.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import sys
import warnings

TYPE_CHECKING = False  # `typing` is one more import in every box
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SLOW_EXIT = 111
LEFTOVER_BYTES = 16 << 20
SCALARS = (int, str, float, bool, type(None), bytes)


class Slow(BaseException):
    """The job has used more than its share of a shared process."""


class Unfit(Exception):
    """A value that has no literal, or too long a one."""


def show(value: Any, room: list[int], depth: int = 32) -> str:
    """The literal of a value, by exact types: what only looks like a plain value has none."""
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    if depth < 0 or room[0] < 0:
        raise Unfit("size")
    if kind in SCALARS:
        return show_scalar(value, kind, room)
    room[0] -= 2
    if kind is list:
        return "[" + ", ".join([show(item, room, depth - 1) for item in value]) + "]"
    if kind is tuple:
        inside = ", ".join([show(item, room, depth - 1) for item in value])
        return "(" + inside + (",)" if len(value) == 1 else ")")
    if kind is dict:
        items = [show(key, room, depth - 1) + ": " + show(item, room, depth - 1) for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if kind is set:
        return "{" + ", ".join(sorted([show(item, room, depth - 1) for item in value])) + "}" if value else "set()"
    raise Unfit("type")


def show_scalar(value: Any, kind: type[Any], room: list[int]) -> str:
    if kind is int and value.bit_length() > 4096:
        raise Unfit("size")
    if (kind is str or kind is bytes) and len(value) > room[0]:
        raise Unfit("size")
    if kind is float and value - value != 0:  # an infinity, or no number
        raise Unfit("type")
    text = repr(value)
    room[0] -= len(text) + 2
    if room[0] < 0:
        raise Unfit("size")
    return text


def run(program: str, calls: list[str], max_chars: int, names: dict[str, Any]) -> tuple[str, Any]:
    """(status, outputs): every call gets arguments of its own, in one namespace that is fresh for this job."""
    try:
        exec(compile(program, "<task>", "exec", dont_inherit=True), names)
        function = names["f"]
        outputs: list[str] = []
        codes = {call: compile("(" + call + ",)" if call else "()", "<call>", "eval") for call in calls}
        for call in calls:
            arguments = eval(codes[call], {})  # noqa: S307
            value = function(*arguments)
            outputs.append(show(value, [max_chars]))
        return "ok", outputs
    except Unfit as error:
        return error.args[0], ""
    except MemoryError:
        return "memory", ""
    except Slow:
        return "time", ""
    except BaseException as error:
        return "error", type(error).__name__[:80]


def watch(cpu_s: float) -> Callable[[bool], None]:
    """Two looks at a job: after cpu_s it is asked to stop, by an exception; after as much again the process ends. The
    kernel ends it after 3 * cpu_s of code that never comes back to the interpreter."""
    seen = [0]

    def look(number: int, frame: object) -> None:
        seen[0] += 1
        if seen[0] > 1:
            os._exit(SLOW_EXIT)
        raise Slow

    signal.signal(signal.SIGPROF, look)
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)

    def arm(on: bool) -> None:
        seen[0] = 0
        signal.setitimer(signal.ITIMER_PROF, cpu_s if on else 0, cpu_s)
        signal.setitimer(signal.ITIMER_VIRTUAL, 3 * cpu_s if on else 0)

    return arm


def measure() -> Callable[[], bool]:
    """Whether this process has come to hold more than it should since now, freed or not. The limit on memory counts
    what was asked for, touched or not; so does this."""
    try:
        table = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return lambda: False
    page = os.sysconf("SC_PAGE_SIZE")

    def held() -> int:
        return int(os.pread(table, 200, 0).split()[5]) * page

    most = held() + LEFTOVER_BYTES
    return lambda: held() > most


def start_again(settings: dict[str, Any]) -> None:
    """The same process with another Python in it: the seed of hashes is set once, at its start."""
    os.lseek(0, 0, os.SEEK_SET)
    environment = {"PYTHONHASHSEED": str(settings["hash_seed"])}
    os.execve(sys.executable, [sys.executable, "-s", "-S", "-B", "-c", settings["source"]], environment)


def main() -> None:
    with open(0, "rb", closefd=False) as stream:
        lines = stream.read().splitlines()
    settings = json.loads(lines[0])
    if settings["hash_seed"] is not None and os.environ.get("PYTHONHASHSEED") != str(settings["hash_seed"]):
        start_again(settings)
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(sys.getrecursionlimit() + settings["deeper"])
    arm = watch(settings["cpu_s"]) if settings["cpu_s"] else None
    is_full = measure() if arm else None
    write, dumps, pack, length, max_chars = os.write, json.dumps, struct.Struct("<I").pack, len, settings["max_chars"]
    loads, run_job = json.loads, run
    for line in lines[1:]:
        program, calls = loads(line)
        names: dict[str, Any] = {"__name__": "task"}
        if arm:
            arm(True)
        answer = run_job(program, calls, max_chars, names)
        if arm:
            names.clear()  # in the job's own time: its function and its names hold each other
            re.purge()  # 2 and 2.0 are one flag to the cache of patterns, and two to the compiler
            arm(False)
        data = dumps(answer).encode()
        data = pack(length(data)) + data
        while data:
            data = data[write(out, data) :]
        if is_full and is_full():
            break
    os._exit(0)


if __name__ == "__main__":
    main()
