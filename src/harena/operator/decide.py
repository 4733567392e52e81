"""Decisions of the operator, as pure functions: what is wanted and what was observed in, actions out.

Guarantees, which tests check by properties: acting on the decisions leads to `replicas` idle pods and then to no more
actions; a claimed pod is deleted only after it has ended, its time is over or its sandbox is; deciding twice on what
was observed once does not act twice, because acting changes what is observed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harena.kube import names
from harena.operator.views import PodView, PoolView, SandboxView, TaskView

BACKOFF_S = 10.0
"""How long an idle pod that has ended keeps its place, so that one that cannot start is not made all the time."""
MAX_AGE_S = 300 * 86400.0
"""Age at which an idle pod is replaced: its certificate is valid for a year."""
UNUSED_S = 60.0
"""A claimed pod that nobody has connected to by then is looked at."""


@dataclass(frozen=True, slots=True)
class CreatePods:
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class CreatePodFor:
    """A pod for a sandbox, since the pool had none ready."""

    sandbox: str
    why: str


@dataclass(frozen=True, slots=True)
class ClaimPod:
    pods: tuple[str, ...]
    """In the order of preference: another client may be first."""
    sandbox: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    name: str
    uid: str
    why: str
    routine: bool = True
    """False if somebody should know: it becomes an event."""


@dataclass(frozen=True, slots=True)
class ProbePod:
    """Ask its server whether anybody has used it, and delete it otherwise."""

    name: str


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    present: bool


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete the sandbox or the task itself: it was kept for as long as it asked for."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPoolStatus:
    phase: str
    ready: int
    idle: int
    allocated: int
    total: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSandboxStatus:
    phase: str
    pod: str = ""
    ip: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RunTask:
    pod: str


@dataclass(frozen=True, slots=True)
class FailTask:
    message: str


Action = (
    CreatePods
    | CreatePodFor
    | ClaimPod
    | DeletePod
    | ProbePod
    | SetFinalizer
    | DeleteObject
    | SetPoolStatus
    | SetSandboxStatus
    | RunTask
    | FailTask
)


@dataclass(frozen=True, slots=True)
class Decision:
    actions: tuple[Action, ...]
    again_s: float | None = None
    """When to decide again if nothing happens before."""


# ---- pools ----


def decide_pool(pool: PoolView, pods: Sequence[PodView], now: float) -> Decision:
    """What to do about the pods of a pool."""
    if pool.deleting:
        return _end_pool(pool, pods)
    actions: list[Action] = [] if pool.finalized else [SetFinalizer(True)]
    timers: list[float] = []
    actions += _end_claimed(pods, now, timers)
    idle = [pod for pod in pods if pod.state == names.IDLE and not pod.deleting]
    ended = [pod for pod in idle if pod.finished]
    holding = [pod for pod in ended if pod.finished_at + BACKOFF_S > now]
    timers += [pod.finished_at + BACKOFF_S - now for pod in holding]
    for pod in ended:
        if pod not in holding:
            actions.append(DeletePod(pod.name, pod.uid, f"it ended before it was used: {pod.problem}", routine=False))
    live = [pod for pod in idle if not pod.finished]
    kept: list[PodView] = []
    for pod in live:
        if pool.recreate and pod.revision != pool.revision:
            actions.append(DeletePod(pod.name, pod.uid, "the pool's template has changed"))
        elif now - pod.created_at > MAX_AGE_S:
            actions.append(DeletePod(pod.name, pod.uid, "its certificate ends soon"))
        else:
            kept.append(pod)
    surplus = len(kept) - pool.replicas
    if surplus > 0:
        kept.sort(key=lambda pod: (pod.ready, pod.revision == pool.revision, -pod.created_at, pod.name))
        for pod in kept[:surplus]:
            actions.append(DeletePod(pod.name, pod.uid, f"the pool wants {pool.replicas} idle pods"))
        kept = kept[surplus:]
    missing = pool.replicas - len(kept) - len(holding)
    if missing > 0 and not pool.invalid:
        actions.append(CreatePods(missing, f"{len(kept)} of {pool.replicas} idle pods are there"))
    actions.append(_pool_status(pool, pods, kept, holding))
    return Decision(tuple(actions), _soonest(timers))


def _end_pool(pool: PoolView, pods: Sequence[PodView]) -> Decision:
    """Delete what waits. Claimed pods stay with their clients, and are looked after by `decide_orphan`."""
    idle = [pod for pod in pods if pod.state == names.IDLE and not pod.deleting]
    actions: list[Action] = [DeletePod(pod.name, pod.uid, "the pool was deleted") for pod in idle]
    if not idle and pool.finalized:
        actions.append(SetFinalizer(False))
    return Decision(tuple(actions))


def decide_orphan(pod: PodView, now: float) -> Decision:
    """What to do about a pod whose pool is gone."""
    if pod.deleting:
        return Decision(())
    if pod.state == names.IDLE:
        return Decision((DeletePod(pod.name, pod.uid, "its pool is gone"),))
    timers: list[float] = []
    return Decision(tuple(_end_claimed([pod], now, timers)), _soonest(timers))


def _end_claimed(pods: Iterable[PodView], now: float, timers: list[float]) -> list[Action]:
    actions: list[Action] = []
    for pod in pods:
        if pod.state == names.IDLE or pod.deleting:
            continue
        left = pod.claimed_at + pod.lifetime_s - now
        unused = pod.claimed_at + UNUSED_S - now
        if (pod.finished and not pod.sandbox_uid) or pod.state == names.RELEASED:
            actions.append(DeletePod(pod.name, pod.uid, "its client has released it"))
        elif left <= 0:
            why = f"its claim is older than lifetimeSeconds={pod.lifetime_s:g}"
            actions.append(DeletePod(pod.name, pod.uid, why, routine=False))
        elif not pod.finished:
            timers.append(left)
            if not pod.probed and not pod.sandbox_uid:
                if unused <= 0:
                    actions.append(ProbePod(pod.name))
                else:
                    timers.append(unused)
    return actions


def _pool_status(
    pool: PoolView, pods: Sequence[PodView], idle: Sequence[PodView], failed: Sequence[PodView]
) -> SetPoolStatus:
    ready = sum(pod.ready for pod in idle)
    allocated = sum(pod.state != names.IDLE and pod.live for pod in pods)
    problems = [pod.problem for pod in (*idle, *failed) if pod.problem]
    if pool.invalid:
        phase, reason, message = "Pending", "InvalidTemplate", pool.invalid
    elif ready >= pool.replicas:
        phase, reason, message = "Ready", "AllReady", "all idle pods are ready"
    else:
        phase = "Pending" if ready == 0 and pool.phase in ("", "Pending") else "Scaling"
        reason = problems[0].partition(":")[0] if problems else "Starting"
        message = problems[0] if problems else f"{ready} of {pool.replicas} pods are ready"
    total = len(idle) + allocated
    return SetPoolStatus(
        phase=phase, ready=ready, idle=len(idle), allocated=allocated, total=total, reason=reason, message=message
    )


# ---- sandboxes ----


def decide_sandbox(
    sandbox: SandboxView, pool: PoolView | None, pods: Sequence[PodView], tasks: Sequence[TaskView], now: float
) -> Decision:
    """What to do about a sandbox. `pods`: those of its namespace; `tasks`: its own."""
    mine = next((pod for pod in pods if pod.sandbox_uid == sandbox.uid and pod.state != names.IDLE), None)
    gone = mine is None or mine.deleting
    if sandbox.deleting:
        actions: list[Action] = []
        if mine is not None and not mine.deleting:
            actions.append(DeletePod(mine.name, mine.uid, "its sandbox was deleted"))
        elif sandbox.finalized:
            actions.append(SetFinalizer(False))
        return Decision(tuple(actions))
    if sandbox.phase == "Released":
        return _end_sandbox(sandbox, mine, now)
    first: list[Action] = [] if sandbox.finalized else [SetFinalizer(True)]
    if mine is not None and not gone:
        return _use_sandbox(sandbox, mine, tasks, now, first)
    if sandbox.pod:
        why = "the pod was deleted" if mine is None else "the pod is being deleted"
        return Decision((*first, SetSandboxStatus(phase="Released", pod=sandbox.pod, reason="PodGone", message=why)))
    if pool is None or pool.deleting:
        why = f"there is no pool {sandbox.pool!r} in this namespace"
        return Decision((*first, SetSandboxStatus(phase="Pending", reason="NoPool", message=why)))
    if mine is not None:
        return Decision(tuple(first))  # one of its pods is ending; its end is an event
    ready = [pod for pod in pods if pod.ready and pod.live and pod.state == names.IDLE and pod.pool == pool.name]
    if ready:
        ready.sort(key=lambda pod: (pod.revision != pool.revision, pod.created_at, pod.name))
        return Decision((*first, ClaimPod(tuple(pod.name for pod in ready), sandbox.name)))
    if pool.invalid:
        return Decision((*first, SetSandboxStatus(phase="Pending", reason="InvalidTemplate", message=pool.invalid)))
    why = f"pool {pool.name} has no pod ready: a cold one is created"
    pending = SetSandboxStatus(phase="Pending", reason="ColdStart", message=why)
    return Decision((*first, CreatePodFor(sandbox.name, why), pending))


def _use_sandbox(
    sandbox: SandboxView, pod: PodView, tasks: Sequence[TaskView], now: float, first: list[Action]
) -> Decision:
    def released(reason: str, message: str) -> Decision:
        status = SetSandboxStatus(phase="Released", pod=pod.name, ip=pod.ip, reason=reason, message=message)
        return Decision((*first, status))

    if pod.finished:
        return released("PodEnded", pod.problem or "the pod has ended")
    if sandbox.phase == "Bound":
        if tasks and not sandbox.keep_alive and all(task.ended for task in tasks):
            return released("TasksEnded", "its tasks have ended, and keepAlive is false")
        left = None
        if sandbox.lifetime_s is not None:
            left = sandbox.allocated_at + sandbox.lifetime_s - now
            if left <= 0:
                return released("Expired", f"lifetimeSeconds={sandbox.lifetime_s:g} are over")
        return Decision(tuple(first), left)
    if pod.ready:
        return Decision((*first, SetSandboxStatus(phase="Bound", pod=pod.name, ip=pod.ip)))
    reason = pod.problem.partition(":")[0] or "Starting"
    message = pod.problem or f"pod {pod.name} is starting"
    return Decision((*first, SetSandboxStatus(phase="Pending", reason=reason, message=message)))


def _end_sandbox(sandbox: SandboxView, pod: PodView | None, now: float) -> Decision:
    actions: list[Action] = []
    if pod is not None and not pod.deleting:
        actions.append(DeletePod(pod.name, pod.uid, "its sandbox was released"))
    if sandbox.ttl_s is None:
        return Decision(tuple(actions))
    left = sandbox.released_at + sandbox.ttl_s - now
    if left <= 0:
        actions.append(DeleteObject(f"it ended ttlSecondsAfterFinished={sandbox.ttl_s:g} ago"))
        return Decision(tuple(actions))
    return Decision(tuple(actions), left)


# ---- tasks ----


def decide_task(task: TaskView, sandbox: SandboxView | None, running: bool, now: float) -> Decision:
    """What to do about a task. `running`: this process runs it already."""
    if task.deleting or running:
        return Decision(())
    if task.ended:
        if task.ttl_s is None:
            return Decision(())
        left = task.completed_at + task.ttl_s - now
        if left > 0:
            return Decision((), left)
        return Decision((DeleteObject(f"it ended ttlSecondsAfterFinished={task.ttl_s:g} ago"),))
    if sandbox is None:
        if task.state == "Running":
            return Decision((FailTask(f"sandbox {task.sandbox!r} was deleted while the task ran"),))
        return Decision(())  # it may still come
    if sandbox.phase == "Released" or sandbox.deleting:
        return Decision((FailTask(f"sandbox {task.sandbox!r} was released before the task ended"),))
    if sandbox.phase == "Bound":
        return Decision((RunTask(sandbox.pod),))
    return Decision(())


def _soonest(timers: Sequence[float]) -> float | None:
    return max(0.05, min(timers)) if timers else None


def without_status(decision: Decision) -> Decision:
    """The decision without what it writes into statuses, to compare what it does."""
    kinds = (SetPoolStatus, SetSandboxStatus)
    return dataclasses.replace(decision, actions=tuple(one for one in decision.actions if not isinstance(one, kinds)))
