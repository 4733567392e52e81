"""Requests to the Kubernetes API over kept connections, and watches. Thread-safe.

Answers are bounded in size and must be JSON objects. A request is repeated only where nothing can have happened twice.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import cast
from urllib.parse import quote, urlencode, urlsplit

from harena.errors import BackendUnavailable, BoxError, Retry
from harena.kube import names
from harena.kube.config import ClusterAccess
from harena.kube.objects import Object, part

MAX_ANSWER = 256 << 20
MAX_LINE = 16 << 20
"""Largest object in a watch."""
TIMEOUT_S = 30.0
WATCH_S = 300
"""After this time the server ends a watch, which is then begun again."""
IDLE_S = 30.0
"""A kept connection that was unused for longer may have been dropped on the way, and is not used again."""
TRIES = 3


MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class KubeError(BoxError):
    """The API refused a request, or it could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        retry = Retry.SAFE if status in (0, 409, 429) or status >= 500 else Retry.NEVER
        super().__init__(f"Kubernetes API: {message} ({status} {reason})" if status else message, retry=retry)
        self.status = status
        self.reason = reason


class KubeApi:
    def __init__(self, access: ClusterAccess, *, count: Callable[[str, str], object] | None = None) -> None:
        """`count` is called with the method and the path of each request, for metrics."""
        self._access = access
        parts = urlsplit(access.server)
        self._host, self._port, self._base = parts.hostname or "", parts.port or 443, parts.path.rstrip("/")
        self._lock = threading.Lock()
        self._idle: list[tuple[http.client.HTTPSConnection, float]] = []
        self._process = os.getpid()
        self._count = count
        weakref.finalize(self, _close_all, self._idle)

    @property
    def namespace(self) -> str:
        """The namespace of the access, for calls that name none."""
        return self._access.namespace

    # ---- objects ----

    def get(self, path: str) -> Object:
        return self.request("GET", path)

    def list(self, path: str, *, labels: str = "", limit: int | None = None) -> Object:
        return self.request("GET", path, query=_query(labelSelector=labels, limit=limit))

    def create(self, path: str, body: Object) -> Object:
        return self.request("POST", path, body)

    def patch(self, path: str, body: Object | list[Object]) -> Object:
        """A list is a JSON patch, with its tests; an object is a merge patch."""
        return self.request("PATCH", path, body, kind=JSON_PATCH if isinstance(body, list) else MERGE)

    def replace(self, path: str, body: Object) -> Object:
        return self.request("PUT", path, body)

    def delete(self, path: str, *, grace_s: int | None = None, uid: str | None = None) -> None:
        """Idempotent: nothing to delete is no error. With `uid`, nothing of the same name that came later is
        deleted."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            self.request("DELETE", path, body, again=True)
        except KubeError as error:
            if error.status != 404 and not (uid and error.status == 409):
                raise

    def delete_all(self, path: str, *, labels: str) -> None:
        self.request("DELETE", path, query=_query(labelSelector=labels), again=True)

    # ---- HTTP ----

    def request(
        self,
        method: str,
        path: str,
        body: Object | list[Object] | None = None,
        *,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        again: bool = False,
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        where = f"{self._base}{path}" + (f"?{urlencode(query)}" if query else "")
        again = again or method == "GET"
        for left in reversed(range(TRIES)):
            connection, used = self._connection(timeout_s)
            try:
                connection.request(method, where, data, self._headers(kind if data else None))
                response = connection.getresponse()
                text = response.read(MAX_ANSWER + 1)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if left and (again or (used and isinstance(error, http.client.RemoteDisconnected))):
                    time.sleep(0.0 if used else 0.2)
                    continue
                raise KubeError(0, "", f"{self._access.server}: {type(error).__name__}: {error}") from None
            finally:
                if self._count is not None:
                    self._count(method, path)
            self._keep(connection, response.will_close)
            return _answer(response.status, text)
        raise AssertionError("unreachable")

    def _headers(self, kind: str | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "harena"}
        if kind is not None:
            headers["Content-Type"] = kind
        token = self._access.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _connection(self, timeout_s: float) -> tuple[http.client.HTTPSConnection, bool]:
        with self._lock:
            if os.getpid() != self._process:  # those of the parent process are not ours
                _close_all(self._idle)
                self._process = os.getpid()
            while self._idle:
                connection, since = self._idle.pop()
                if time.monotonic() - since < IDLE_S:
                    connection.sock.settimeout(timeout_s)
                    return connection, True
                connection.close()
        return self._new(timeout_s), False

    def _new(self, timeout_s: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._access.context)

    def _keep(self, connection: http.client.HTTPSConnection, will_close: bool) -> None:
        if will_close:
            connection.close()
            return
        with self._lock:
            self._idle.append((connection, time.monotonic()))

    # ---- watches ----

    def watch(
        self, path: str, version: str, *, labels: str = "", fields: str = "", within_s: float = WATCH_S
    ) -> Generator[tuple[str, Object]]:
        """Yield the type (ADDED, MODIFIED, DELETED, BOOKMARK) and the object of each event after `version`, until the
        server ends the watch. Raises KubeError; status 410: the version is too old, so list again."""
        query = _query(
            watch="1",
            resourceVersion=version,
            labelSelector=labels,
            fieldSelector=fields,
            allowWatchBookmarks="true",
            timeoutSeconds=max(1, int(within_s)),
        )
        connection = self._new(within_s + TIMEOUT_S)
        if self._count is not None:
            self._count("WATCH", path)
        try:
            connection.request("GET", f"{self._base}{path}?{urlencode(query)}", headers=self._headers(None))
            response = connection.getresponse()
            if response.status != 200:
                _answer(response.status, response.read(MAX_LINE))
            while line := response.readline(MAX_LINE + 1):
                event = _parse(line)
                found = part(event, "object")
                if event.get("type") == "ERROR":
                    raise KubeError(int(found.get("code") or 500), str(found.get("reason")), str(found.get("message")))
                yield str(event.get("type")), found
        except (OSError, http.client.HTTPException) as error:
            raise KubeError(0, "", f"{self._access.server}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()


def _close_all(connections: list[tuple[http.client.HTTPSConnection, float]]) -> None:
    while connections:
        connections.pop()[0].close()


def path(namespace: str | None, resource: str, name: str = "", sub: str = "") -> str:
    """Return the path of a resource: "pods", "warmpools" or "GROUP/VERSION/RESOURCE". Without a namespace: of all."""
    group = names.GROUPS.get(resource, "")
    if resource.count("/") == 2:
        group, _, resource = resource.rpartition("/")
    root = "/api/v1" if not group else f"/apis/{group}"
    where = f"{root}/namespaces/{quote(namespace, safe='')}" if namespace else root
    return "/".join([f"{where}/{resource}", *(quote(part, safe="") for part in (name, sub) if part)])


def _query(**given: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if value not in (None, "")}


def _parse(text: bytes) -> Object:
    if len(text) > MAX_LINE:
        raise KubeError(0, "", "the Kubernetes API sent an object that is too large")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise KubeError(0, "", "the Kubernetes API sent something else than JSON") from None
    if not isinstance(found, dict):
        raise KubeError(0, "", "the Kubernetes API sent something else than an object")
    return cast("Object", found)


def _answer(status: int, text: bytes) -> Object:
    if len(text) > MAX_ANSWER:
        raise KubeError(0, "", "the Kubernetes API sent an answer that is too long")
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError
    except (ValueError, RecursionError):
        if status < 400:
            raise KubeError(0, "", "the Kubernetes API sent something else than a JSON object") from None
        found = {"reason": "", "message": text[:200].decode("utf-8", "replace")}
    answer = cast("Object", found)
    if status == 401:
        raise BackendUnavailable("the Kubernetes API does not accept the credentials of this kubeconfig")
    if status >= 400:
        raise KubeError(status, str(answer.get("reason") or ""), str(answer.get("message") or "")[:1000])
    return answer
