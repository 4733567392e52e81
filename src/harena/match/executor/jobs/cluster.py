"""One cluster: its pods by one watch for all matches of this executor, logs of containers as streams, and clean-up of
what ended executors left. Guarantees: a watch that breaks is begun again with a new list, so no change is missed for
good; one stream of log lines can be ended from another thread.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import logging
import socket
import threading
import time
from collections.abc import Generator, Mapping
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

from harena.errors import HarenaError
from harena.kube.api import KubeApi, KubeError, path
from harena.kube.config import ClusterAccess
from harena.match.executor.jobs import manifest
from harena.match.executor.jobs.pod_state import PodPhase, PodState, state_of

log = logging.getLogger("harena.executor")

JOBS = "batch/v1/jobs"
LOG_TIMEOUT_S = 30.0
"""For the answer to a request for a log; the lines that follow may take as long as they like."""
MAX_LINE = 1 << 20
BACK_OFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
SWEEP_EVERY_S = 60.0


class PodNews:
    """The latest state of one Job's pod."""

    def __init__(self) -> None:
        self.pod = ""
        self.state = PodState(PodPhase.WAITING)
        self._changed = threading.Condition()
        self._listener: LogStream | None = None

    def update(self, pod: str, state: PodState) -> None:
        with self._changed:
            self.pod, self.state = pod, state
            self._changed.notify_all()
            listener = self._listener
        if listener is not None and state.phase in (PodPhase.LOST, PodPhase.BROKEN):
            listener.abort()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            listener = self._listener
        if listener is not None:
            listener.abort()

    def listen(self, stream: LogStream | None) -> None:
        """The stream to end when the pod is lost."""
        with self._changed:
            self._listener = stream

    def wait(self, wait_s: float) -> None:
        """Wait for a change, or for `wake`."""
        with self._changed:
            self._changed.wait(wait_s)


class LogStream:
    """Lines of a container's log while they are written."""

    def __init__(self, access: ClusterAccess, where: str, query: Mapping[str, str]) -> None:
        parts = urlsplit(access.server)
        self._url = f"{parts.path.rstrip('/')}{where}?{urlencode(query)}"
        token = access.token()
        self._headers = {"User-Agent": "harena", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port or 443, timeout=LOG_TIMEOUT_S, context=access.context
        )
        self._socket: socket.socket | None = None
        self._aborted = False

    def lines(self) -> Generator[str]:
        """Ends with the container's log, when the connection breaks, or after `abort`."""
        try:
            self._connection.connect()
            self._socket = cast(Any, self._connection).sock
            if self._aborted:
                return
            self._connection.request("GET", self._url, headers=self._headers)
            response = self._connection.getresponse()
            if response.status != 200:
                text = response.read(1000).decode("utf-8", "replace")
                raise KubeError(response.status, response.reason, f"no log: {text}")
            cast(Any, self._socket).settimeout(None)
            while line := response.readline(MAX_LINE):
                yield line.decode("utf-8", "replace").rstrip("\n")
        except (OSError, http.client.HTTPException):
            return
        finally:
            self._connection.close()

    def abort(self) -> None:
        self._aborted = True
        connected = self._socket
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)


class ClosingApi(KubeApi):
    """An API whose kept connections can be closed."""

    def close(self) -> None:
        with self._lock:
            kept, self._idle = self._idle, []
        for connection, _ in kept:
            connection.close()


