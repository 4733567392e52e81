"""What runs in a box to call the programs of tasks. It is sent there as text and never imported by the host.

Standard input: one JSON line of settings, then one for each job: [program, [argument list, …], fresh]; the last `fresh`
calls get a namespace each, the others share one. What was standard output gets a frame for each job, in order, as soon
as it is done: a length and JSON, [status, outputs or the reason].
Every argument list was read and written anew by the host: it is a literal. Nothing here is a wall: a program that
shares this process with others was found to be plain (plain.py), any other has the process, and what it says, to
itself. What a plain one can leave behind is garbage and compiled patterns: these go, and where the garbage is more than
LEFTOVER_BYTES the process ends, so that the next ones have all of their memory.

A limit that a job has reached counts, whatever the job made of the exception: time by a note of the alarm and by the
clock, memory and recursion by a look into every handler of the program.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import sys
import time
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


ONLY_AST = 0x400
LOOK = "__harena_caught__"
"""No plain program can name it."""
LIMITS: dict[type[BaseException], str] = {MemoryError: "memory", RecursionError: "error"}


class Caught:
    """Notes the limits whose exceptions a program has caught: of memory and of recursion."""

    def __init__(self) -> None:
        self.limit: type[BaseException] | None = None

    def compiled(self, program: str) -> Any:
        """The program with a look at the beginning of all that handles exceptions."""
        if "except" not in program and "finally" not in program:
            return compile(program, "<task>", "exec", dont_inherit=True)
        tree: Any = compile(program, "<task>", "exec", ONLY_AST, dont_inherit=True)
        look: Any = compile(LOOK + "()", "<task>", "exec", ONLY_AST)
        nodes: list[Any] = [tree]
        for node in nodes:
            for name in node._fields:
                value: Any = getattr(node, name, None)
                is_list = type(value).__name__ == "list"
                nodes += [part for part in (value if is_list else (value,)) if hasattr(part, "_fields")]
            kind = type(node).__name__
            if kind == "ExceptHandler":
                node.body[:0] = look.body
            elif kind in ("Try", "TryStar") and node.finalbody:
                node.finalbody[:0] = look.body
        return compile(tree, "<task>", "exec", dont_inherit=True)

    def look(self) -> None:
        errors: list[Any] = [sys.exc_info()[1]]
        for error in errors:
            errors += getattr(error, "exceptions", ())  # of a group
            for limit in LIMITS:
                if isinstance(error, limit):
                    self.limit = limit


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


def run(program: str, calls: list[str], fresh: int, max_chars: int, names: dict[str, Any]) -> tuple[str, Any]:
    """(status, outputs): every call gets arguments of its own. `names` is a namespace that is fresh for this job; the
    last `fresh` calls have one each."""
    caught = Caught()
    status, body = run_calls(program, calls, fresh, max_chars, names, caught)
    if caught.limit is not None:
        return LIMITS[caught.limit], caught.limit.__name__
    return status, body


def run_calls(
    program: str, calls: list[str], fresh: int, max_chars: int, names: dict[str, Any], caught: Caught
) -> tuple[str, Any]:
    try:
        code = caught.compiled(program)
        names[LOOK] = caught.look
        exec(code, names)
        outputs: list[str] = []
        codes = {call: compile("(" + call + ",)" if call else "()", "<call>", "eval") for call in calls}
        for at, call in enumerate(calls):
            if at >= len(calls) - fresh:
                names.clear()
                names |= {"__name__": "task", LOOK: caught.look}
                exec(code, names)
            arguments = eval(codes[call], {})  # noqa: S307
            value = names["f"](*arguments)
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


class CpuClock:
    """Two looks at a job: after cpu_s it is asked to stop, by an exception; after as much again the process ends. The
    kernel ends it after 3 * cpu_s of code that never comes back to the interpreter. A job that caught the exception, or
    that no look came to in time, is late all the same."""

    def __init__(self, cpu_s: float) -> None:
        self._cpu_s = cpu_s
        self._looks = 0
        self._begun = 0.0
        signal.signal(signal.SIGPROF, self._look)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)

    def _look(self, number: int, frame: object) -> None:
        self._looks += 1
        if self._looks > 1:
            os._exit(SLOW_EXIT)
        raise Slow

    def begin(self) -> None:
        self._looks = 0
        self._begun = time.process_time()
        self._set(self._cpu_s)

    def end(self) -> bool:
        """Whether it was late."""
        late = time.process_time() - self._begun > self._cpu_s
        try:
            self._set(0)
        except Slow:  # at the last moment
            self._set(0)
        return late or self._looks > 0

    def _set(self, cpu_s: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s, cpu_s)
        signal.setitimer(signal.ITIMER_VIRTUAL, 3 * cpu_s)


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


SHIFT_S = 34_580_833
"""Another year, month, day of the week, hour, minute and second: 400 days, 5:47:13."""
SHIFT_PID = 7_919
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")


def go_elsewhere(*mine: int) -> None:
    """Changes what a program sees that looks around: clocks, its process and their number, its folder. Hostname and
    environment are the box's. A program that wants to be deceived by none of this is not: it says the same in both
    checks by intent, as a coin may by chance."""
    shift_clocks()
    os.mkdir("/tmp/elsewhere")
    os.chdir("/tmp/elsewhere")
    os.utime(".", (SHIFT_S, SHIFT_S))
    if os.fork() == 0:  # one process more, as long as the program runs
        for fd in mine:
            os.close(fd)
        while True:
            signal.pause()
    cores, pid, parent, system_times = os.cpu_count() or 1, os.getpid(), os.getppid(), os.times
    replace("os", cpu_count=lambda: cores + 1)
    for module in ("os", "posix"):
        replace(
            module,
            getpid=lambda: pid + SHIFT_PID,
            getppid=lambda: parent + SHIFT_PID,
            times=lambda: os.times_result([value + SHIFT_S for value in system_times()]),
        )


def shift_clocks() -> None:
    for name in CLOCKS:
        replace("time", **{name: shifted(getattr(time, name), SHIFT_S)})
        replace("time", **{name + "_ns": shifted(getattr(time, name + "_ns"), SHIFT_S * 10**9)})
    now, strftime, asctime = time.time, time.strftime, time.asctime
    for name in ("gmtime", "localtime", "ctime"):
        replace("time", **{name: at_that_time(getattr(time, name), now)})

    def strftime_then(text: str, given: Any = None) -> str:
        return strftime(text, given or time.localtime())

    def asctime_then(given: Any = None) -> str:
        return asctime(given or time.localtime())

    replace("time", strftime=strftime_then, asctime=asctime_then)
    # In Python, datetime asks `time`; in C it asks the system.
    sys.modules.pop("datetime", None)
    sys.modules["_datetime"] = None  # pyright: ignore[reportArgumentType]


def shifted(clock: Callable[..., Any], by: int) -> Callable[..., Any]:
    return lambda *which: clock(*which) + by


def at_that_time(function: Callable[[Any], Any], now: Callable[[], float]) -> Callable[..., Any]:
    def then(seconds: Any = None) -> Any:
        return function(now() if seconds is None else seconds)

    return then


def replace(module: str, **functions: Any) -> None:
    for name, function in functions.items():
        setattr(sys.modules[module], name, function)


def start_again(settings: dict[str, Any]) -> None:
    """The same process with another Python in it: the seed of hashes is set once, at its start."""
    os.lseek(0, 0, os.SEEK_SET)
    environment = {"PYTHONHASHSEED": str(settings["hash_seed"])}
    os.execve(sys.executable, [sys.executable, "-s", "-S", "-B", "-c", settings["source"]], environment)


def end_of(watch: CpuClock, names: dict[str, Any]) -> bool:
    """Cleans up in the job's own time; whether that was over."""
    try:
        names.clear()  # its function and its names hold each other
        re.purge()  # 2 and 2.0 are one flag to the cache of patterns, and two to the compiler
    except Slow:
        names.clear()
    return watch.end()


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
    if settings["elsewhere"]:
        go_elsewhere(out)
    watch = CpuClock(settings["cpu_s"]) if settings["cpu_s"] else None
    is_full = measure() if watch else None
    write, dumps, pack, length, max_chars = os.write, json.dumps, struct.Struct("<I").pack, len, settings["max_chars"]
    loads, run_job = json.loads, run
    for line in lines[1:]:
        program, calls, fresh = loads(line)
        names: dict[str, Any] = {"__name__": "task"}
        if watch:
            watch.begin()
        answer = run_job(program, calls, fresh, max_chars, names)
        if watch and end_of(watch, names):
            answer = ("time", "")
        data = dumps(answer).encode()
        data = pack(length(data)) + data
        while data:
            data = data[write(out, data) :]
        if is_full and is_full():
            break
    os._exit(0)


if __name__ == "__main__":
    main()
