"""What `harena demo` and `make up` show: a few seconds of the real thing, every line of it measured or read back."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from harena.errors import BoxError
from harena.sandbox import backend
from harena.sandbox.box import Sandbox
from harena.sandbox.doctor import Report, run_doctor
from harena.sandbox.doctor.ring import printable
from harena.sandbox.pool import SandboxPool
from harena.sandbox.spec import Limits, Verdict
from harena.terminal import wants_colour

T = TypeVar("T")

HOSTILE = {
    "print('hello')": Verdict.OK,
    "while True: pass": Verdict.TIME,
    "'a' * 10**10": Verdict.MEMORY,
    "import os\nwhile True: os.fork()": Verdict.PROCESSES,
    "while True: print('flood')": Verdict.OUTPUT,
    "open('/etc/shadow')": Verdict.EXIT,
    "import socket; socket.create_connection(('127.0.0.1', 22))": Verdict.EXIT,
    "import os; os.setuid(0)": Verdict.EXIT,
    "import ctypes; ctypes.string_at(0)": Verdict.SIGNAL,
}
LOOK = """
id -un; hostname; ls /workspace | wc -l; ls /proc | grep -c '^[0-9]'; tail -n +3 /proc/net/dev | cut -d: -f1
"""
LIMITS = Limits(wall_s=1, memory_mb=256, processes=16, output_bytes=1 << 16)
MANY = 300


def demo(args: argparse.Namespace) -> int:
    with Sandbox() as first:  # what the first box of a process pays once is not what a box costs
        first.warm_up()
    surprises = _box() + _files() + _interpreter_and_forks()
    report = _doctor()
    surprises += [f"{probe.name}: {probe.detail}" for probe in report.probes if not probe.held]
    # The bombs below have no end of their own: they are thrown only where the doctor saw the limits hold.
    if all(probe.held for probe in report.probes if probe.name.startswith("limits.")):
        surprises += _batch()
        surprises += _match()
    print()
    for surprise in surprises:
        print(f"NOT AS IT SHOULD BE  {printable(surprise)}")
    if not surprises:
        print("All as it should be. Next: `harena match`, `harena shell`, `harena run FILE`, `harena doctor`.")
    return 1 if surprises else 0


def _box() -> list[str]:
    _title("A box", "an own machine, as far as a program can tell")
    box, made_ms = _timed(Sandbox)
    with box:
        result, exec_ms = _timed(lambda: box.exec(["python3", "-c", "print(6 * 7)"]))
        _line(
            f"made in {made_ms:.1f} ms; python3 -c 'print(6 * 7)' in it says {_text(result.stdout)} in {exec_ms:.1f} ms"
        )
        seen = box.exec(["sh", "-c", LOOK]).stdout.decode().split()
        _line("in it: user {}, host {}, {} files of yours, {} processes, network {}".format(*seen))
    return [] if result.stdout == b"42\n" else ["the box cannot compute"]


def _files() -> list[str]:
    _title("Files", "written and read from outside, with snapshots")
    with Sandbox() as box:
        box.write("notes/a.txt", b"hi")
        said = box.exec(["cat", "notes/a.txt"]).stdout
        snapshot = box.snapshot()
        box.exec(["rm", "-r", "notes"])
        gone = not box.list()
        box.restore(snapshot)
        back = box.read("notes/a.txt")
        _line(f"wrote notes/a.txt; the box reads {_text(said)!r}; removed it in there; after restore: {_text(back)!r}")
    return [] if said == back == b"hi" and gone else ["files or snapshots are wrong"]


def _interpreter_and_forks() -> list[str]:
    _title("An interpreter that stays, and forks of it", "memory and files go along")
    with Sandbox() as box:
        box.run("x = 40; heap = bytearray(64 << 20)")
        result, run_ms = _timed(lambda: box.run("print(x + 2)"))
        _line(f"x = 40, then print(x + 2) says {_text(result.stdout)} in {run_ms:.2f} ms")
        try:
            (left, right), fork_ms = _timed(lambda: box.fork(2))
        except BoxError as error:
            _line(f"no forks here: {error}")
            return [] if not backend.load("local").capabilities().launcher.startswith("native") else [str(error)]
        with left, right:
            said = left.run("x += 1; print(x)").stdout, right.run("print(x)").stdout
        _line(
            f"two forks, with 64 MiB in memory, in {fork_ms:.1f} ms: "
            f"left adds one and has {_text(said[0])}, right still has {_text(said[1])}"
        )
    return [] if (*said, result.stdout) == (b"41\n", b"40\n", b"42\n") else ["the interpreter or its forks are wrong"]


def _doctor() -> Report:
    _title("Doctor", "attacks on a box and a pool of this machine")
    report, took_ms = _timed(run_doctor)
    means = report.enforcement
    _line("; ".join(f"{name} {value}" for name, value in means.items() if name not in {"memory", "processes"}))
    _line("; ".join(f"{name}: {means[name]}" for name in ("memory", "processes") if name in means))
    held = sum(probe.held for probe in report.probes)
    _line(f"{held} of {len(report.probes)} probes held, in {took_ms / 1000:.1f} s; `harena doctor` lists them")
    return report


def _batch() -> list[str]:
    _title(
        "A batch of hostile programs", f"{LIMITS.wall_s:g} s, {LIMITS.memory_mb} MB, {LIMITS.processes} processes each"
    )
    surprises: list[str] = []
    with SandboxPool() as pool:
        results, took_ms = _timed(lambda: pool.map(list(HOSTILE), limits=LIMITS))
        for (program, expected), result in zip(HOSTILE.items(), results, strict=True):
            shown = program.replace("\n", "; ")
            words = result.detail.removeprefix("the program ") or _text(result.stdout)
            if result.verdict is Verdict.EXIT:
                words = _text(result.stderr).rpartition("\n")[2]
            _line(f"{result.verdict.value:<10} {shown:<60} {printable(words)}")
            if result.verdict is not expected:
                surprises.append(f"{shown}: {result.verdict.value} instead of {expected.value}")
        _line(f"all {len(results)} side by side in {took_ms / 1000:.1f} s")
        results, took_ms = _timed(lambda: pool.map([f"print({n} ** 2)" for n in range(MANY)]))
        if [result.stdout for result in results] != [f"{n * n}\n".encode() for n in range(MANY)]:
            surprises.append("a harmless program after the batch got a wrong answer")
        _line(f"then {MANY} harmless ones, each in a box of its own: {MANY / took_ms * 1000:.0f} a second")
    return surprises


def _timed(action: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    value = action()
    return value, (time.perf_counter() - start) * 1000


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()


PLAYERS = {
    "left": "def act(observation): return next(c for c in range(7) if observation[c] == 0)",
    "right": "def act(observation): return next(c for c in reversed(range(7)) if observation[c] == 0)",
    "loop": "def act(observation):\n    while True: pass",
    "cheat": "def act(observation): return 99",
    "crash": "def act(observation): return observation.win()",
    "forger": "def act(observation):\n    import os\n    os.write(5, b'I won')\n    os._exit(0)",
}


def _match() -> list[str]:
    _title("Matches", "connect four, each agent in a box of its own, 0.2 s of processor time a move")
    try:
        from harena.match.result import AgentCode, Clock, MatchSpec
        from harena.match.run.play import Rack, play
    except ImportError:
        _line("not installed: pip install 'harena[match]'")
        return []
    codes = {name: AgentCode(name=name, files={"agent.py": text.encode()}) for name, text in PLAYERS.items()}
    surprises: list[str] = []
    with Rack() as rack:
        for name in list(PLAYERS)[1:]:
            agents = (codes["left"], codes[name])
            result = play(MatchSpec(environment="connect_four", agents=agents, clock=Clock(move_s=0.2)), rack=rack)
            winner = "nobody" if result.winner is None else agents[result.winner].name
            seat = result.seats[1]
            said = f"{seat.status.value}: {seat.reason}" if seat.reason else f"{result.reason}"
            _line(f"left against {name}: {winner} wins after {result.steps} moves; {name}: {said}")
            if (name == "right") == bool(seat.reason) or (name != "right" and result.winner != 0):
                surprises.append(f"the match against {name} went wrong: {result.as_json()}")
    return surprises


def _title(what: str, words: str) -> None:
    strong, plain = ("\033[1m", "\033[0m") if wants_colour(sys.stdout) else ("", "")
    print(f"\n{strong}{what}{plain}: {words}", flush=True)


def _line(text: str) -> None:
    print(f"  {text}", flush=True)
