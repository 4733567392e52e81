"""Claims of warm pods: one patch of a pod's label that only one client can win.

Guarantees: two clients never get the same pod; a claim names a server whose certificate and token are those of that
pod. The namespace is the border of trust: clients that can read the Secret of a pool can reach all of its pods.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import os
import random
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

from harena.errors import BackendUnavailable, BoxError, QueueTimeout, Retry
from harena.kube import names
from harena.kube.api import KubeApi, KubeError, path
from harena.kube.objects import Object, items, part
from harena.node.place import Trust

FRESH_S = 5.0
"""How long a listed pod is taken for idle. A claim of one that is not fails, and the next one is tried."""
POLL_S = 0.5
TAKEN = (409, 422)
"""How the API answers a patch whose test failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A pod that belongs to this client."""

    namespace: str
    pool: str
    pod: str
    uid: str
    url: str
    token: str
    trust: Trust
    boxes: int = 1
    """How many boxes the pool wants in a pod."""
    sandbox: str = ""
    """The Sandbox object that the pod was made for, if the pool had none ready."""


@dataclass(frozen=True, slots=True)
class _Credentials:
    key: bytes
    authority: str


class PoolClient:
    """Claims pods of one pool. Thread-safe."""

    def __init__(self, api: KubeApi, namespace: str, pool: str) -> None:
        self.api = api
        self.namespace = namespace
        self.pool = pool
        self._lock = threading.Lock()
        self._candidates: deque[str] = deque()
        self._listed_at = 0.0
        self._credentials: _Credentials | None = None

    # ---- claims ----

    def claim(self, wait_s: float) -> Claim:
        """Take an idle pod; if there is none, have one made. Raises QueueTimeout."""
        deadline = time.monotonic() + wait_s
        found = self._warm()
        return found if found is not None else self._cold(deadline)

    def _warm(self) -> Claim | None:
        for again in (False, True):
            for name in self._idle(again):
                taken = self._take(name)
                if taken is not None:
                    return taken
        return None

    def _idle(self, again: bool) -> Generator[str]:
        """Pods to try: those listed before, or freshly listed ones."""
        with self._lock:
            if time.monotonic() - self._listed_at > FRESH_S:
                self._candidates.clear()
        if again:
            listed = self.api.list(path(self.namespace, "pods"), labels=self._selector())["items"]
            ready = [str(pod["metadata"]["name"]) for pod in listed if is_ready(pod)]
            random.shuffle(ready)  # so that clients at once try different ones
            with self._lock:
                self._candidates = deque(ready)
                self._listed_at = time.monotonic()
        return self._pop_all()

    def _pop_all(self) -> Generator[str]:
        while True:
            with self._lock:
                if not self._candidates:
                    return
                name = self._candidates.popleft()
            yield name

    def _selector(self) -> str:
        return f"{names.POOL}={self.pool},{names.STATE}={names.IDLE}"

    def _take(self, name: str) -> Claim | None:
        notes = {
            names.CLAIMED_AT: timestamp(datetime.datetime.now(datetime.UTC)),
            names.CLAIMED_BY: f"{socket.gethostname()}/{os.getpid()}",
        }
        patch = claim_patch(self.pool, secrets.token_hex(8), notes)
        try:
            pod = self.api.patch(path(self.namespace, "pods", name), patch)
        except KubeError as error:
            if error.status == 404 or error.status in TAKEN:
                return None
            raise
        if not is_ready(pod):
            self.api.delete(path(self.namespace, "pods", name), uid=pod["metadata"]["uid"])
            return None
        return self._claimed(pod, "")

    def _claimed(self, pod: Object, sandbox: str) -> Claim:
        meta = pod["metadata"]
        notes = part(meta, "annotations")
        boxes = str(notes.get(names.BOXES, "1"))
        credentials = self._pool_credentials(notes.get(names.AUTHORITY_DIGEST, ""))
        return Claim(
            namespace=self.namespace,
            pool=self.pool,
            pod=meta["name"],
            uid=meta["uid"],
            url=url_of(pod["status"]["podIP"]),
            token=pod_token(credentials.key, self.namespace, meta["name"]),
            trust=Trust(credentials.authority, names.server_name(self.namespace, meta["name"])),
            boxes=int(boxes) if boxes.isdigit() else 1,
            sandbox=sandbox,
        )

    def release(self, claim: Claim) -> None:
        """Delete the pod with everything in it. Idempotent."""
        if claim.sandbox:
            self.api.delete(path(self.namespace, "sandboxes", claim.sandbox))
        self.api.delete(path(self.namespace, "pods", claim.pod), grace_s=1, uid=claim.uid)

    # ---- no pod is ready ----

    def _cold(self, deadline: float) -> Claim:
        self.get_pool()  # raises if there is none
        body: Object = {
            "apiVersion": names.API_VERSION,
            "kind": "Sandbox",
            "metadata": {"generateName": f"{self.pool[:40]}-"},
            "spec": {"poolRef": self.pool, "keepAlive": True},
        }
        made = self.api.create(path(self.namespace, "sandboxes"), body)
        name = str(made["metadata"]["name"])
        try:
            return self._bound(name, str(made["metadata"]["resourceVersion"]), deadline)
        except BaseException:
            with contextlib.suppress(BoxError):
                self.api.delete(path(self.namespace, "sandboxes", name))
            raise

    def _bound(self, name: str, version: str, deadline: float) -> Claim:
        why = "the operator has not answered; is it running?"
        while (left := deadline - time.monotonic()) > 0:
            try:
                where = path(self.namespace, "sandboxes")
                for kind, found in self.api.watch(where, version, fields=f"metadata.name={name}", within_s=left):
                    version = str(found["metadata"]["resourceVersion"])
                    status: Object = part(found, "status")
                    if kind == "DELETED" or status.get("phase") == "Released":
                        raise BoxError(f"sandbox {name}: {message_of(status) or 'it was deleted'}", retry=Retry.SAFE)
                    if status.get("phase") == "Bound":
                        return self._claimed(self.api.get(path(self.namespace, "pods", str(status["podName"]))), name)
                    why = message_of(status) or why
            except KubeError as error:
                if error.status not in (0, 410, 429) and error.status < 500:
                    raise
                time.sleep(POLL_S)
                version = ""  # begins with what is there now
        raise QueueTimeout(f"pool {self.namespace}/{self.pool} had no pod ready in time: {why}")

    # ---- the pool ----

    def get_pool(self) -> Object:
        try:
            return self.api.get(path(self.namespace, "warmpools", self.pool))
        except KubeError as error:
            if error.status == 404:
                raise BackendUnavailable(
                    f"no warm pool {self.pool!r} in namespace {self.namespace!r}: kubectl get warmpools -A"
                ) from None
            raise

    def _pool_credentials(self, digest: str) -> _Credentials:
        """`digest`: of the authority that the pod has its certificate from. A pool that was deleted and created again
        has another one."""
        with self._lock:
            if self._credentials is None or authority_digest(self._credentials.authority) != digest:
                secret = self.api.get(path(self.namespace, "secrets", names.clients_secret(self.pool)))
                data = part(secret, "data")
                try:
                    self._credentials = _Credentials(
                        base64.b64decode(data[names.KEY], validate=True),
                        base64.b64decode(data[names.AUTHORITY], validate=True).decode(),
                    )
                except (LookupError, ValueError):
                    raise BackendUnavailable(
                        f"Secret {names.clients_secret(self.pool)}: damaged; delete it, and restart the operator"
                    ) from None
            return self._credentials


def pod_token(key: bytes, namespace: str, pod: str) -> str:
    """Token of a pod's server. Pods do not know the key, so none can speak to another."""
    digest = hmac.digest(key, f"harena pod {namespace}/{pod}".encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def authority_digest(authority: str) -> str:
    return hashlib.sha256(authority.encode()).hexdigest()[:32]


def is_ready(pod: Object) -> bool:
    """Whether a pod serves, and is not being deleted."""
    status = part(pod, "status")
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in items(status, "conditions"))
    return ready and bool(status.get("podIP")) and not pod["metadata"].get("deletionTimestamp")


def message_of(status: Object) -> str:
    """Why something is not ready, by its conditions."""
    for one in items(status, "conditions"):
        if one.get("type") == "Ready" and one.get("status") != "True":
            return str(one.get("message") or one.get("reason") or "")
    return ""


def timestamp(when: datetime.datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def url_of(address: str) -> str:
    """URL of a pod's server."""
    shown = f"[{address}]" if ":" in address else address
    return f"https://{shown}:{names.PORT}"


def claim_patch(pool: str, sandbox: str, notes: dict[str, str]) -> list[Object]:
    """A patch that claims an idle pod of a pool. The API tests and changes in one step, so one client wins."""
    label, note = "/metadata/labels/", "/metadata/annotations/"
    return [
        {"op": "test", "path": label + _escape(names.STATE), "value": names.IDLE},
        {"op": "test", "path": label + _escape(names.POOL), "value": pool},
        {"op": "replace", "path": label + _escape(names.STATE), "value": names.ALLOCATED},
        {"op": "add", "path": label + _escape(names.SANDBOX), "value": sandbox},
        *({"op": "add", "path": note + _escape(name), "value": value} for name, value in notes.items()),
    ]


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
