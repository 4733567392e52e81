"""Runs the actions of a journal again in another box, and compares what comes out.

Replaying up to an action forks the recorded box at that step. Actions run one after the other, in the order in which
they began. Usage, times of files and what a network answered are not compared. Processes with streams and conversations
depend on when bytes arrive, and cannot be replayed.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harena.errors import BoxLost, JournalBroken, SpecError, Unsupported
from harena.journal import entries
from harena.journal.entries import Entry
from harena.journal.reader import Contents, read
from harena.sandbox.backend import Box, Task
from harena.sandbox.box import Sandbox
from harena.sandbox.shell import Shell
from harena.sandbox.spec import Limits, Result, Spec

COMPARED = ("verdict", "exit_code", "signal", "started", "stdout", "stderr", "value")
FILES_COMPARED = frozenset({"read", "sha256", "write", "remove", "apply"})
"""Operations on files whose answer is the same in every box; listings have times and numbers of files."""
SKIPPED = frozenset({"fork", "network", "connect"})
LINGER_S = 30.0
"""How long after its wall_s a program may take to be reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    seq: int
    """Number of the action in the journal."""
    verb: str
    field: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFindings:
    actions: int
    """Actions that were run again."""
    differences: tuple[Difference, ...]
    unrecorded: tuple[int, ...]
    """Actions without a recorded result, because the platform failed. They were run again and not compared."""

    @property
    def same(self) -> bool:
        return not self.differences


def contents_of(path: str | os.PathLike[str]) -> tuple[Spec, Limits]:
    """The spec and the limits of the recorded box. Nothing of this host that a spec can name is taken from a file that
    somebody may have written: a spec with mounts, a rootfs or a Python of the host is refused."""
    first = next(iter(read(path)), None)
    if first is None:
        raise JournalBroken(f"{path}: there is no complete entry")
    contents = Contents(path)
    found: dict[str, Any] = contents.json(first["spec"])
    named = [name for name in ("mounts", "rootfs", "python", "network", "gpus", "allow") if found.get(name)]
    if named:
        raise SpecError(f"{path}: the spec of the recorded box names {', '.join(named)}; give a box made for it")
    found = {name: tuple(one) if isinstance(one, list) else one for name, one in found.items()}  # pyright: ignore
    try:
        return Spec(**found), Limits(**contents.json(first["limits"]))
    except TypeError:
        raise JournalBroken(f"{path}: has a spec or limits that this version does not know") from None


def replay(path: str | os.PathLike[str], box: Sandbox, *, until: int | None = None) -> ReplayFindings:
    """Run the actions again in a new box. `until`: the number of the last action to run."""
    contents = Contents(path)
    ends = {entry["of"]: entry for entry in read(path) if entry["kind"] in ("end", "fail")}
    differences: list[Difference] = []
    unrecorded: list[int] = []
    shells: dict[int, Shell] = {}
    count = 0
    try:
        for act in read(path):
            if until is not None and act["seq"] > until:
                break
            if act["kind"] != "act" or act["verb"] in SKIPPED:
                continue
            end = ends.get(act["seq"])
            after = _run(box, contents, act, shells)
            count += 1
            if end is None or end["kind"] == "fail":
                unrecorded.append(act["seq"])
                continue
            for field, one, two in _compare(contents, act, end, after):
                differences.append(
                    Difference(seq=act["seq"], verb=act["verb"], field=field, recorded=one, replayed=two)
                )
    finally:
        for shell in shells.values():
            shell.close()
    return ReplayFindings(actions=count, differences=tuple(differences), unrecorded=tuple(unrecorded))


