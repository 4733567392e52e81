"""Sessions on a server, over its REST API. Answers of the server are checked for their sizes and types."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import secrets
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, cast
from urllib.parse import quote

from harena.errors import BackendUnavailable, BoxError, HarenaError, Retry, SpecError, WireError
from harena.node import messages
from harena.node.place import Address, Trust
from harena.sandbox.network import Network, NetworkReport
from harena.sandbox.process import Process
from harena.sandbox.spec import MB, Limits, Spec
from harena.sessions import errors
from harena.sessions.batches import BatchWork
from harena.sessions.engines.connections import new_connection, opened
from harena.sessions.operations import OnOutput, OnStep, Record, call_back, with_steps
from harena.sessions.pools import ALLOCATION_S
from harena.sessions.steps import parse_steps
from harena.sessions.transfers import CHUNK, DIGEST, PIECE, FileDownload, read_body

MAX_ANSWER = 300 * MB
TIMEOUT_S = 30.0
"""For a connection, and for a piece of a request or an answer that is not an execution."""
EXECUTE_S = 8 * 86400.0
STREAM_S = 60.0
"""A server sends something on a stream of events at least every 15 seconds."""
TRIES = 3
"""How often a request that may be repeated is sent when the connection was lost."""


class RemoteEngine:
    """Every request names what it is about, so any connection will do. Connections are kept for the next request."""

    def __init__(self, server: str, token: str | None, trust: Trust | None = None) -> None:
        """`trust`: who the server must be, if not by the certificates of the system."""
        self._place = Address.parse(server, trust)
        self._token = token
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()
        weakref.finalize(self, _close_all, self._idle)

    # ---- pools ----

    def create_pool(
        self,
        name: str,
        namespace: str,
        *,
        image: str | None,
        spec: Spec | None,
        limits: Limits | None,
        replicas: int,
        idle_s: float | None,
        lifetime_s: float | None,
        allocation_s: float | None,
    ) -> Record:
        body: Record = {"name": name, "namespace": namespace, "image": image, "replicas": replicas}
        return self._ask(
            "POST", "/v1/pools", {**body, **_contents(spec, limits), **_clocks(idle_s, lifetime_s, allocation_s)}
        )

    def scale_pool(self, name: str, namespace: str, replicas: int) -> Record:
        return self._ask("PATCH", f"/v1/pools/{_part(namespace)}/{_part(name)}", {"replicas": replicas}, again=True)

    def drain_pool(self, name: str, namespace: str) -> Record:
        return self._ask("POST", f"/v1/pools/{_part(namespace)}/{_part(name)}/drain", again=True)

    def batch(
        self,
        programs: Sequence[str],
        *,
        stdin: Sequence[bytes] | None,
        limits: Limits | None,
        pool_ref: str | None,
        namespace: str,
        image: str | None,
        spec: Spec | None,
        run: str,
        agent: str,
    ) -> Iterator[Record]:
        """Programs whose results were lost with a connection are sent again."""
        BatchWork(programs=programs, stdin=stdin, limits=limits, run=run, agent=agent)
        more = {"poolRef": pool_ref, "namespace": namespace, "image": image, **_contents(spec, limits)}
        more |= {"run": run, "agent": agent}
        return self._batch(list(programs), stdin, more)

    def _batch(self, programs: list[str], stdin: Sequence[bytes] | None, more: Record) -> Iterator[Record]:
        left, failures = list(range(len(programs))), 0
        while left:
            body = {**more, "programs": [programs[index] for index in left]}
            if stdin is not None:
                body["stdin"] = [base64.b64encode(stdin[index]).decode() for index in left]
            sent, done = left, set[int]()
            try:
                for event in self._lines("/v1/batch", body):
                    kind = messages.word(event.get("event"), ("result", "end", "error"))
                    if kind == "end":
                        break
                    if kind == "error":
                        raise errors.error_in(event.get("error"))
                    position = messages.whole(event.get("index"), 0, len(sent) - 1)
                    if position in done:
                        raise WireError("the server sent a result twice")
                    done.add(position)
                    failures = 0
                    yield {**{name: value for name, value in event.items() if name != "event"}, "index": sent[position]}
            except (OSError, http.client.HTTPException) as error:
                failures += 1
                if isinstance(error, HarenaError) or failures >= TRIES:
                    raise self._lost(error) from None
                time.sleep(0.1 * failures)
            else:
                if len(done) != len(sent):
                    raise WireError("the server left out results of a batch")
            left = [index for position, index in enumerate(sent) if position not in done]

    def pool(self, name: str, namespace: str) -> Record:
        return self._ask("GET", f"/v1/pools/{_part(namespace)}/{_part(name)}")

    def pool_status(self, name: str, namespace: str) -> Record:
        return self._ask("GET", f"/v1/pools/{_part(namespace)}/{_part(name)}/status")

    def delete_pool(self, name: str, namespace: str) -> None:
        self._ask("DELETE", f"/v1/pools/{_part(namespace)}/{_part(name)}")

    # ---- sessions ----

    def create_session(self, **options: Any) -> Record:
        if options.pop("journal", None) is not None:
            raise SpecError("journal: the server keeps it (harena serve --journal FOLDER); `trajectory` reads it")
        contents = _contents(options.pop("spec", None), options.pop("limits", None))
        names = {
            "pool_ref": "poolRef",
            "keep_steps": "keepSteps",
        }
        clocks = _clocks(*(options.pop(name) for name in ("idle_s", "lifetime_s", "allocation_s")))
        body = {names.get(name, name): value for name, value in options.items()}
        takes_s = clocks.get("allocationSeconds") or ALLOCATION_S
        return self._ask("POST", "/v1/sessions", {**body, **contents, **clocks}, takes_s=takes_s)

    def delete_session(self, session_id: str) -> None:
        self._ask("DELETE", f"/v1/sessions/{_part(session_id)}")

    def holder(self, session_id: str) -> RemoteEngine:
        return self

    def execute(
        self,
        session_id: str,
        steps: object,
        *,
        operation_id: str,
        keep_going: bool,
        trace_id: str,
        on_step: OnStep | None,
        on_output: OnOutput | None,
    ) -> Record:
        """May be sent again when the connection was lost, since the server runs an operation id only once."""
        parse_steps(steps)
        operation_id = operation_id or secrets.token_hex(12)
        body = {"steps": steps, "operationId": operation_id, "keepGoing": keep_going, "traceId": trace_id}
        path = f"/v1/sessions/{_part(session_id)}/execute"
        if on_step is None and on_output is None:
            return self._ask("POST", path, body, takes_s=EXECUTE_S, again=True)
        body["stream"] = "steps" if on_output is None else "output"
        records: list[Record] = []
        for event in self._events(path, body):
            call_back(event, on_step, on_output)
            if event["event"] == "step":
                records.append(event["result"])
            elif event["event"] == "error":
                raise errors.error_in(event["error"])
            elif event["event"] == "end":
                return with_steps(event["result"], records)
        raise AssertionError("unreachable")

    def _events(self, path: str, body: Record) -> Iterator[Record]:
        """Events up to the last one. When the connection is lost, a new one continues where it was."""
        number, failures = 0, 0
        while True:
            try:
                for line in self._lines(path, {**body, "after": number}):
                    event = event_in(line, number)
                    number, failures = event["number"], 0
                    yield event
                    if event["event"] in ("end", "error"):
                        return
            except (OSError, http.client.HTTPException) as error:
                failures += 1
                if isinstance(error, HarenaError) or failures >= TRIES:
                    raise self._lost(error) from None
                time.sleep(0.1 * failures)

    def _lost(self, error: Exception) -> Exception:
        if isinstance(error, HarenaError):  # the server's own word
            return error
        return BoxError(f"{self._place.url}: the connection was lost: {type(error).__name__}", retry=Retry.UNKNOWN)

    def _lines(self, path: str, body: Record) -> Iterator[Record]:
        """Objects of a stream. Raises OSError or HTTPException if it ends without its last one."""
        with contextlib.closing(self._open(path, body)) as response:
            while line := response.readline(MAX_ANSWER + 1):
                if not line.endswith(b"\n"):
                    raise http.client.IncompleteRead(line) if len(line) <= MAX_ANSWER else _too_long()
                if line != b"\n":  # by which the server shows that it is there
                    yield _object(line)
            raise http.client.IncompleteRead(b"")

    def _open(self, path: str, body: Record) -> http.client.HTTPResponse:
        """Send a request whose answer is a stream of lines."""
        connection = self._new_connection()
        connection.timeout = STREAM_S
        headers = {**self._headers(), "Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request("POST", path, json.dumps(body).encode(), headers)
            response = connection.getresponse()  # it keeps the socket for itself
        except BaseException:
            connection.close()
            raise
        if response.status != 200:
            raise self._refusal(response.status, response.read(MAX_ANSWER))
        return response

    def evaluate(
        self,
        session_id: str,
        steps: object,
        *,
        image: str | None,
        spec: Spec | None,
        limits: Limits | None,
        operation_id: str,
        keep_going: bool,
        trace_id: str,
    ) -> Record:
        parse_steps(steps)
        body = {"steps": steps, "operationId": operation_id, "keepGoing": keep_going, "traceId": trace_id}
        path = f"/v1/sessions/{_part(session_id)}/evaluate"
        body |= {"image": image, **_contents(spec, limits)}
        return self._ask("POST", path, body, takes_s=EXECUTE_S, again=True)

    def history(self, session_id: str) -> list[Record]:
        found = self._ask("GET", f"/v1/sessions/{_part(session_id)}/history")
        return cast("list[Record]", messages.field(found, "history", list))

    def trajectory(self, session_id: str) -> Iterator[Record]:
        text = self._exchange("GET", f"/v1/sessions/{_part(session_id)}/trajectory", None, {}, TIMEOUT_S, again=True)
        for line in text.splitlines():
            yield _object(line)

    def reward(self, session_id: str, reward: float | None, *, done: bool, seq: int | None) -> None:
        body = {"reward": reward, "done": done, "seq": seq}
        self._ask("POST", f"/v1/sessions/{_part(session_id)}/reward", body, again=True)

    def get(self, path: str) -> Record:
        """Ask for something that the server knows."""
        return self._ask("GET", path)

    def write(self, session_id: str, path: str, data: bytes) -> str:
        """Send a large file in pieces, so that a lost connection costs only one."""
        headers = {DIGEST: hashlib.sha256(data).hexdigest()}
        session, name = f"/v1/sessions/{_part(session_id)}", f"path={quote(path, safe='')}"
        if len(data) <= PIECE:
            self._ask("PUT", f"{session}/files?{name}", data=data, headers=headers, again=True)
            return headers[DIGEST]
        upload, start = secrets.token_hex(12), 0
        try:
            while start < len(data):
                piece = data[start : start + PIECE]
                headers["Content-Range"] = f"bytes {start}-{start + len(piece) - 1}/{len(data)}"
                where = f"{session}/files?{name}&upload={upload}"
                answer = self._ask("PUT", where, data=piece, headers=headers, takes_s=STREAM_S, again=True)
                start = messages.whole(answer.get("received"), start + 1, start + len(piece))
        except BaseException:
            with contextlib.suppress(Exception):
                self._ask("DELETE", f"{session}/uploads/{upload}")
            raise
        return headers[DIGEST]

    def read(self, session_id: str, path: str) -> bytes:
        """When the connection is lost, a new one continues with what is missing."""
        where = f"/v1/sessions/{_part(session_id)}/files?path={quote(path, safe='')}"
        download, failures = FileDownload(path, MAX_ANSWER), 0
        while not download.is_complete:
            had = len(download.data)
            try:
                self._receive(where, download, self._new_connection() if failures else self._connection()[0])
            except (OSError, http.client.HTTPException) as error:
                failures = failures + 1 if len(download.data) < had + CHUNK else 1
                if isinstance(error, HarenaError) or failures >= TRIES:
                    raise self._lost(error) from None
                time.sleep(0.1 * failures)
        return download.checked()

    def _receive(self, where: str, download: FileDownload, connection: http.client.HTTPConnection) -> None:
        """Receive what is missing of a file. Raises OSError or HTTPException if the connection is lost."""
        try:
            connection.timeout = STREAM_S
            if connection.sock is not None:
                connection.sock.settimeout(STREAM_S)
            connection.request("GET", where, headers={**download.headers(), **self._headers()})
            response = connection.getresponse()
            if response.status >= 400:
                raise self._refusal(response.status, read_body(response, MAX_ANSWER))
            download.receive(response)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)

    def snapshot(self, session_id: str) -> str:
        return messages.field(self._ask("POST", f"/v1/sessions/{_part(session_id)}/snapshots"), "name", str)

    def restore(self, session_id: str, name: str) -> None:
        self._ask("POST", f"/v1/sessions/{_part(session_id)}/restore", {"name": name})

    def fork(self, session_id: str, at: str | None) -> Record:
        return self._ask("POST", f"/v1/sessions/{_part(session_id)}/fork", {"at": at})

    def start_terminal(self, session_id: str, *, command: list[str], cwd: str | None, rows: int, cols: int) -> Process:
        from harena.sessions.terminal import open_terminal

        return open_terminal(
            self._place, self._token, _part(session_id), command=command, cwd=cwd, rows=rows, cols=cols
        )

    def metrics(self) -> str:
        """Return what the server counts, in the text format of Prometheus."""
        return self._exchange("GET", "/metrics", None, {}, TIMEOUT_S, again=True).decode("utf-8", "replace")

    def set_network(self, session_id: str, network: Network | None) -> None:
        body = {"network": messages.network_out(network)}
        self._ask("PUT", f"/v1/sessions/{_part(session_id)}/network", body, again=True)

    def network_report(self, session_id: str) -> NetworkReport:
        return messages.report_in(self._ask("GET", f"/v1/sessions/{_part(session_id)}/network"))

    # ---- HTTP ----

    def _ask(
        self,
        method: str,
        path: str,
        body: Record | None = None,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        takes_s: float = 0.0,
        again: bool = False,
    ) -> Record:
        headers = headers or {}
        if body is not None:
            data, headers = json.dumps(body).encode(), {**headers, "Content-Type": "application/json"}
        again = again or method == "GET"
        return _object(self._exchange(method, path, data, headers, takes_s + TIMEOUT_S, again=again))

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], wait_s: float, *, again: bool
    ) -> bytes:
        headers, sent = {**headers, **self._headers()}, False
        for left in reversed(range(TRIES)):
            connection, used = self._connection()
            try:
                opened(connection, TIMEOUT_S).settimeout(wait_s)
                sent = True
                connection.request(method, path, data, headers)
                response = connection.getresponse()
                text = read_body(response, MAX_ANSWER + 1)
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if left and (again or (used and isinstance(error, http.client.RemoteDisconnected))):
                    continue  # nothing was done, or it may be done again; a kept connection is closed when it is idle
                retry = Retry.UNKNOWN if sent else Retry.SAFE
                raise BoxError(f"{self._place.url}: {type(error).__name__}: {error}", retry=retry) from None
        else:
            raise AssertionError("unreachable")
        if len(text) > MAX_ANSWER:
            connection.close()
            raise _too_long()
        with self._lock:
            self._idle.append(connection)
        if response.status >= 400:
            raise self._refusal(response.status, text)
        return text

    def _headers(self) -> dict[str, str]:
        token = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return {"Host": self._place.host, **token}

    def _refusal(self, status: int, text: bytes) -> Exception:
        if status == 401:
            return BackendUnavailable(f"{self._place.url}: the server does not accept the token; set HARENA_TOKEN")
        return _error(status, text)

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        with self._lock:
            if os.getpid() != self._process:  # those of the parent process are not ours
                _close_all(self._idle)
                self._process = os.getpid()
            if self._idle:
                return self._idle.pop(), True
        return self._new_connection(), False

    def _new_connection(self) -> http.client.HTTPConnection:
        return new_connection(self._place)


def _object(text: bytes) -> Record:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("the server sent something else than JSON") from None
    if not isinstance(found, dict):
        raise WireError("the server sent something else than an object")
    return cast("Record", found)


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def event_in(event: Record, after: int) -> Record:
    """Check an event of a server."""
    messages.whole(event.get("number"), after + 1)
    kind = messages.word(event.get("event"), ("output", "step", "end", "error"))
    if kind == "output":
        messages.whole(event.get("step"))
        messages.word(event.get("stream"), ("stdout", "stderr"))
        messages.field(event, "data", str)
    elif kind == "step":
        record = cast("Record", messages.field(event, "result", dict))
        messages.field(record, "stdout", str)
        messages.field(record, "stderr", str)
    elif kind == "end":
        messages.field(cast("Record", messages.field(event, "result", dict)), "status", dict)
    else:
        messages.field(event, "error", dict)
    return event


def _too_long() -> WireError:
    return WireError("the server sent an answer that is too long")


def _part(text: str) -> str:
    if not text or text in (".", ".."):
        raise SpecError(f"{text!r}: not a name")
    return quote(text, safe="")


def _clocks(idle_s: float | None, lifetime_s: float | None, allocation_s: float | None) -> Record:
    """Those that were given; the server has its own for the others."""
    given = {"idleSeconds": idle_s, "lifetimeSeconds": lifetime_s, "allocationSeconds": allocation_s}
    return {name: float(value) for name, value in given.items() if value is not None}


def _contents(spec: Spec | None, limits: Limits | None) -> Record:
    return {
        "spec": None if spec is None else messages.spec_out(spec),
        "limits": None if limits is None else messages.limits_out(limits),
    }


def _error(status: int, text: bytes) -> Exception:
    try:
        return errors.error_in(json.loads(text)["error"])
    except (ValueError, RecursionError, LookupError, TypeError, WireError):
        return BoxError(f"the server answered with status {status}", retry=Retry.UNKNOWN)
