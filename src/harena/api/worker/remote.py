"""A worker on another machine: pulls jobs over HTTP, does them here, and sends back what happened.

Guarantees: it does as many jobs at once as it has slots, keeps their leases while it works, and drops a job as soon as
the server says that it is lost or cancelled; told to stop, it finishes what it has and takes nothing more; told twice,
it gives everything back. A server that is away is asked again, and meanwhile nothing is lost but time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

import harena
from harena import trace
from harena.arena.queue.workers import may_try_again
from harena.arena.work import orders
from harena.arena.work.perform import Bench, perform
from harena.errors import BackendUnavailable, HarenaError, SpecError
from harena.match import registry

WAIT_S = 5.0
"""How long the server holds a claim open. A worker that is told to stop waits for its answer."""
REQUEST_S = 60.0
AGAIN_S, MAX_AGAIN_S = 0.5, 15.0
REFRESH_S = 60.0
FRAMES_S = 0.2
MAX_FRAMES = 200
SIGNALS_S = 0.5
"""The kernel may hand a signal to another thread; Python's handler runs when the main thread wakes up."""
_log = logging.getLogger("harena.worker")


class WorkerRefused(SpecError):
    """The server does not take this worker: the message says why."""


class GivenJob(msgspec.Struct, frozen=True):
    job_id: int
    fence: int
    kind: str
    lease_s: float
    order: bytes
    trace: str = ""
    """The traceparent of what it follows from."""


