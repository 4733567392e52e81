"""Plays many matches in parallel, at most one per processor: each worker is a process pinned to one.

Guarantees: there is a result for every accepted match; a worker that dies voids its match and
is replaced; `close`, or the end of this process, leaves no worker and no box behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from harena import trace
from harena.errors import HarenaError, SpecError
from harena.match.result import AgentCode, MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus, VoidCause
from harena.match.run import worker
from harena.node import variables
from harena.sandbox import backend as backends

END_S = 10.0
_log = logging.getLogger("harena.match")


class Handle:
    """A submitted match. Thread-safe."""

    def __init__(
        self,
        id: int,
        spec: MatchSpec,
        seeds: list[int] | None,
        on_event: Callable[[dict[str, Any]], object] | None,
        cancel: Callable[[Handle], None],
    ) -> None:
        self.id = id
        self.spec = spec
        self.seeds = seeds
        self.on_event = on_event
        self.trace = trace.current()
        """What the match follows from."""
        self.began_ns = 0
        self._cancel = cancel
        self._ended = threading.Event()
        self._results: list[MatchResult] = []
        self._error: HarenaError | None = None
        self._callbacks: list[Callable[[Handle], object]] = []
        self._lock = threading.Lock()

    def result(self, timeout: float | None = None) -> MatchResult:
        return self.results(timeout)[0]

    def results(self, timeout: float | None = None) -> list[MatchResult]:
        """Results of lockstep games, one per seed."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"match {self.spec.match_id or self.id} has not ended within {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self._results

    def done(self) -> bool:
        return self._ended.is_set()

    def cancel(self) -> None:
        """Cancel the match; its result then says so. Does nothing if it has ended."""
        self._cancel(self)

    def add_done_callback(self, callback: Callable[[Handle], object]) -> None:
        """Call a function once when the match has ended; from another thread, or at once."""
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def tell(self, event: dict[str, Any]) -> None:
        if self.on_event is None:
            return
        try:
            self.on_event(event)
        except Exception:
            self.on_event = None  # the match continues; the listener has failed
            _log.exception("match %s: its listener failed and hears no more", self.spec.match_id or self.id)

    def finish(self, results: list[MatchResult], error: HarenaError | None = None) -> None:
        if self.trace is not None and self.began_ns:
            _record(self.trace, self.spec, self.began_ns, results, error)
        with self._lock:
            self._results, self._error = results, error
            self._ended.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def finish_without(self, status: MatchStatus, error: str, cause: VoidCause | None = None) -> None:
        self.finish(without_result(self.spec, self.seeds, status, error, cause))


def _record(
    parent: trace.SpanPlace, spec: MatchSpec, began_ns: int, results: list[MatchResult], error: HarenaError | None
) -> None:
    """Report a match that has ended, and its boxes."""
    ended_ns = time.time_ns()
    void = next((str(one.cause.value) for one in results if one.cause), "")
    match = trace.record(
        f"match {spec.environment}",
        parent=parent,
        began_ns=began_ns,
        ended_ns=ended_ns,
        error=type(error).__name__ if error else void,
        match_id=spec.match_id,
        games=len(results),
        status=results[0].status.value if results else None,
        steps=sum(one.steps for one in results),
    )
    for seat in range(len(spec.agents)):
        played = [one.seats[seat] for one in results if seat < len(one.seats)]
        trace.record(
            f"box {seat}",
            parent=match,
            began_ns=began_ns,
            ended_ns=ended_ns,
            agent=spec.agents[seat].name,
            status=next((one.status.value for one in played if one.status is not SeatStatus.OK), SeatStatus.OK.value),
            start_s=max((one.start_s for one in played), default=0.0),
            cpu_s=sum(one.cpu_s for one in played),
            moves=sum(one.moves for one in played),
        )


def without_result(
    spec: MatchSpec, seeds: Sequence[int] | None, status: MatchStatus, error: str, cause: VoidCause | None = None
) -> list[MatchResult]:
    """The results of a match that was not played to its end; of lockstep games, one per seed."""
    seats = tuple(
        SeatResult(agent=code.name, status=SeatStatus.OK, reason="", score=0.0, cpu_s=0.0, moves=0, start_s=0.0, log="")
        for code in spec.agents
    )
    return [
        MatchResult(
            match_id=spec.match_id,
            environment=spec.environment,
            seed=seed,
            status=status,
            winner=None,
            reason="",
            steps=0,
            wall_s=0.0,
            seats=seats,
            error=error,
            cause=cause,
        )
        for seed in seeds or [spec.seed]
    ]


class _WorkerProcess:
    def __init__(self, cpu: int, backend: str, token: str | None) -> None:
        self.cpu = cpu
        self.sock, theirs = socket.socketpair()
        command = [sys.executable, "-m", "harena.match.run.worker", str(theirs.fileno()), str(cpu), backend]
        env = None if token is None else variables.environment_with(token)  # everyone can read the command
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env)
        self.handle: Handle | None = None
        self._sending = threading.Lock()

    def send(self, order: worker.Order) -> None:
        with self._sending, contextlib.suppress(OSError):  # it has died: it will be heard of
            worker.send(self.sock, order)

    def end(self, wait_s: float) -> None:
        self.sock.close()  # it hears that
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def check(spec: object, seeds: Sequence[int] | None = None) -> None:
    """Check that a spec can be sent to a worker, so that a mistake is reported to the caller."""
    if not isinstance(spec, MatchSpec):
        raise SpecError(f"a match is a MatchSpec, not {_named(spec)}")
    for at, code in enumerate(cast("Sequence[object]", spec.agents)):
        if not isinstance(code, AgentCode):
            raise SpecError(f"agents[{at}] is {_named(code)}: load it with harena.match.agent.load.load")
        if not all(type(name) is str and type(data) is bytes for name, data in code.files.items()):
            raise SpecError(f"agents[{at}]: its files are bytes by their names")
    bare = tuple(dataclasses.replace(code, files={}) for code in spec.agents)
    job = worker.MatchJob(0, dataclasses.replace(spec, agents=bare), None if seeds is None else [*seeds])
    try:
        worker.decode_order(worker.encode(job))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SpecError(f"the match cannot be sent to a worker: {error}") from None