def _run(box: Sandbox, contents: Contents, act: Entry, shells: dict[int, Shell]) -> Any:
    action, verb = act["action"], act["verb"]
    raw: Box = box._box  # pyright: ignore[reportPrivateUsage]

    def text(name: str) -> str:
        return contents.data(action[name]).decode("utf-8", "surrogateescape")

    if verb == "files":
        return raw.ask_files(contents.json(action["message"]), contents.data(action["data"]))
    if verb == "command":
        shell = shells.get(action["shell"])
        if shell is None:
            raise JournalBroken(f"entry {act['seq']}: a command of a shell that was not started")
        return [shell.exec(text("command"), timeout_s=action["timeout_s"], output_bytes=action["output_bytes"])]
    limits = Limits(**contents.json(action["limits"])) if "limits" in action else box.limits
    actions: dict[str, Callable[[], Any]] = {
        "exec": lambda: [
            raw.exec(
                contents.json(action["argv"]),
                stdin=contents.data(action["stdin"]),
                env=contents.json(action["env"]),
                cwd=text("cwd"),
                limits=limits,
                stop=None,
            )
        ],
        "run": lambda: [raw.run(text("source"), limits=limits, stop=None)],
        "call": lambda: [
            raw.call(text("source"), action["name"], limits=limits, stop=None, **_given(contents, action))
        ],
        "program": lambda: _program(raw, contents, action, limits),
        "shell": lambda: _shell(box, contents, act, limits, shells),
    }
    if verb not in actions:
        raise Unsupported(f"entry {act['seq']}: {verb} depends on when bytes arrive, and cannot be replayed")
    return actions[verb]()


def _given(contents: Contents, action: Entry) -> Any:
    return contents.json(action["given"])


def _shell(box: Sandbox, contents: Contents, act: Entry, limits: Limits, shells: dict[int, Shell]) -> list[Result]:
    action = act["action"]
    argv, cwd = contents.json(action["argv"]) or None, contents.data(action["cwd"]).decode() or None
    shells[act["seq"]] = box.shell(argv, env=contents.json(action["env"]), cwd=cwd, limits=limits)
    return []


def _program(raw: Box, contents: Contents, action: Entry, limits: Limits) -> list[Result]:
    sources = [contents.data(one).decode("utf-8", "surrogateescape") for one in action["sources"]]
    lane = raw.programs()
    stdin = contents.data(action["stdin"])
    lane.give(1, Task(sources=sources, stdin=stdin, grouped=action["grouped"], limits=limits))
    poll = select.poll()
    late = time.monotonic() + limits.wall_s * len(sources) + LINGER_S
    while time.monotonic() < late:
        poll.register(lane.fileno(), select.POLLIN | (0 if lane.flush() else select.POLLOUT))
        for _, events in poll.poll(1000):
            if events & ~select.POLLOUT:
                for done in lane.collect():
                    if done.failure:
                        raise BoxLost(done.failure)
                    return list(done.results)
    raise BoxLost("a program was not reported in time")


def _compare(contents: Contents, act: Entry, end: Entry, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if act["verb"] == "files":
        if act["action"]["op"] not in FILES_COMPARED:
            return
        answer, data = after
        before: dict[str, Any] = contents.json(end["answer"])
        pairs = [(name, before.get(name), answer.get(name)) for name in ("error", "errno", "sha256")]
        yield from (pair for pair in [*pairs, ("data", contents.data(end["data"]), data)] if pair[1] != pair[2])
        return
    if len(end["results"]) != len(after):
        yield "results", len(end["results"]), len(after)
        return
    for recorded, result in zip(end["results"], after, strict=True):
        for field in COMPARED:
            one, two = recorded[field], getattr(result, field)
            if field in ("stdout", "stderr"):
                one = contents.data(one)
            elif field == "value":
                one = contents.json(one)
            elif field == "verdict":
                two = two.value
            if one != two:
                yield field, one, two


def seq_of_step(path: str | os.PathLike[str], label: str) -> int:
    """Number of the last action that belongs to a named step of a session."""
    found = [act["seq"] for act in read(path) if act["kind"] == "act" and act["labels"].get("step") == label]
    if not found:
        raise SpecError(f"{path}: no action of a step {label[: entries.MAX_LABEL]!r}")
    return found[-1]
