"""One session: a box, its steps one after the other, and what happened.

Guarantees: an operation id runs at most once, however often and from however many connections it is asked for; a later
request for it gets the same result, or the same error. Steps of one session never overlap.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from harena.errors import BoxClosed, BoxError, BoxFileError, Retry, SpecError
from harena.journal import Journal, labelled, trajectory
from harena.node.rules import OwnerQuota
from harena.sandbox.alarm import ALARM, ScheduledCall
from harena.sandbox.box import Sandbox
from harena.sandbox.files import Snapshot
from harena.sandbox.network import Network, NetworkReport
from harena.sandbox.process import Process
from harena.sandbox.spec import MB
from harena.sessions.errors import Conflict, NotFound
from harena.sessions.operations import Operation, Record
from harena.sessions.output import OutputPieces, exec_in_pieces
from harena.sessions.steps import Step, of_result, parse_steps
from harena.sessions.terminal import SHELL, limits_of_terminal
from harena.sessions.transfers import Uploads

MAX_OPERATIONS = 100_000
"""Operations of a session, and steps of all of them."""
MAX_KEPT = 64 * MB
"""Bytes of output that a session remembers. Beyond that, the oldest results are forgotten, but not their ids."""
RECORD_BYTES = 2048
"""Memory that the record of a step takes besides its output."""
ENTRY_BYTES = 512
"""Memory that a file takes in a snapshot besides its content and its path."""
MAX_SNAPSHOTS = 1000
MAX_SNAPSHOT_BYTES = 256 * MB
MAX_TERMINALS = 8
MAX_ID = 200


class Session:
    def __init__(
        self,
        box: Sandbox,
        *,
        idle_s: float | None = None,
        lifetime_s: float | None = None,
        keep_steps: bool = False,
        on_end: Callable[[Session], object] = lambda session: None,
        quota: OwnerQuota | None = None,
        session_id: str | None = None,
    ) -> None:
        """`keep_steps`: take a snapshot after each step, so that `fork` can start from any of them. `quota`: what the
        sessions of its owner may keep together; None: no limit."""
        self.id = session_id or new_id()
        self.box = box
        self.keep_steps = keep_steps
        self.idle_s, self.lifetime_s = idle_s, lifetime_s
        self.created_at = now()
        self._on_end = on_end
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._quota = quota
        self._charged = 0
        """Bytes that this session has taken of the quota."""
        self._operations: dict[str, Operation] = {}
        self._steps = 0
        self._kept = 0
        self._remembered: deque[Operation] = deque()
        """Operations whose output is kept, the oldest first."""
        self._history: list[Record] = []
        self._snapshots: dict[str, Snapshot] = {}
        self._blobs: set[str] = set()
        self._blob_bytes = 0
        self.uploads = Uploads()
        self._terminals: weakref.WeakSet[Process] = weakref.WeakSet()
        self._waiting = 0
        self._used_at = time.monotonic()
        self._ended = ""
        this: weakref.ref[Session] = weakref.ref(self)  # a session that has ended is not kept for its clocks
        self._rings: list[ScheduledCall] = []
        if lifetime_s is not None:
            self._rings.append(ALARM.at(time.monotonic() + lifetime_s, lambda: _end_of_life(this)))
        if idle_s is not None:
            self._rings.append(ALARM.at(time.monotonic() + idle_s, lambda: _end_when_idle(this)))

    # ---- steps ----

    def prepare(
        self,
        steps: object,
        *,
        operation_id: str | None = None,
        keep_going: bool = False,
        trace_id: str = "",
        output: bool = False,
    ) -> tuple[Operation, Callable[[], None] | None]:
        """Return the operation that runs these steps, and the work to do in some thread; None if somebody else does it
        or has done it. The work stops at the first step that fails unless `keep_going`. With `output`, the events of
        the operation have the output in pieces as it comes."""
        parsed = parse_steps(steps)
        operation_id = operation_id or secrets.token_hex(12)
        if len(operation_id) > MAX_ID or len(trace_id) > MAX_ID:
            raise SpecError(f"operation_id, trace_id: at most {MAX_ID} characters")
        wanted = json.dumps([keep_going, [dataclasses.asdict(step) for step in parsed]], sort_keys=True)
        names = sum(len(step.name) + len(step.path) for step in parsed)
        return self.once(
            operation_id,
            wanted,
            lambda operation: self._run(parsed, operation, trace_id, keep_going, output),
            steps=len(parsed),
            reserved=RECORD_BYTES * (1 + len(parsed)) + 4 * names,
        )

    def once(
        self,
        operation_id: str,
        wanted: str,
        run: Callable[[Operation], Record],
        *,
        steps: int = 0,
        reserved: int = RECORD_BYTES,
    ) -> tuple[Operation, Callable[[], None] | None]:
        """Do something for an operation id, if that was not asked for before. `wanted` describes it; `reserved` is the
        memory that its records will take."""
        if len(operation_id) > MAX_ID:
            raise SpecError(f"operation_id: at most {MAX_ID} characters")
        digest = hashlib.sha256(wanted.encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            self._check()
            operation = self._operations.get(operation_id)
            if operation is not None:
                if operation.digest != digest:
                    raise Conflict(f"operation {operation_id[:80]!r} was used for something else")
                return operation, None
            if max(len(self._operations) + 1, self._steps + steps) > MAX_OPERATIONS:
                raise SpecError(f"a session has at most {MAX_OPERATIONS} operations and steps: create another one")
            self._charge(reserved)
            self._steps += steps
            operation = self._operations[operation_id] = Operation(operation_id, digest, steps=steps, reserved=reserved)
            self._waiting += 1

        def work() -> None:
            try:
                operation.run(lambda: run(operation))
                self._keep(operation)
                if operation.error is not None and _is_safe(operation.error) and not operation.records:
                    self._take_back(operation)  # nothing has run
            finally:
                self.end_use()

        return operation, work

    def refuse(self, operation: Operation) -> None:
        """Take back an operation whose work will not be done: its id may be used again."""
        self._take_back(operation)
        operation.refused = True
        operation.run(_too_many)  # somebody may wait for it already
        self.end_use()

    def _take_back(self, operation: Operation) -> None:
        with self._lock:
            if self._operations.pop(operation.id, None) is not None:
                self._steps -= operation.steps
                self._count(-operation.reserved)

    def operation(self, operation_id: str) -> Operation:
        with self._lock:
            self._check()
            found = self._operations.get(operation_id)
        if found is None:
            raise NotFound(f"no operation {operation_id[:80]!r} of this session")
        return found

    def _run(self, steps: list[Step], operation: Operation, trace_id: str, keep_going: bool, output: bool) -> Record:
        with self._turn:
            started = now()
            records = operation.records
            for position, step in enumerate(steps):
                pieces = OutputPieces(operation.feed, position) if output else None
                with labelled(step=step.name, operation=operation.id, trace=trace_id):
                    record = self._run_step(step, pieces, operation)
                record |= {"index": len(self._history), "operationId": operation.id, "traceId": trace_id}
                with self._lock:
                    self._history.append(record)
                records.append(record)
                if self.keep_steps:
                    self._remember(f"step-{record['index']}", self.box.snapshot())
                operation.feed.append({"event": "step", "step": position, "result": record})
                if record["state"] != "Succeeded" and not keep_going:
                    break
        failed = [record for record in records if record["state"] != "Succeeded"]
        status = {
            "state": "Failed" if failed else "Succeeded",
            "stdout": "".join(record["stdout"] for record in records),
            "stderr": "".join(record["stderr"] for record in records),
            "exitCode": (failed or records)[-1]["exitCode"],
            "startedAt": started,
            "completedAt": now(),
            "steps": records,
        }
        return {"operationId": operation.id, "traceId": trace_id, "sessionId": self.id, "status": status}

    def _run_step(self, step: Step, pieces: OutputPieces | None, operation: Operation) -> Record:
        record: Record = {"name": step.name, "type": step.type, "startedAt": now()}
        if step.type == "FilePatch":
            record["path"] = step.path
            try:
                self.box.write(step.path, step.content)
                ended = {"state": "Succeeded", "exitCode": 0, "stdout": "", "stderr": ""}
            except BoxFileError as error:
                text = f"{step.path}: {error.strerror}"
                ended = {"state": "Failed", "exitCode": 1, "stdout": "", "stderr": text}
        else:
            record["command"] = list(step.command)
            limits = self.box.limits
            if step.timeout_s is not None:
                limits = dataclasses.replace(limits, wall_s=step.timeout_s)
            room = self._reserve(operation, 2 * limits.output_bytes)
            try:
                if pieces is None:
                    result = self.box.exec(step.command, env=step.env, cwd=step.cwd, limits=limits)
                else:
                    result = exec_in_pieces(self.box, step, limits, pieces)
                ended = of_result(result)
                room -= _output_size(ended)
            finally:
                with self._lock:
                    self._count(-room)
        return {**record, **ended, "completedAt": now()}

    def _reserve(self, operation: Operation, size: int) -> int:
        """Make room for the output of a step; older output makes room. Raises BoxError if the owner's sessions keep too
        much."""
        with self._lock:
            while True:
                try:
                    self._charge(size)
                    return size
                except BoxError as error:
                    if self._remembered:
                        self._forget_oldest()
                    elif operation.records:
                        raise BoxError(f"{error}; send the steps in several operations", retry=Retry.NEVER) from None
                    else:
                        raise

    def _charge(self, size: int) -> None:
        """Count bytes that the session will keep. The caller holds the lock. Raises BoxError if its owner has too
        many."""
        if self._quota is not None and not self._ended:
            self._quota.take("bytes kept", size)
            self._charged += size

    def _count(self, size: int) -> None:
        """Count bytes that the session keeps already, or no longer: below 0. The caller holds the lock."""
        if self._quota is not None and not self._ended:
            self._quota.give_back("bytes kept", -size)
            self._charged += size

    def account(self, size: int) -> None:
        """Count bytes kept for a file, or no longer: below 0. Raises BoxError if the owner has too many."""
        with self._lock:
            (self._charge if size > 0 else self._count)(size)

    def _forget_oldest(self) -> None:
        oldest = self._remembered.popleft()
        oldest.forget()
        self._kept -= oldest.size
        self._count(-oldest.size)

    def _keep(self, operation: Operation) -> None:
        """Remember what an operation has put out, which was counted before. The oldest output makes room for it."""
        with self._lock:
            self._count(operation.feed.size)
            operation.size = operation.feed.size + sum(
                _output_size(record) for record in operation.records if record["type"] == "Command"
            )
            self._kept += operation.size
            while self._kept > MAX_KEPT and self._remembered:
                self._forget_oldest()
            self._remembered.append(operation)

    def history(self) -> list[Record]:
        """Every step that has run, in order."""
        self._check()
        with self._lock:
            return list(self._history)

    # ---- terminals ----

    def start_terminal(self, command: Sequence[str], *, cwd: str | None, rows: int, cols: int) -> Process:
        """Start a shell, or a command, with a terminal. It ends with the session; an open one is no idle time."""
        with self.used():
            with self._lock:
                if sum(process.stdout.fileno() >= 0 for process in self._terminals) >= MAX_TERMINALS:
                    raise BoxError(f"a session has at most {MAX_TERMINALS} terminals at once", retry=Retry.SAFE)
            limits = limits_of_terminal(self.box.limits)
            process = self.box.start(
                command or SHELL, env={"TERM": "xterm-256color"}, cwd=cwd, limits=limits, pty=True, rows=rows, cols=cols
            )
            with self._lock:
                self._terminals.add(process)
            return process

    # ---- the journal ----

    def reward(self, reward: float | None, *, done: bool = False, seq: int | None = None) -> None:
        """Record the reward of the latest step, or of the action with this number in the journal."""
        with self.used():
            self._journal().reward(reward, done=done, of=seq)

    def trajectory(self) -> Iterator[bytes]:
        """JSON lines of every action so far: action, observation, reward, done, usage, fault."""
        return trajectory.lines(self._journal().path)

    def _journal(self) -> Journal:
        if self.box.journal is None:
            raise SpecError("the session has no journal: create it with journal=PATH, or the server with --journal")
        return self.box.journal

    # ---- network ----

    def set_network(self, network: Network | None) -> None:
        with self.used():
            self.box.set_network(network)

    def network_report(self) -> NetworkReport:
        with self.used():
            return self.box.network_report()

    # ---- files and snapshots ----

    def write(self, path: str, data: bytes, sha256: str | None = None) -> str:
        """Replace a file, and return its digest. Nothing changes if the data does not have the digest given."""
        digest = hashlib.sha256(data).hexdigest()
        if sha256 is not None and sha256.lower() != digest:
            raise SpecError(f"{path[:200]}: the data has the SHA-256 {digest}, not {sha256[:80]}")
        with self.used():
            self.box.write(path, data)
        return digest

    def read(self, path: str, max_bytes: int = 16 * MB) -> bytes:
        with self.used():
            return self.box.read(path, max_bytes)

    def snapshot(self) -> str:
        """Save the workspace, and return the name of the snapshot."""
        with self.used(), self._turn:
            name = f"snapshot-{secrets.token_hex(6)}"
            self._remember(name, self.box.snapshot())
            return name

    def copy_workspace(self) -> Snapshot:
        """The workspace as it is between two steps."""
        with self.used(), self._turn:
            return self.box.snapshot()

    def restore(self, name: str) -> None:
        """Restore the workspace from a snapshot, or from a step ("step-3") if the session keeps its steps."""
        snapshot = self.find(name)
        with self.used(), self._turn:
            self.box.restore(snapshot)

    def find(self, name: str) -> Snapshot:
        with self._lock:
            snapshot = self._snapshots.get(name)
        if snapshot is None:
            raise NotFound(f"no snapshot {name[:80]!r}; steps are kept in sessions created with keep_steps")
        return snapshot

    def _remember(self, name: str, snapshot: Snapshot) -> None:
        with self._lock:
            fresh = {digest: len(data) for digest, data in snapshot.blobs.items() if digest not in self._blobs}
            size = sum(fresh.values())
            if len(self._snapshots) >= MAX_SNAPSHOTS or self._blob_bytes + size > MAX_SNAPSHOT_BYTES:
                raise SpecError(
                    f"a session keeps at most {MAX_SNAPSHOTS} snapshots, and {MAX_SNAPSHOT_BYTES} bytes of them"
                )
            self._charge(size + sum(ENTRY_BYTES + 4 * len(path) for path in snapshot.entries))
            self._blobs |= fresh.keys()
            self._blob_bytes += size
            self._snapshots[name] = snapshot

    def fork_box(self) -> Sandbox:
        """Copy the live box, with its interpreter's memory."""
        with self.used(), self._turn:
            return self.box.fork(1)[0]

    # ---- life ----

    def used(self) -> _Use:
        return _Use(self)

    def begin_use(self) -> None:
        with self._lock:
            self._check()
            self._waiting += 1

    def end_use(self) -> None:
        with self._lock:
            self._waiting -= 1
            self._used_at = time.monotonic()

    def _check(self) -> None:
        if self._ended:
            raise BoxClosed(f"session {self.id}: {self._ended}")

    @property
    def ended(self) -> bool:
        return bool(self._ended)

    def end(self, reason: str = "it was deleted") -> None:
        """End the session with everything in its box. Idempotent."""
        with self._lock:
            if self._ended:
                return
            if self._quota is not None:
                self._quota.give_back("bytes kept", self._charged)
            self._ended = reason
            self._snapshots.clear()
            self.uploads.clear()
        for ring in self._rings:  # otherwise they would stay in memory for the time that the session could have had
            ring.cancel()
        self.box.close(reason)
        self._on_end(self)

    def end_soon(self, reason: str) -> None:
        """End the session from a thread of its own."""
        threading.Thread(target=self.end, args=(reason,), name="harena-session-end", daemon=True).start()

    def end_when_idle(self) -> float | None:
        """End the session, or return when to check again."""
        assert self.idle_s is not None
        with self._lock:
            if self._ended:
                return None
            in_use = self._waiting or any(process.stdout.fileno() >= 0 for process in self._terminals)
            due = (time.monotonic() if in_use else self._used_at) + self.idle_s
        if due > time.monotonic():
            return due
        self.end_soon(f"it was idle for {self.idle_s:g} s")
        return None


def _output_size(record: Record) -> int:
    """Memory that the output of a command takes: it is in the result of the operation once more."""
    return 2 * (sys.getsizeof(record["stdout"]) + sys.getsizeof(record["stderr"]))


def _is_safe(error: Exception) -> bool:
    return isinstance(error, BoxError) and error.retry is Retry.SAFE


def _too_many() -> Record:
    raise BoxError("the server has too many requests; try again later", retry=Retry.SAFE)


def _end_of_life(this: weakref.ref[Session]) -> None:
    session = this()
    if session is not None:
        session.end_soon(f"its lifetime of {session.lifetime_s:g} s is over")


def _end_when_idle(this: weakref.ref[Session]) -> float | None:
    session = this()
    return None if session is None else session.end_when_idle()


class _Use:
    """Pauses the idle clock of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.begin_use()

    def __exit__(self, *exc: object) -> None:
        self._session.end_use()


def new_id() -> str:
    return secrets.token_hex(12)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
