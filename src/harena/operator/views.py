"""What the operator reads of objects: closed views, made from whatever users and Kubernetes wrote."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import dataclass
from typing import Any, cast

from harena.kube import names
from harena.kube.claims import is_ready
from harena.kube.objects import Object, items, part

STUCK = {
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
}
"""Reasons of a waiting container that do not go away by themselves."""
IDLE_SECONDS, LIFETIME_SECONDS = 30, 86400
REVISED = ("image", "template", "isolation", "idleSeconds", "diskMb")
"""Fields of a pool that its pods are made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    name: str
    uid: str = ""
    state: str = names.IDLE
    sandbox: str = ""
    revision: str = ""
    ip: str = ""
    ready: bool = False
    finished: bool = False
    """True once one of its containers has ended: pods are used once."""
    deleting: bool = False
    problem: str = ""
    """Why it does not become ready, as Kubernetes says."""
    created_at: float = 0.0
    claimed_at: float = 0.0
    finished_at: float = 0.0
    lifetime_s: float = LIFETIME_SECONDS
    pool: str = ""
    sandbox_uid: str = ""
    """Uid of the Sandbox object that decides about the pod; empty if a client claimed it directly."""
    probed: bool = False
    """True once the operator has asked the server whether the pod is used."""

    @property
    def live(self) -> bool:
        return not self.finished and not self.deleting


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    replicas: int = 1
    recreate: bool = False
    """Update strategy: True replaces idle pods at once, False as they are claimed."""
    revision: str = ""
    deleting: bool = False
    finalized: bool = False
    """True if it has our finalizer."""
    invalid: str = ""
    """Why no pod can be made from it."""
    phase: str = ""
    """As it was last written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxView:
    name: str
    namespace: str
    uid: str = ""
    pool: str = ""
    keep_alive: bool = False
    ttl_s: float | None = None
    """How long a released one is kept."""
    lifetime_s: float | None = None
    deleting: bool = False
    finalized: bool = False
    phase: str = ""
    pod: str = ""
    allocated_at: float = 0.0
    released_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    name: str
    namespace: str
    uid: str = ""
    sandbox: str = ""
    state: str = ""
    created_at: float = 0.0
    completed_at: float = 0.0
    ttl_s: float | None = None
    deleting: bool = False

    @property
    def ended(self) -> bool:
        return self.state in ("Succeeded", "Failed")


def pod_view(pod: Object) -> PodView:
    meta, status = pod["metadata"], part(pod, "status")
    labels, notes = part(meta, "labels"), part(meta, "annotations")
    containers = [*items(status, "initContainerStatuses"), *items(status, "containerStatuses")]
    ended = [one["state"]["terminated"] for one in items(status, "containerStatuses") if _state(one, "terminated")]
    finished = status.get("phase") in ("Succeeded", "Failed") or bool(ended)
    times = [when(one.get("finishedAt")) for one in ended]
    created_at = when(meta.get("creationTimestamp"))
    return PodView(
        name=meta["name"],
        uid=meta.get("uid", ""),
        state=labels.get(names.STATE, names.IDLE),
        sandbox=labels.get(names.SANDBOX, ""),
        revision=labels.get(names.REVISION, ""),
        ip=status.get("podIP", ""),
        ready=not finished and is_ready(pod),
        finished=finished,
        deleting=bool(meta.get("deletionTimestamp")),
        problem=_problem(status, containers, ended),
        created_at=created_at,
        # A client's clock may be wrong: it cannot have claimed the pod before it was there.
        claimed_at=max(created_at, when(notes.get(names.CLAIMED_AT))),
        finished_at=max([created_at, *times]),
        lifetime_s=_number(notes.get(names.LIFETIME), LIFETIME_SECONDS),
        pool=labels.get(names.POOL, ""),
        sandbox_uid=notes.get(names.SANDBOX_UID, ""),
    )


def _problem(status: Object, containers: list[Object], ended: list[Object]) -> str:
    for one in containers:
        waiting = _state(one, "waiting")
        if waiting.get("reason") in STUCK:
            return f"{waiting['reason']}: {one.get('name')}: {waiting.get('message') or one.get('image')}"[:500]
    if status.get("reason") or status.get("message"):
        return f"{status.get('reason') or 'Failed'}: {status.get('message') or ''}"[:500]
    for one in ended:
        if one.get("exitCode") != 0:
            return f"{one.get('reason') or 'Error'}: exit code {one.get('exitCode')}: kubectl logs shows why"[:500]
    for one in items(status, "conditions"):
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return f"{one.get('reason')}: {one.get('message')}"[:500]
    return ""


def _state(container: Object, name: str) -> Object:
    return cast("Object", part(container, "state").get(name) or {})


def pool_view(pool: Object, server_image: str, invalid: str = "") -> PoolView:
    meta, spec, status = pool["metadata"], part(pool, "spec"), part(pool, "status")
    return PoolView(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta.get("uid", ""),
        generation=int(meta.get("generation") or 0),
        replicas=int(spec.get("replicas", 1)),
        recreate=part(spec, "updateStrategy").get("type") == "Recreate",
        revision=revision(spec, server_image),
        deleting=bool(meta.get("deletionTimestamp")),
        finalized=names.FINALIZER in items(meta, "finalizers"),
        invalid=invalid,
        phase=str(status.get("phase") or ""),
    )


def sandbox_view(sandbox: Object) -> SandboxView:
    meta, spec, status = sandbox["metadata"], part(sandbox, "spec"), part(sandbox, "status")
    return SandboxView(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta.get("uid", ""),
        pool=str(spec.get("poolRef") or ""),
        keep_alive=bool(spec.get("keepAlive")),
        ttl_s=spec.get("ttlSecondsAfterFinished"),
        lifetime_s=spec.get("lifetimeSeconds"),
        deleting=bool(meta.get("deletionTimestamp")),
        finalized=names.FINALIZER in items(meta, "finalizers"),
        phase=str(status.get("phase") or ""),
        pod=str(status.get("podName") or ""),
        allocated_at=when(status.get("allocatedAt")),
        released_at=when(status.get("releasedAt")),
    )


def task_view(task: Object) -> TaskView:
    meta, spec, status = task["metadata"], part(task, "spec"), part(task, "status")
    return TaskView(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta.get("uid", ""),
        sandbox=str(spec.get("sandboxRef") or ""),
        state=str(status.get("state") or ""),
        created_at=when(meta.get("creationTimestamp")),
        completed_at=when(status.get("completedAt")),
        ttl_s=spec.get("ttlSecondsAfterFinished"),
        deleting=bool(meta.get("deletionTimestamp")),
    )


def revision(spec: Object, server_image: str) -> str:
    parts = {name: spec.get(name) for name in REVISED} | {"server": server_image}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def when(text: Any) -> float:
    """Seconds since the epoch of a Kubernetes time; 0 if there is none, or nonsense."""
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp() if text else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _number(text: Any, default: float) -> float:
    try:
        return max(1.0, float(text))
    except (TypeError, ValueError):
        return default
