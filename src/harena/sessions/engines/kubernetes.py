"""Sessions and warm pools on a Kubernetes cluster. Pools are WarmPool objects; a session lives on the server of a pod.

The client that created a session holds it: its pod is found by nobody else. A session that is not deleted ends by its
idle and lifetime clocks, and its pod after it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from harena.errors import SpecError, Unsupported
from harena.kube import config, names
from harena.kube.api import KubeApi, KubeError, path
from harena.kube.claims import Claim, PoolClient, message_of
from harena.kube.objects import Object, items, part
from harena.kube.placement import PodPlace, PodPlacement
from harena.sandbox.spec import Limits, Spec
from harena.sessions.engines.remote import RemoteEngine
from harena.sessions.errors import Conflict, NotFound
from harena.sessions.operations import Record

IDLE_S = 3600.0
"""A session that was given no idle clock has this one: its client may be gone."""
HOPELESS = {"ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName", "InvalidTemplate", "PodRefused"}
"""Reasons of a pool's condition after which somebody has to change something."""


class KubernetesEngine:
    poll_s = 0.2
    """How often a pool is asked whether it is ready."""

    def __init__(self, context: str | None = None) -> None:
        self._api = KubeApi(config.load(context=context))
        self._lock = threading.Lock()
        self._placements: dict[tuple[str, str], PodPlacement[RemoteEngine]] = {}
        self._sessions: dict[str, tuple[PodPlacement[RemoteEngine], PodPlace[RemoteEngine]]] = {}

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
        if (idle_s, lifetime_s, allocation_s) != (None, None, None):
            raise SpecError("idle_s, lifetime_s, allocation_s: pools of a cluster have none; give these to the session")
        if spec is not None or limits is not None:
            raise SpecError("spec, limits: pools of a cluster have an image and a template; give these to the session")
        body: Object = {
            "apiVersion": names.API_VERSION,
            "kind": "WarmPool",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"replicas": replicas, **({} if image is None else {"image": image})},
        }
        try:
            return _view(self._api.create(path(namespace, "warmpools"), body))
        except KubeError as error:
            if error.status == 409:
                raise Conflict(f"there is a pool {name!r} in {namespace!r} already") from None
            if error.status == 404:
                raise NotFound(
                    f"namespace {namespace!r} is not there, or the cluster does not know WarmPool: "
                    "kubectl apply -f deploy/k8s/crds"
                ) from None
            if error.status == 422:
                raise SpecError(str(error)) from None
            raise

    def pool(self, name: str, namespace: str) -> Record:
        return _view(self._get(name, namespace))

    def pool_status(self, name: str, namespace: str) -> Record:
        status = part(self._get(name, namespace), "status")
        ready = int(status.get("ready") or 0)
        return {
            "total": int(status.get("total") or 0),
            "ready_idle": ready,
            "allocated": int(status.get("allocated") or 0),
            "available": ready,
        }

    def delete_pool(self, name: str, namespace: str) -> None:
        self._get(name, namespace)
        self._api.delete(path(namespace, "warmpools", name))
        with self._lock:
            self._placements.pop((namespace, name), None)

    def scale_pool(self, name: str, namespace: str, replicas: int) -> Record:
        raise Unsupported(f"kubectl scale warmpool {name} --replicas={replicas}: pools of a cluster are scaled there")

    def drain_pool(self, name: str, namespace: str) -> Record:
        raise Unsupported("drain_warmpool: pools of a cluster are not drained; scale them to 0 with kubectl")

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
        raise Unsupported("run_batch: not on pools of a cluster; use SandboxPool.map")

    def _get(self, name: str, namespace: str) -> Object:
        try:
            return self._api.get(path(namespace, "warmpools", name))
        except KubeError as error:
            if error.status == 404:
                raise NotFound(f"no pool {name[:80]!r} in {namespace[:80]!r}") from None
            raise

    # ---- sessions ----

    def create_session(self, **options: Any) -> Record:
        pool, namespace = options.pop("pool_ref", None), options.pop("namespace", "default")
        if pool is None or options.pop("image", None) is not None:
            raise SpecError("pool_ref: a session on a cluster comes from a pool, and has the pool's image")
        if options.get("idle_s") is None:
            options["idle_s"] = IDLE_S
        placement = self._placement(namespace, pool)
        place = placement.enter(float(options.get("allocation_s") or 60.0))
        try:
            made = place.connection.create_session(**options)
        except BaseException:
            placement.leave(place)
            raise
        return self._hold(placement, place, made)

    def _hold(self, placement: PodPlacement[RemoteEngine], place: PodPlace[RemoteEngine], made: Record) -> Record:
        with self._lock:
            self._sessions[str(made["id"])] = placement, place
        return {**made, "podName": place.claim.pod, "namespace": place.claim.namespace}

    def _placement(self, namespace: str, pool: str) -> PodPlacement[RemoteEngine]:
        with self._lock:
            if (namespace, pool) not in self._placements:
                client = PoolClient(self._api, namespace, pool)
                self._placements[(namespace, pool)] = PodPlacement(client, _connect, lambda engine: True)
            return self._placements[(namespace, pool)]

    def holder(self, session_id: str) -> RemoteEngine:
        """Return the server of the pod that has the session."""
        with self._lock:
            held = self._sessions.get(session_id)
        if held is None:
            raise NotFound(f"no session {session_id[:80]!r}: it has ended, or another process created it")
        return held[1].connection

    def delete_session(self, session_id: str) -> None:
        engine = self.holder(session_id)
        with self._lock:
            placement, place = self._sessions.pop(session_id)
        try:
            if place.held > 1:
                engine.delete_session(session_id)  # else it ends with its pod
        finally:
            placement.leave(place)

    def fork(self, session_id: str, at: str | None) -> Record:
        made = self.holder(session_id).fork(session_id, at)
        with self._lock:
            placement, place = self._sessions[session_id]
        placement.enter_same(place)
        return self._hold(placement, place, made)


def _connect(claim: Claim) -> RemoteEngine:
    return RemoteEngine(claim.url, claim.token, claim.trust)


def _view(pool: Object) -> Record:
    meta, spec, status = pool["metadata"], part(pool, "spec"), part(pool, "status")
    reasons = {one.get("reason") for one in items(status, "conditions")}
    phase = "Failed" if reasons & HOPELESS else status.get("phase") or "Pending"
    return {
        "name": meta["name"],
        "namespace": meta["namespace"],
        "image": spec.get("image"),
        "replicas": spec.get("replicas", 1),
        "phase": phase,
        "message": message_of(status),
        "ready": int(status.get("ready") or 0),
        "allocated": int(status.get("allocated") or 0),
        "total": int(status.get("total") or 0),
        "createdAt": meta.get("creationTimestamp"),
    }
