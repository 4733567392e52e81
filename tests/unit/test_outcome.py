"""Verdicts: a table from what the box's init saw to what the user is told. The first rule that fits wins."""

from __future__ import annotations

import errno
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena import BoxLost, Limits, Verdict
from harena.backends.local import outcome, wire

LIMITS = Limits(wall_s=2, cpu_s=1, memory_mb=64, processes=8, output_bytes=100)
PLAIN = Limits(wall_s=2)
PROCESSES, MEMORY, SEEN = outcome.HIT_PROCESSES, outcome.HIT_MEMORY, outcome.SEEN_AT_PROCESSES
REFUSED = b"sh: 1: Cannot fork: Resource temporarily unavailable\n"


def done(**changes: Any) -> wire.Done:
    return wire.Done(wire.Ended.SELF, 0, 0, 0, 10**9, 5 * 10**8, 2048, 3, 0, b"out", b"", b"")._replace(**changes)


def exited(code: int) -> int:
    return code << 8


@pytest.mark.parametrize(
    ("seen", "said", "verdict", "exit_code", "number"),
    [
        # it ended by itself
        (done(), "-", Verdict.OK, 0, None),
        (done(wstatus=exited(3)), "-", Verdict.EXIT, 3, None),
        (done(wstatus=signal.SIGSEGV), "-", Verdict.SIGNAL, None, 11),
        (done(wstatus=signal.SIGSEGV | 0x80), "-", Verdict.SIGNAL, None, 11),
        (done(wstatus=-1), "-", Verdict.SIGNAL, None, 9),
        (done(wstatus=signal.SIGSYS), "-", Verdict.POLICY, None, 31),
        # it never started
        (done(wstatus=exited(127), exec_errno=errno.ENOENT), "-", Verdict.EXIT, 127, None),
        (done(wstatus=exited(127), exec_errno=errno.ENOTDIR), "-", Verdict.EXIT, 127, None),
        (done(wstatus=exited(127), exec_errno=errno.EACCES), "-", Verdict.EXIT, 126, None),
        # a limit ended it
        (done(ended=wire.Ended.WALL, wstatus=-1), "-", Verdict.TIME, None, None),
        (done(ended=wire.Ended.CPU, wstatus=-1), "-", Verdict.TIME, None, None),
        (done(ended=wire.Ended.MEMORY, wstatus=-1), "-", Verdict.MEMORY, None, None),
        (done(ended=wire.Ended.OUTPUT, wstatus=-1), "-", Verdict.OUTPUT, None, None),
        (done(ended=wire.Ended.HOST, wstatus=-1), "-", Verdict.SIGNAL, None, None),
        # a limit of the kernel made it fail
        (done(wstatus=signal.SIGKILL, hits=MEMORY), "-", Verdict.MEMORY, None, 9),
        (done(wstatus=exited(1), hits=MEMORY), "-", Verdict.MEMORY, 1, None),
        (done(wstatus=exited(1), hits=PROCESSES), "-", Verdict.PROCESSES, 1, None),
        (done(wstatus=exited(2), stderr=REFUSED), "-", Verdict.PROCESSES, 2, None),
        (done(wstatus=exited(2), stderr=b"sh: 1: Cannot fork\n"), "-", Verdict.PROCESSES, 2, None),  # Debian's sh
        (done(wstatus=exited(1)), "M", Verdict.MEMORY, 1, None),
        (done(wstatus=exited(1)), "P", Verdict.PROCESSES, 1, None),
        (done(ended=wire.Ended.WALL, hits=PROCESSES), "-", Verdict.PROCESSES, None, None),
        (done(ended=wire.Ended.WALL, hits=SEEN), "-", Verdict.PROCESSES, None, None),
        (done(ended=wire.Ended.CPU, hits=PROCESSES), "-", Verdict.PROCESSES, None, None),
        # a limit was hit, and it coped
        (done(hits=PROCESSES), "-", Verdict.OK, 0, None),
        (done(hits=MEMORY), "-", Verdict.OK, 0, None),
        (done(hits=SEEN, wstatus=exited(1)), "-", Verdict.EXIT, 1, None),
        (done(stderr=REFUSED), "-", Verdict.OK, 0, None),
        # what ended it weighs more than what it says
        (done(ended=wire.Ended.OUTPUT, hits=MEMORY | PROCESSES), "M", Verdict.OUTPUT, None, None),
        (done(ended=wire.Ended.MEMORY, hits=PROCESSES), "P", Verdict.MEMORY, None, None),
        # the kernel's own CPU limit
        (done(wstatus=signal.SIGXCPU, cpu_ns=3 * 10**9), "-", Verdict.TIME, None, None),
        (done(wstatus=signal.SIGKILL, cpu_ns=3 * 10**9), "-", Verdict.TIME, None, None),
        (done(wstatus=signal.SIGKILL, cpu_ns=10**8), "-", Verdict.SIGNAL, None, 9),
    ],
)
def test_verdict(seen: wire.Done, said: str, verdict: Verdict, exit_code: int | None, number: int | None) -> None:
    result = outcome.result_of(seen, LIMITS, said=said, what="tool")
    assert (result.verdict, result.exit_code, result.signal) == (verdict, exit_code, number)
    assert bool(result.detail) == (verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("seen", "knob"),
    [
        (done(ended=wire.Ended.WALL), "wall_s=2"),
        (done(ended=wire.Ended.CPU), "cpu_s=1"),
        (done(ended=wire.Ended.MEMORY), "memory_mb=64"),
        (done(ended=wire.Ended.OUTPUT), "output_bytes=100"),
        (done(ended=wire.Ended.WALL, hits=PROCESSES), "processes=8"),
    ],
)
def test_limit_names_the_knob_to_turn(seen: wire.Done, knob: str) -> None:
    assert knob in outcome.result_of(seen, LIMITS, what="tool").detail


def test_kill_without_a_cpu_limit_is_a_signal() -> None:
    assert outcome.result_of(done(wstatus=signal.SIGKILL, cpu_ns=10**12), PLAIN).verdict is Verdict.SIGNAL


def test_usage_is_in_the_units_its_names_say() -> None:
    usage = outcome.usage_of(done())
    assert (usage.cpu_s, usage.wall_s, usage.peak_mb, usage.bytes) == (0.5, 1.0, 2.0, 3)


numbers = st.integers(-(2**31), 2**31 - 1)


@given(
    st.sampled_from(sorted(wire.Ended)),
    numbers,
    st.integers(0, 2**32 - 1),
    numbers,
    st.sampled_from("-MP"),
    st.binary(),
)
def test_anything_a_box_may_report_has_one_verdict(
    ended: int, wstatus: int, hits: int, exec_errno: int, said: str, stderr: bytes
) -> None:
    seen = done(ended=ended, wstatus=wstatus, hits=hits, exec_errno=exec_errno, stderr=stderr)
    for limits in (LIMITS, PLAIN):
        result = outcome.result_of(seen, limits, said=said)
        assert result.verdict in Verdict
        assert result.ok == (result.detail == "")
        assert result.exit_code is None or 0 <= result.exit_code <= 255


def test_refusal_of_the_platform_is_no_verdict() -> None:
    frame = wire.Frame(wire.Op.ERROR, 1, wire.ERROR.pack(errno.ENOMEM) + b"clone namespaces")
    with pytest.raises(BoxLost, match="could not clone namespaces: Cannot allocate memory"):
        outcome.done_of(frame, "abc")


@pytest.mark.parametrize("number", [-1, 0, 64, 65, 2**31 - 1])
def test_unknown_signals_have_a_name(number: int) -> None:
    assert outcome.signal_name(number)