@dataclass(slots=True, eq=False)
class _Doing:
    given: GivenJob
    beaten_at: float = field(default_factory=time.monotonic)
    lost: threading.Event = field(default_factory=threading.Event)
    frames: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class RemoteWorker:
    def __init__(
        self,
        server: str,
        token: str,
        bench: Bench,
        *,
        name: str,
        slots: int,
        environments: Sequence[str] = (),
        done: Callable[[str, str], object] = lambda kind, how: None,
    ) -> None:
        """`environments`: only these; empty: all that can be played here. `done` is told the kind of each job and how
        it ended."""
        headers = {"Authorization": f"Bearer {token}", "User-Agent": f"harena-worker/{harena.__version__}"}
        limits = httpx.Limits(max_connections=2 * slots + 4)
        self._http = httpx.Client(base_url=server, headers=headers, timeout=REQUEST_S, limits=limits)
        self._bench = bench
        self._name = name
        self._slots = slots
        self._only = frozenset(environments)
        self._done = done
        self._served: list[str] = []
        self._kinds: list[str] = []
        self._looked_at = 0.0
        self._doing: set[_Doing] = set()
        self._lock = threading.Lock()
        self._stopping, self._hurry = threading.Event(), threading.Event()
        self._refused: WorkerRefused | None = None

    # ---- start and stop ----

    def connect(self) -> list[str]:
        """Ask the server what there is to do; returns the environments that this worker serves."""
        self._look()
        return self._served

    def run(self) -> None:
        """Until `stop`. Raises WorkerRefused when the server does not take this worker any more."""
        threads = [threading.Thread(target=self._work, name=f"harena-slot-{n}") for n in range(self._slots)]
        keeper = threading.Thread(target=self._keep, name="harena-leases", daemon=True)
        for thread in (*threads, keeper):
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(SIGNALS_S)
        self._hurry.set()
        keeper.join()
        self._http.close()
        if self._refused is not None:
            raise self._refused

    def stop(self) -> None:
        """Take no more jobs; a second call gives back what is being done."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    # ---- a thread for each slot ----

    def _work(self) -> None:
        wait_s = AGAIN_S
        while not self._stopping.is_set():
            try:
                given = self._claim()
                wait_s = AGAIN_S
            except WorkerRefused as error:
                self._refused = error
                self._stopping.set()
                return
            except (httpx.HTTPError, BackendUnavailable) as error:
                _log.warning("the server cannot be asked for jobs now: %s", error)
                self._stopping.wait(wait_s)
                wait_s = min(MAX_AGAIN_S, wait_s * 2)
                continue
            if given is None:
                continue
            if self._stopping.is_set():
                self._tell(given, "release")
                return
            self._do(given)

    def _claim(self) -> GivenJob | None:
        if time.monotonic() - self._looked_at > REFRESH_S:
            self._look()
        body = {"name": self._name, "kinds": self._kinds, "environments": self._served, "wait_s": WAIT_S}
        answer = self._http.post("/v1/worker/claim", json=body)
        if answer.status_code == 204:
            return None
        return msgspec.msgpack.decode(_checked(answer).content, type=GivenJob)

    def _look(self) -> None:
        told = _checked(self._http.get("/v1/worker")).json()
        if told["version"] != harena.__version__:
            raise WorkerRefused(
                f"the server is Harena {told['version']}, this worker {harena.__version__}: install the same version"
            )
        served = [*told["scripts"], *(env_id for env_id in told["games"] if _can_play(env_id))]
        if self._only:
            served = [env_id for env_id in served if env_id in self._only]
        if served != self._served and (left_out := set(told["games"]) - set(served)):
            _log.warning("not served here: %s", ", ".join(sorted(left_out)))
        self._served, self._kinds, self._looked_at = served, told["kinds"], time.monotonic()

    def _do(self, given: GivenJob) -> None:
        doing = _Doing(given)
        with self._lock:
            self._doing.add(doing)
        what: dict[str, int | str] = {"job": given.job_id, "kind": given.kind}
        with trace.span(f"job {given.kind}", parent=trace.parse(given.trace), worker=self._name, **what) as span:
            how = self._do_traced(doing, what)
            span.note(outcome=how)
        self._done(given.kind, how)

    def _do_traced(self, doing: _Doing, what: dict[str, int | str]) -> str:
        given = doing.given
        _log.info("job %s (%s) started", given.job_id, given.kind, extra=what)
        try:
            order = orders.decode_order(given.order)
            answer = perform(
                order, self._bench, lambda: doing.lost.is_set() or self._hurry.is_set(), doing.frames.append
            )
            how = self._send(given, orders.encode(answer))
        except Exception as error:
            how = self._failed(doing, error)
        finally:
            with self._lock:
                self._doing.discard(doing)
        _log.info("job %s (%s) %s", given.job_id, given.kind, how, extra=what)
        return how

    def _send(self, given: GivenJob, answer: bytes) -> str:
        """Hand over what was done; a server that is away for a moment gets it later, until the lease is over."""
        end, wait_s = time.monotonic() + given.lease_s * 4, AGAIN_S
        while True:
            try:
                sent = self._post(given, "result", content=answer)
            except httpx.HTTPError as error:
                _log.warning("the result of job %s cannot be sent now: %s", given.job_id, error)
                sent = None
            if sent is not None and sent.status_code < 500:
                if sent.status_code == 409:
                    return "lost"
                if sent.status_code >= 400:
                    _log.error("the result of job %s was refused: %s", given.job_id, _said(sent))
                    return "refused"
                return "done"
            if time.monotonic() > end or self._hurry.wait(wait_s):
                self._tell(given, "release")
                return "given back"
            wait_s = min(MAX_AGAIN_S, wait_s * 2)

    def _failed(self, doing: _Doing, error: Exception) -> str:
        if doing.lost.is_set():
            return "lost"
        if self._hurry.is_set():
            self._tell(doing.given, "release")
            return "given back"
        level = logging.WARNING if isinstance(error, HarenaError) else logging.ERROR
        _log.log(level, "job %s (%s) failed: %s", doing.given.job_id, doing.given.kind, error, exc_info=error)
        reason = str(error) if isinstance(error, HarenaError) else f"{type(error).__name__}: {error}"
        self._tell(doing.given, "failed", json={"reason": reason[:4000], "retry": may_try_again(error)})
        return "failed"

    # ---- leases ----

    def _keep(self) -> None:
        while not self._hurry.wait(FRAMES_S) or self._doing:
            with self._lock:
                doing = list(self._doing)
            for one in doing:
                frames, one.frames[:] = one.frames[:MAX_FRAMES], []
                if frames:
                    self._tell(one.given, "frames", content=msgspec.json.encode(frames))
                if time.monotonic() - one.beaten_at > one.given.lease_s / 3:
                    self._beat(one)

    def _beat(self, one: _Doing) -> None:
        try:
            answer = self._post(one.given, "heartbeat")
        except httpx.HTTPError as error:
            _log.warning("no heartbeat of job %s now: %s", one.given.job_id, error)
            return
        if answer.status_code == 409:
            one.lost.set()
        elif answer.is_success:
            one.beaten_at = time.monotonic()

    def _tell(self, given: GivenJob, what: str, **more: Any) -> None:
        """What need not be heard: the lease says the same in the end."""
        try:
            self._post(given, what, **more)
        except httpx.HTTPError as error:
            _log.warning("job %s: %s could not be told: %s", given.job_id, what, error)

    def _post(self, given: GivenJob, what: str, **more: Any) -> httpx.Response:
        query = {"name": self._name, "fence": given.fence}
        headers = {"traceparent": trace.traceparent() or given.trace}
        return self._http.post(f"/v1/worker/jobs/{given.job_id}/{what}", params=query, headers=headers, **more)


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.status_code in (401, 403):
        raise WorkerRefused(f"{_said(answer)}: give a token whose key has the scope worker (--token)")
    if answer.status_code >= 400:
        raise BackendUnavailable(f"status {answer.status_code}: {_said(answer)}")
    return answer


def _said(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])[:300]
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"


def _can_play(env_id: str) -> bool:
    try:
        registry.make(env_id)
    except Exception:  # whatever its code does here
        return False
    return True
