"""What the status of a match's pod means. Pure functions.

Before the match has begun, whatever keeps a container from running is a failure of the platform or of the image's name.
Afterwards only the orchestrator's container counts: an agent that ends its own container is dealt with by the game.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from harena.match.executor.jobs.manifest import ORCHESTRATOR, TOOLS

PULL_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
START_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
MAX_TEXT = 300


class PodPhase(enum.Enum):
    WAITING = "waiting"
    """Not all containers run yet."""
    RUNNING = "running"
    """The orchestrator's container runs: its log can be read."""
    ENDED = "ended"
    """The orchestrator has ended by itself: all it had to say is in its log."""
    BROKEN = "broken"
    """It cannot run: the same again would fail the same way."""
    LOST = "lost"
    """The platform ended it: an eviction, a lost node, a deletion. It may be tried again."""


@dataclass(frozen=True, slots=True)
class PodState:
    phase: PodPhase
    text: str = ""
    """What happened, for people."""


def state_of(pod: Mapping[str, Any], *, deleted: bool = False) -> PodState:
    status = _part(pod, "status")
    if deleted or "deletionTimestamp" in _part(pod, "metadata"):
        return PodState(PodPhase.LOST, "the pod was deleted")
    orchestrator = _terminated(status)
    if orchestrator is not None and orchestrator.get("exitCode") == 0:
        return PodState(PodPhase.ENDED)
    reason = str(status.get("reason") or "")
    if reason == "DeadlineExceeded":
        return PodState(PodPhase.BROKEN, f"the Job took longer than its deadline: {_message(status)}")
    if reason or status.get("phase") == "Unknown":
        return PodState(PodPhase.LOST, f"{reason or 'the node does not answer'}: {_message(status)}".rstrip(": "))
    if orchestrator is not None:
        why = orchestrator.get("reason") or ""
        return PodState(
            PodPhase.LOST, f"the orchestrator ended with code {orchestrator.get('exitCode')} {why}".rstrip()
        )
    for name, waiting in _waiting(status):
        if waiting.get("reason") in PULL_REASONS:
            return PodState(PodPhase.BROKEN, f"the image of {name} cannot be pulled: {_message(waiting)}")
        if waiting.get("reason") in START_REASONS:
            return PodState(PodPhase.BROKEN, f"the container {name} cannot be started: {_message(waiting)}")
    failed = _failed_tools(status)
    if failed:
        return PodState(PodPhase.BROKEN, failed)
    running = any("running" in _part(one, "state") for one in _of(status, ORCHESTRATOR))
    return PodState(PodPhase.RUNNING if running else PodPhase.WAITING, _unscheduled(status))


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", of.get(name) or {})


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for group in ("initContainerStatuses", "containerStatuses"):
        yield from cast("Sequence[Mapping[str, Any]]", status.get(group) or ())


def _of(status: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    return (one for one in _containers(status) if one.get("name") == name)


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for one in _of(status, ORCHESTRATOR):
        return _part(_part(one, "state"), "terminated") or None
    return None


def _waiting(status: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for one in _containers(status):
        waiting = _part(_part(one, "state"), "waiting")
        if waiting:
            yield str(one.get("name")), waiting


def _failed_tools(status: Mapping[str, Any]) -> str:
    for one in _of(status, TOOLS):
        ended = _part(_part(one, "state"), "terminated")
        if ended.get("exitCode"):
            return f"the container {TOOLS} ended with code {ended['exitCode']}: {_message(ended)}".rstrip(": ")
    return ""


def _unscheduled(status: Mapping[str, Any]) -> str:
    for condition in cast("Sequence[Mapping[str, Any]]", status.get("conditions") or ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node has room for it: {_message(condition)}"
    return ""


def _message(of: Mapping[str, Any]) -> str:
    text = " ".join(str(of.get("message") or "").split())
    return text[:MAX_TEXT]
