"""Every call of the C part that can fail, made to fail: no leak, no open door, no hang, a clear error each.

A phase of a box's life is run once to count the calls that it makes, then again and again with one of them failing.
Each time what happens is either a typed error of the platform, or a guest that has every layer; what was started is gone
when the box is closed. A sample is taken with a fixed seed; `make soak` takes every call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from harena import (
    BoxLost,
    HarenaError,
    IsolationUnavailable,
    Limits,
    Network,
    Result,
    Sandbox,
    SandboxPool,
    Spec,
    Verdict,
)
from harena.backends.local import backend, channel
from harena.backends.local import box as local_box
from harena.network import loop
from harena.sandbox.doctor import probes
from support import inject, leaks

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1800)]

ERRORS = (errno.EPERM, errno.ENOMEM, errno.EMFILE)
SAMPLE = 12
LIMITS = Limits(**probes.TIGHT, wall_s=20)
LOOKS = {
    probes.EXEC: (
        "files.read_only_mounts",
        "files.landlock",
        "privilege.setuid",
        "privilege.mount_flags",
        "limits.rlimits",
        "inherited.descriptors",
        "processes.own",
    ),
    probes.RUN: (
        "files.read_only_mounts",
        "files.landlock",
        "privilege.setuid",
        "privilege.mount_flags",
        "limits.rlimits",
        "inherited.descriptors",
        "kernel.user_namespaces",
    ),
}
LOOKS[probes.MAP] = LOOKS[probes.EXEC]


def look(way: str, extra: str = "") -> str:
    """Python for a guest that says `denied` when it has every layer."""
    target = {"landlock": backend.landlock_abi(), "rlimits": probes.RLIMITS, "way": way, "mark": "none", "image": ""}
    target |= {"restricted": False, "shared_user": False}
    parts = [next(probe.source for probe in probes.PROBES if probe.name == name) for name in LOOKS[way]]
    parts = [part.replace('"/dev/shm") or kind', f'"/dev/shm", "{inject.FOLDER}") or kind') for part in parts]
    filtered = 'check("no filter", status("Seccomp") == "2")'
    return "\n".join([probes.TOOLS, f"T = {target!r}", *parts, filtered, extra, "finish()"])


class Found(Exception):
    """What must not be."""


def judge(result: Result, way: str) -> None:
    if b"ESCAPED" in result.stdout:
        raise Found(f"an open door by {way}: {result.stdout.decode()}")
    if result.verdict is Verdict.SIGNAL and result.signal is None:
        return  # the host ended it, and says so
    if way == probes.EXEC and result.exit_code in (126, 127) and not result.stdout:
        return  # as for a folder or a program that the caller named and that is not there
    if not result.ok or not result.stdout.startswith(b"denied"):
        raise Found(
            f"the guest is blamed by {way}: {result.verdict} {result.detail} {result.stdout} {result.stderr[-500:]}"
        )


def command(box: Sandbox) -> None:
    judge(box.exec(["python3", "-I", "-S", "-"], stdin=look(probes.EXEC).encode(), limits=LIMITS), probes.EXEC)


def interpreter(box: Sandbox) -> None:
    judge(box.run(look(probes.RUN)), probes.RUN)


@dataclass(frozen=True)
class Phase:
    prepare: Callable[[Spec, ExitStack], Any]
    """Without faults: what the phase needs."""
    run: Callable[[Any, ExitStack], Any]
    """With one."""
    after: Callable[[Any], None] = lambda prepared: None
    """Without faults again: what is left works and has every layer, or is lost."""


def new_box(spec: Spec, stack: ExitStack) -> Sandbox:
    return stack.enter_context(Sandbox(spec, limits=LIMITS))


def used_box(spec: Spec, stack: ExitStack) -> Sandbox:
    box = new_box(spec, stack)
    box.exec(["true"])
    time.sleep(0.05)  # an init for the next command is made meanwhile
    return box


def live_box(spec: Spec, stack: ExitStack) -> Sandbox:
    box = new_box(spec, stack)
    left = box.run(f"{probes.TOOLS}\n{probes.LEFT_FOR_FORK}")
    assert left.stdout == b"left\n", left
    return box


def forked(box: Sandbox, stack: ExitStack) -> None:
    fork = stack.enter_context(box.fork()[0])
    judge(fork.run(f"{probes.TOOLS}\n{probes.LOOK_IN_FORK}"), "fork")
    interpreter(fork)
    judge(fork.exec(["echo", "denied"]), "fork")


def started(spec: Spec, stack: ExitStack) -> None:
    box = new_box(spec, stack)
    command(box)


def mapped(spec: Spec, stack: ExitStack) -> None:
    pool = stack.enter_context(SandboxPool(spec, limits=LIMITS, warm=0, max_live=1))
    for result in pool.map([look(probes.MAP)] * 3):
        judge(result, probes.MAP)


def networked(spec: Spec, stack: ExitStack) -> None:
    network = Network(allow=["a.example:80"])
    box = stack.enter_context(Sandbox(dataclasses.replace(spec, network=network), limits=LIMITS))
    box.set_network(None)
    box.set_network(network)
    box.run("x = 1")
    for one in (box, stack.enter_context(box.fork()[0])):
        with suppress(ConnectionRefusedError):
            one.connect(9).close()
        judge(one.run("import socket; print('denied', socket.gethostbyname('a.example'))"), "network")


def sound(box: Sandbox) -> None:
    command(box)
    interpreter(box)


PHASES = {
    "start": Phase(lambda spec, stack: spec, started),
    "command": Phase(new_box, lambda box, stack: command(box), sound),
    "command ahead": Phase(used_box, lambda box, stack: command(box), sound),
    "interpreter": Phase(new_box, lambda box, stack: interpreter(box), sound),
    "fork": Phase(live_box, forked, sound),
    "programs": Phase(lambda spec, stack: spec, mapped),
    "network": Phase(lambda spec, stack: spec, networked),
}


def attempt(phase: Phase, spec: Spec, calls: inject.Calls, after: int) -> tuple[str, int]:
    """One time through the phase; the call that failed, and how many there were."""
    before, children = leaks.descriptors(), leaks.descendants(os.getpid())
    boxes = leaks.boxes_of(os.getpid())
    number = ERRORS[after % len(ERRORS)]
    with ExitStack() as stack:
        prepared = phase.prepare(spec, stack)
        first = calls.count
        calls.fail(after, number)
        try:
            phase.run(prepared, stack)
        except channel.NoAnswer as error:
            raise Found(f"it hangs: {error}") from None
        except HarenaError as error:
            if not str(error) or isinstance(error, channel.NoAnswer):
                raise Found(f"no clear error: {error!r}") from None
        finally:
            what, made = calls.stop(), calls.count - first
        try:
            phase.after(prepared)
        except channel.NoAnswer as error:
            raise Found(f"it hangs afterwards: {error}") from None
        except HarenaError:
            pass  # it is lost
        known = [box for box in leaks.boxes_of(os.getpid()) if box not in boxes]
    if left := leaks.leaked(before):
        raise Found(f"descriptors are left: {left}")
    if left := leaks.settle(lambda: leaks.descendants(os.getpid()) - children, set()):
        raise Found(f"processes are left: {left}")
    if left := leaks.settle(lambda: leaks.traces(known), []):
        raise Found(f"traces are left: {left}")
    return what, made


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["sample", "all"])
@pytest.mark.parametrize("name", PHASES)
def test_a_failing_call_opens_no_door_and_leaves_nothing(
    name: str, everything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_box, "GRACE_S", 8.0)
    loop.shared()  # its descriptors stay
    wrong: list[str] = []
    with inject.boxes(monkeypatch) as (spec, calls):
        what, count = attempt(PHASES[name], spec, calls, 0)
        assert not what
        assert count > 50, "the calls are not counted"
        turns = range(1, count + 1)
        chosen = turns if everything else sorted(random.Random(name).sample(turns, SAMPLE))
        for after in chosen:
            try:
                what, _ = attempt(PHASES[name], spec, calls, after)
            except IsolationUnavailable as error:
                wrong.append(f"{after}: a box could not be prepared: {error}")
            except Found as found:
                wrong.append(f"{after} {calls.stop()}: {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("call", ["confine.c:* SYS_seccomp", "confine.c:* SYS_capset", "zygote.c:* setsid"])
def test_an_interpreter_that_cannot_be_confined_is_an_error_of_the_platform(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with inject.boxes(monkeypatch) as (spec, calls), Sandbox(spec, limits=LIMITS) as box:
        box.warm_up()
        calls.fail_first(call, errno.ENOMEM)
        with pytest.raises(BoxLost, match="Cannot allocate memory"):
            box.run("print(1)")
        assert calls.stop()
        interpreter(box)


@pytest.mark.parametrize("call", ["confine.c:* SYS_capset", "zygote.c:* dup3", "zygote.c:* send"])
def test_a_fork_that_cannot_be_set_up_is_an_error_of_the_platform(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with inject.boxes(monkeypatch) as (spec, calls), Sandbox(spec, limits=LIMITS) as box:
        box.run("x = 1")
        calls.fail_first(call, errno.ENOMEM)
        began = time.monotonic()
        with pytest.raises(BoxLost, match="Cannot allocate memory"), box.fork()[0] as fork:
            fork.run("print(1)")
        assert time.monotonic() - began < 4  # it is told, and nobody waits for a fork that does not come
        assert calls.stop()
        with box.fork()[0] as fork:
            assert fork.run("print(x)").stdout == b"1\n"


@pytest.mark.parametrize("way", ["command", "interpreter"])
def test_a_box_that_cannot_ask_for_landlock_s_version_runs_nothing_without_it(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with inject.boxes(monkeypatch) as (spec, calls), Sandbox(spec, limits=LIMITS) as box:
        calls.fail_first("confine.c:* SYS_landlock_create_ruleset", errno.ENOMEM)
        with contextlib.suppress(BoxLost):
            command(box) if way == "command" else interpreter(box)
        assert calls.stop()