def _named(value: object) -> str:
    return f"the class {value.__qualname__}" if isinstance(value, type) else f"{type(value).__name__} {value!r:.60}"


class Runner:
    def __init__(self, workers: int | None = None, *, backend: str = "local", token: str | None = None) -> None:
        """`backend`: where the agents' boxes are made, such as the URL of a server; the games stay here."""
        self._place = backend, token
        cpus = sorted(os.sched_getaffinity(0))
        count = workers or len(cpus)
        if not 1 <= count <= len(cpus):
            raise SpecError(f"workers={count}: at most one for each of the {len(cpus)} processors")
        self._lock = threading.Lock()
        self._todo: deque[Handle] = deque()
        self._next_id = 0
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._bell, self._rung = socket.socketpair()
        self._rung.setblocking(False)
        self._selector.register(self._rung, selectors.EVENT_READ, None)
        self._workers: list[_WorkerProcess] = []
        for cpu in cpus[:count]:
            self._hire(cpu)
        self._thread = threading.Thread(target=self._manage, name="harena-runner", daemon=True)
        self._thread.start()

    @property
    def workers(self) -> int:
        return len(self._workers)

    def boxes(self) -> dict[str, int]:
        """Boxes of this runner by what they do: `busy` in a match, `warm` for the next one; and `leaked` boxes of this
        machine, whose process is gone."""
        owners, leaked = backends.box_owners(self._place[0])
        with self._lock:
            busy = {one.process.pid for one in self._workers if one.handle is not None}
            mine = {one.process.pid for one in self._workers}
        counted = {"busy": sum(pid in busy for pid in owners), "warm": sum(pid in mine - busy for pid in owners)}
        return counted | {"leaked": leaked}

    def submit(
        self,
        spec: MatchSpec,
        on_event: Callable[[dict[str, Any]], object] | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Handle:
        """Submit a match. Matches are played in the order of submission. With `seeds`, lockstep games are played.
        Raises SpecError for an invalid spec."""
        check(spec, seeds)
        with self._lock:
            if self._closed:
                raise HarenaError("the runner is closed")
            self._next_id += 1
            handle = Handle(self._next_id, spec, None if seeds is None else [*seeds], on_event, self._cancel)
            self._todo.append(handle)
        self._ring()
        return handle

    def run(
        self, specs: Sequence[MatchSpec], progress: Callable[[int, int], object] | None = None
    ) -> list[MatchResult]:
        """Play all matches and return results in order; progress(done, all) is called after each. An exception cancels
        the rest."""
        handles = [self.submit(spec) for spec in specs]
        done = 0
        ended: deque[Handle] = deque()
        news = threading.Semaphore(0)

        def note(handle: Handle) -> None:
            ended.append(handle)
            news.release()

        try:
            for handle in handles:
                handle.add_done_callback(note)
            while done < len(handles):
                news.acquire()
                ended.popleft().results()
                done += 1
                if progress is not None:
                    progress(done, len(handles))
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        return [handle.result() for handle in handles]

    def evaluate(self, spec: MatchSpec, seeds: Sequence[int]) -> list[MatchResult]:
        """Play lockstep games of the same agents, distributed over the workers."""
        share = -(-len(seeds) // self.workers)
        parts = [self.submit(spec, seeds=seeds[at : at + share]) for at in range(0, len(seeds), share)]
        return [result for part in parts for result in part.results()]

    def close(self) -> None:
        """Cancel all waiting and running matches."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._ring()
        self._thread.join()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- the thread that looks after the workers ----

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._bell.send(b".")

    def _hire(self, cpu: int) -> None:
        new = _WorkerProcess(cpu, *self._place)
        self._workers.append(new)
        self._selector.register(new.sock, selectors.EVENT_READ, new)

    def _cancel(self, handle: Handle) -> None:
        with self._lock:
            waiting = handle in self._todo
            if waiting:
                self._todo.remove(handle)
            at_work = next((one for one in self._workers if one.handle is handle), None)
        if waiting:
            handle.finish_without(MatchStatus.CANCELLED, "the match was cancelled before it began")
        elif at_work is not None:
            at_work.send(worker.Cancel(handle.id))

    def _manage(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        self._rung.recv(4096)
                else:
                    self._hear(key.data)
            self._hand_out()
        self._dismiss_all()

    def _hear(self, one: _WorkerProcess) -> None:
        data = worker.receive(one.sock)
        if data is None:
            return self._replace(one)
        report = worker.decode_report(data)
        handle = one.handle
        if isinstance(report, worker.Ready) or handle is None or report.id != handle.id:
            return None
        if isinstance(report, worker.Happened):
            handle.tell(report.event)
            return None
        with self._lock:
            one.handle = None
        if isinstance(report, worker.JobDone):
            handle.finish(report.results)
        else:
            handle.finish([], SpecError(report.text) if report.bad_spec else HarenaError(report.text))
        return None

    def _replace(self, one: _WorkerProcess) -> None:
        """It has died, and its boxes with it."""
        self._selector.unregister(one.sock)
        one.end(END_S)
        with self._lock:
            self._workers.remove(one)
            handle = one.handle
        if handle is not None:
            code = one.process.returncode
            error = f"the worker that played it died (status {code})"
            handle.finish_without(MatchStatus.VOID, error, VoidCause.WORKER_LOST)
        if not self._closed:
            self._hire(one.cpu)

    def _hand_out(self) -> None:
        for one in self._workers:
            with self._lock:
                if one.handle is not None or not self._todo:
                    continue
                handle = one.handle = self._todo.popleft()
            handle.began_ns = time.time_ns()
            one.send(worker.MatchJob(handle.id, handle.spec, handle.seeds, handle.on_event is not None))

    def _dismiss_all(self) -> None:
        for handle in [*self._todo, *(one.handle for one in self._workers if one.handle)]:
            handle.finish_without(MatchStatus.CANCELLED, "the runner was closed")
        self._todo.clear()
        for one in self._workers:
            self._selector.unregister(one.sock)
            one.sock.close()
        for one in self._workers:
            one.end(END_S)
        self._selector.close()
        self._bell.close()
        self._rung.close()
