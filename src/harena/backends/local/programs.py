"""Python programs of a box: how one is asked for, many side by side, and what came of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from harena.backends.local import outcome, wire
from harena.backends.local.channel import READ_BYTES, Channel
from harena.backends.local.wire import RECORD
from harena.errors import SpecError, WireError
from harena.sandbox import strict_json
from harena.sandbox.backend import Task, TaskDone
from harena.sandbox.spec import MB, Limits, Result, Usage, Verdict

RUNNER_BYTES = 256
"""What the runner in a program's process writes to the result pipe of its own: CPU time, limits, exit code."""


class Lane:
    """Runs programs of one box in parallel. It has exclusive use of the zygote's socket."""

    def __init__(
        self, channel: Channel, box: str, workspace_mb: int, *, isolation: str = "full", ids: str = ""
    ) -> None:
        self._sock = channel.exclusive
        self._box = box
        self._workspace_mb = workspace_mb
        self._isolation = isolation
        self._ids = ids
        self._reader = wire.Reader(wire.MAX_REPORT)
        self._running: dict[int, tuple[int, Task, wire.Output]] = {}
        self._unsent = memoryview(b"")
        self._next_id = 1 << 20  # apart from the ids of the channel itself

    def fileno(self) -> int:
        return self._sock.fileno()

    def give(self, key: int, task: Task) -> None:
        self._next_id += 1
        request = self._spawn(task)
        self._running[self._next_id] = key, task, wire.Output(request.room)
        data = wire.frame(wire.Op.SPAWN, self._next_id, request.encode())
        self._unsent = memoryview(bytes(self._unsent) + data if self._unsent else data)
        self.flush()

    def flush(self) -> bool:
        """Send as much as the box accepts now. The box does not read while it waits for us to read."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent, socket.MSG_DONTWAIT) :]
        return not self._unsent

    def _spawn(self, task: Task) -> wire.Spawn:
        limits, fresh_mb = task.limits, self._workspace_mb
        if not task.grouped:
            payload = program_payload(task.sources[0], task.stdin)
            return spawn(payload, limits, fresh_mb=fresh_mb, ahead=task.more, batch=True)
        return spawn(
            group_payload(task.sources, limits.output_bytes),
            limits,
            fresh_mb=fresh_mb,
            records=len(task.sources),
            ahead=task.more,
            batch=True,
            answer_bytes=len(task.sources) * (wire.U32.size + RECORD.size + limits.output_bytes),
        )

    def collect(self) -> list[TaskDone]:
        data = self._sock.recv(READ_BYTES)
        if not data:
            raise WireError("the box ended")
        ended: list[TaskDone] = []
        for frame in self._reader.feed(data):
            if frame.id not in self._running:
                raise WireError("the box answered a request that was not made")
            key, task, output = self._running[frame.id]
            if frame.op == wire.Op.OUTPUT:
                output.add(frame.body)
                continue
            if frame.op == wire.Op.DONE:
                results = results_of(wire.parse_done(frame.body, output), task)
                if self._ids:
                    results = [dataclasses.replace(result, ids=self._ids) for result in results]
                if self._isolation != "full":
                    results = [outcome.marked(result, self._isolation) for result in results]
                ended.append(TaskDone(key, results))
            elif frame.op == wire.Op.ERROR:
                number, step = wire.parse_error(frame.body)
                ended.append(TaskDone(key, (), f"box {self._box} could not {step}: {os.strerror(number)}"))
            else:
                raise WireError("the box sent something else than a report")
            del self._running[frame.id]
        return ended


def results_of(done: wire.Done, task: Task) -> list[Result]:
    """Results of a group. If a program broke the process, the results end with that program."""
    if not task.grouped:
        return [program_result(done, task.limits)]
    records = wire.parse_records(done.result, len(task.sources))
    results = [group_result(record, task.limits) for record in records]
    if len(results) < len(task.sources):
        culprit = outcome.result_of(done._replace(stdout=b"", stderr=b""), task.limits, what="the program")
        if culprit.ok:
            culprit = outcome.result_of(done._replace(wstatus=1 << 8), task.limits, what="the program")
        results.append(culprit)
    return results


# ---- requests ----


def piece(data: bytes) -> bytes:
    return wire.U32.pack(len(data)) + data


def limit_fields(limits: Limits) -> dict[str, Any]:
    return {
        "wall_ns": int(limits.wall_s * 1e9),
        "cpu_ns": int((limits.cpu_s or 0) * 1e9),
        "memory": limits.memory_mb * MB,
        "output": limits.output_bytes,
        "processes": limits.processes,
        "nofile": limits.open_files,
    }


def program_payload(source: str, stdin: bytes = b"") -> bytes:
    return wire.Mode.PROGRAM + piece(source.encode("utf-8", "surrogatepass")) + piece(stdin)


def group_payload(sources: Sequence[str], output_bytes: int) -> bytes:
    pieces = (source.encode("utf-8", "surrogatepass") for source in sources)
    return wire.Mode.GROUP + piece(str(output_bytes).encode()) + b"".join(map(piece, pieces))


def call_payload(source: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    try:
        request = {"source": source, "name": name, "args": [*args], "kwargs": {**kwargs}}
        return wire.Mode.CALL + piece(json.dumps(request, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise SpecError(f"call {name}: its arguments are not JSON: {error}") from None


def spawn(
    payload: bytes,
    limits: Limits,
    *,
    fresh_mb: int | None,
    view: int = 0,
    records: int = 0,
    ahead: int = 0,
    batch: bool = False,
    answer_bytes: int = 0,
) -> wire.Spawn:
    """Request for a fork of the zygote, with `fresh_mb` on its own files, otherwise on the box's workspace.
    `answer_bytes`: size limit of its answer in addition to its output, a value or the records of a group."""
    fresh = wire.Flag.FRESH_FS if fresh_mb is not None else wire.Flag(0)
    return wire.Spawn(
        kind=wire.Kind.PROGRAM,
        flags=wire.Flag.CAPTURE | fresh | (wire.Flag.BATCH if batch else wire.Flag(0)),
        profile=wire.Profile.SESSION if fresh_mb is None else wire.Profile.PROGRAM,
        fs_bytes=(fresh_mb or 0) * MB,
        view=view,
        records=records,
        ahead=ahead,
        payload=payload,
        result=RUNNER_BYTES + answer_bytes,
        **limit_fields(limits),
    )


# ---- answers ----


def program_result(done: wire.Done, limits: Limits) -> Result:
    records = wire.parse_records(done.result, 8)
    said = next((record.decode() for record in records if record in {b"M", b"P"}), "-")
    return outcome.result_of(done, limits, said=said, what="the program")


def call_result(done: wire.Done, limits: Limits, name: str) -> Result:
    records = wire.parse_records(done.result, 8)
    said = next((record.decode() for record in records if record in {b"M", b"P"}), "-")
    result = outcome.result_of(done, limits, said=said, what=name)
    values = [record[1:] for record in records if record[:1] == b"V"]
    if not result.ok or not values:
        if result.ok:
            return dataclasses.replace(result, verdict=Verdict.EXIT, detail=f"{name} ended without an answer")
        return result
    try:
        value = strict_json.parse_json(values[0])
    except strict_json.ValueTooLarge as error:
        return dataclasses.replace(result, verdict=Verdict.OUTPUT, exit_code=None, detail=f"{name}: {error}")
    except WireError as error:
        return dataclasses.replace(result, verdict=Verdict.EXIT, detail=f"{name}: {error}")
    return dataclasses.replace(result, value=value)


BROKEN_REPORT = Result(
    verdict=Verdict.EXIT,
    exit_code=1,
    signal=None,
    stdout=b"",
    stderr=b"",
    usage=Usage(cpu_s=0, wall_s=0, peak_mb=0, bytes=0),
    detail="the program broke the report of its group",
)


def group_result(record: bytes, limits: Limits) -> Result:
    """Result of one program of a group, from the record that its own process wrote, which is untrusted."""
    if len(record) < RECORD.size:
        return BROKEN_REPORT
    said, code, cpu_s, wall_s, out, err = RECORD.unpack_from(record)
    if len(record) != RECORD.size + out + err or not 0 <= code <= 255 or not 0 <= cpu_s < 1e9 or not 0 <= wall_s < 1e9:
        return BROKEN_REPORT
    stdout, stderr = record[RECORD.size : RECORD.size + out], record[RECORD.size + out :]
    ended = wire.Ended.OUTPUT if said == b"O" else wire.Ended.SELF
    done = wire.Done(ended, code << 8, 0, 0, int(wall_s * 1e9), int(cpu_s * 1e9), 0, out + err, 1, stdout, stderr, b"")
    return outcome.result_of(done, limits, said=said.decode("latin-1"), what="the program")
