"""Determines verdicts: pure functions from the report of the box's init to a Result."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal

from harena.backends.local import wire
from harena.errors import BoxError, BoxLost, Retry
from harena.sandbox.spec import Limits, Result, Usage, Verdict

HIT_PROCESSES, HIT_MEMORY, SEEN_AT_PROCESSES = 1, 2, 4
FULL = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE})
"""Answer of a box that has no room for another execution."""
REFUSED = (b"Resource temporarily unavailable", b"Cannot fork", b"can't start new thread")
"""Error messages of guests whose fork failed, used if no cgroup counts processes. Forging one can only harm the
guest."""


def result_of(done: wire.Done, limits: Limits, *, said: str = "-", what: str = "it") -> Result:
    """Build the result. `said` is the limit that the guest's own runner named: M memory, P processes."""
    verdict, detail = judge(done, limits, said=said, what=what)
    limited = done.ended != wire.Ended.SELF or verdict is Verdict.TIME or verdict is Verdict.OUTPUT
    exit_code, signal_number = (None, None) if limited else status_of(done)
    return Result(
        verdict=verdict,
        exit_code=exit_code,
        signal=signal_number,
        stdout=done.stdout,
        stderr=done.stderr,
        usage=usage_of(done),
        detail=detail,
        started=not done.exec_errno,
    )


def marked(result: Result, isolation: str) -> Result:
    """The result with the isolation tier that it ran in."""
    return result if result.isolation == isolation else dataclasses.replace(result, isolation=isolation)


def usage_of(done: wire.Done) -> Usage:
    return Usage(
        cpu_s=done.cpu_ns / 1e9,
        wall_s=done.wall_ns / 1e9,
        peak_mb=round(done.peak_kb / 1024, 3),
        bytes=done.written,
    )


def status_of(done: wire.Done) -> tuple[int | None, int | None]:
    """Exit code and signal from a wait status; an unknown status counts as a kill."""
    if done.exec_errno:
        return (127 if done.exec_errno in {2, 20} else 126), None
    if done.wstatus == -1:
        return None, int(signal.SIGKILL)
    if os.WIFSIGNALED(done.wstatus):
        return None, os.WTERMSIG(done.wstatus)
    return os.WEXITSTATUS(done.wstatus), None


def judge(done: wire.Done, limits: Limits, *, said: str = "-", what: str = "it") -> tuple[Verdict, str]:
    """Return verdict and detail by the first rule that applies. The detail names the limit to raise."""
    if done.ended == wire.Ended.SELF and done.wstatus == 0 and not done.exec_errno:
        return Verdict.OK, ""
    at_processes = (
        bool(done.hits & HIT_PROCESSES) or said == "P" or any(text in done.stderr[-4096:] for text in REFUSED)
    )
    processes = f"{what} needed more than processes={limits.processes}"
    memory = f"{what} needed more than memory_mb={limits.memory_mb}"
    cpu = f"{what} used more than cpu_s={limits.cpu_s}"
    if done.exec_errno:
        return Verdict.EXIT, f"{what} could not be started: {os.strerror(done.exec_errno)}"
    match done.ended:
        case wire.Ended.MEMORY:
            return Verdict.MEMORY, memory
        case wire.Ended.OUTPUT:
            return Verdict.OUTPUT, f"{what} wrote more than output_bytes={limits.output_bytes}"
        case wire.Ended.WALL | wire.Ended.CPU:
            if at_processes or done.hits & SEEN_AT_PROCESSES:
                return Verdict.PROCESSES, processes
            if done.ended == wire.Ended.CPU:
                return Verdict.TIME, cpu
            return Verdict.TIME, f"{what} ran past wall_s={limits.wall_s:g}"
        case wire.Ended.HOST:
            return Verdict.SIGNAL, f"{what} was ended by the host"
        case wire.Ended.DISK:
            return Verdict.SIGNAL, f"{what} was ended because its files grew beyond workspace_mb"
        case _:
            pass
    exit_code, number = status_of(done)
    if done.hits & HIT_MEMORY or said == "M":
        return Verdict.MEMORY, memory
    if number is None:
        if at_processes:
            return Verdict.PROCESSES, processes
        return Verdict.EXIT, f"{what} ended with exit code {exit_code}"
    if number == signal.SIGSYS:
        return Verdict.POLICY, f"{what} made a system call of a foreign architecture"
    if limits.cpu_s is not None and number in {signal.SIGXCPU, signal.SIGKILL} and done.cpu_ns / 1e9 >= limits.cpu_s:
        return Verdict.TIME, cpu
    return Verdict.SIGNAL, f"{what} was ended by signal {number} ({signal_name(number)})"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def done_of(frame: wire.Frame, box: str) -> wire.Done:
    """Parse the report in an answer. A refusal of the platform raises BoxError, or BoxLost if a retry is useless."""
    if frame.op == wire.Op.DONE:
        return wire.parse_done(frame.body, frame.earlier)
    number, step = wire.parse_error(frame.body)
    if number in FULL:
        raise BoxError(
            f"box {box} could not {step}: {os.strerror(number)}; it lives on: try again when some of its executions "
            "have ended, or give the host's process more descriptors (ulimit -n)",
            retry=Retry.SAFE,
        )
    raise BoxLost(f"box {box} could not {step}: {os.strerror(number)}", retry=Retry.SAFE)