class Cluster:
    def __init__(self, access: ClusterAccess, namespace: str, instance: str, *, ttl_s: float, name: str = "") -> None:
        self.name = name
        self.api = ClosingApi(access)
        self.namespace = namespace
        self.playing = 0
        self._access = access
        self._instance = instance
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._news: dict[str, PodNews] = {}
        self._closed = threading.Event()
        self._swept_at = -SWEEP_EVERY_S
        self._thread = threading.Thread(target=self._watch_pods, name=f"pods {name}", daemon=True)

    def start(self) -> None:
        """Check that the cluster answers and that we may do what we need. Raises HarenaError."""
        self.api.list(path(self.namespace, "pods"), labels=self._selector, limit=1)
        self.sweep()
        self._thread.start()

    def close(self) -> None:
        self._closed.set()  # the watch, in a daemon thread, ends with its next event
        self.api.close()

    @property
    def _selector(self) -> str:
        return f"{manifest.INSTANCE}={self._instance}"

    # ---- jobs ----

    @contextlib.contextmanager
    def following(self, job: str) -> Generator[PodNews]:
        news = PodNews()
        with self._lock:
            self._news[job] = news
        try:
            yield news
        finally:
            with self._lock:
                del self._news[job]

    def create(self, job: Mapping[str, Any], data: Mapping[str, str]) -> str:
        """Create a Job and its Secret; returns the Job's uid. The Secret belongs to the Job, so that it cannot outlive
        it; the pod waits for it."""
        made = self.api.create(path(self.namespace, JOBS), dict(job))
        uid = str(made["metadata"]["uid"])
        try:
            self.api.create(path(self.namespace, "secrets"), manifest.secret(made, data))
        except HarenaError:
            self.delete(str(job["metadata"]["name"]))
            raise
        return uid

    def delete(self, job: str) -> None:
        try:
            self.api.delete(path(self.namespace, JOBS, job))
        except KubeError as error:
            log.warning("the Job %s could not be deleted, its deadline ends it: %s", job, error)

    def log(self, pod: str, container: str, *, follow: bool = False, max_bytes: int | None = None) -> LogStream:
        query = {"container": container}
        if follow:
            query["follow"] = "true"
        if max_bytes is not None:
            query["limitBytes"] = str(max_bytes)
        return LogStream(self._access, path(self.namespace, "pods", pod, "log"), query)

    # ---- the watch ----

    def _watch_pods(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                version = self._list_pods()
                for kind, pod in self.api.watch(path(self.namespace, "pods"), version, labels=self._selector):
                    failures = 0
                    if kind != "BOOKMARK":
                        self._tell(pod, deleted=kind == "DELETED")
                    if self._closed.is_set():
                        return
            except HarenaError as error:
                if not isinstance(error, KubeError) or error.status != 410:
                    log.warning("the watch of pods is begun again: %s", error)
                self._closed.wait(BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)])
                failures += 1
            except Exception:
                log.exception("the watch of pods failed")
                self._closed.wait(BACK_OFF_S[-1])

    def _list_pods(self) -> str:
        listed = self.api.list(path(self.namespace, "pods"), labels=self._selector)
        pods = cast("list[dict[str, Any]]", listed.get("items") or [])
        present = {self._tell(pod) for pod in pods}
        with self._lock:
            vanished = [news for job, news in self._news.items() if news.pod and job not in present]
        for news in vanished:
            news.update(news.pod, PodState(PodPhase.LOST, "the pod was deleted"))
        return str(listed["metadata"]["resourceVersion"])

    def _tell(self, pod: Mapping[str, Any], *, deleted: bool = False) -> str:
        metadata = cast("Mapping[str, Any]", pod.get("metadata") or {})
        job = str(cast("Mapping[str, Any]", metadata.get("labels") or {}).get("job-name") or "")
        with self._lock:
            news = self._news.get(job)
        if news is not None:
            news.update(str(metadata.get("name")), state_of(pod, deleted=deleted))
        return job

    # ---- clean-up ----

    def sweep(self) -> None:
        """Delete Jobs that ended longer ago than their time to live: clusters before 1.21 do not, and the executor of
        some may be gone."""
        if time.monotonic() - self._swept_at < SWEEP_EVERY_S:
            return
        self._swept_at = time.monotonic()
        selector = f"{manifest.MANAGED_BY}={manifest.MANAGER}"
        listed = self.api.list(path(self.namespace, JOBS), labels=selector)
        for job in cast("list[dict[str, Any]]", listed.get("items") or []):
            name = str(job["metadata"]["name"])
            if name not in self._news and ended_s_ago(job, time.time()) > self._ttl_s:
                self.delete(name)


def ended_s_ago(job: Mapping[str, Any], now: float) -> float:
    """Seconds since a Job ended; negative while it runs."""
    status = cast("Mapping[str, Any]", job.get("status") or {})
    for condition in cast("list[dict[str, Any]]", status.get("conditions") or []):
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            try:
                ended = datetime.datetime.fromisoformat(str(condition.get("lastTransitionTime")))
            except ValueError:
                return 0.0
            return max(0.0, now - ended.timestamp())
    return -1.0
