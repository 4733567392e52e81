"""The Job and the Secret of one match, as the API takes them. Pure functions.

What the pod looks like is what keeps agents from each other and from the result: each agent has its own container, user
id, limits and read-only root; it shares no process namespace, and no volume but the folder with its own socket, which
it cannot write to. The order, with seed and nonce, is mounted in the orchestrator's container alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harena.errors import SpecError
from harena.match.agent import image
from harena.match.executor.config import ServerConfig
from harena.match.orchestrator import wire
from harena.match.result import AgentCode

Object = dict[str, Any]

APP = "rl-arena-match"
MANAGER = "rl-arena-executor"
MANAGED_BY = "app.kubernetes.io/managed-by"
INSTANCE = "harena.dev/executor"
"""Label: which executor process plays this match."""
MATCH_ID = "harena.dev/match-id"
"""Annotation: the id as the client gave it."""
ORCHESTRATOR, TOOLS = "orchestrator", "tools"
MAX_SECRET = 900_000
"""Bytes of code and order; a Secret holds one megabyte in all."""
SPARE_S = 60
"""Seconds beyond all deadlines after which the cluster itself ends a Job."""
FIRST_USER, USERS = 100_000, 1 << 30
"""Range of user ids. Each agent has its own, because the limit of processes counts those of a user on the node."""
ORCHESTRATOR_USER = 65_532


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAgent:
    """One agent as a container."""

    code: AgentCode
    image: str = ""
    """The image that is the agent; empty for code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMatch:
    match_id: str
    caller: str
    agents: tuple[PodAgent, ...]
    order: wire.JobOrder


def job_name(match_id: str, caller: str = "", attempt: int = 0) -> str:
    """`match-<id>` where the id can be part of a name; else a readable one that is different for different ids."""
    plain = re.sub(r"[^a-z0-9-]+", "-", match_id.lower()).strip("-")[:40].strip("-")
    if plain != match_id or caller or not plain:
        digest = hashlib.sha256(f"{caller}\0{match_id}".encode()).hexdigest()[:8]
        plain = f"{plain}-{digest}" if plain else digest
    return f"match-{plain}" + (f"-r{attempt}" if attempt else "")


def labels(instance: str) -> dict[str, str]:
    return {"app": APP, MANAGED_BY: MANAGER, INSTANCE: instance}


def secret_data(match: JobMatch) -> dict[str, str]:
    """The order, and the files of agents that were sent as code. Raises SpecError for more than a Secret holds."""
    data = {"order": wire.encode_order(match.order)}
    for number, agent in enumerate(match.agents):
        for at, content in enumerate(agent.code.files.values()):
            data[f"agent-{number}.{at}"] = content
    size = sum(map(len, data.values()))
    if size > MAX_SECRET:
        raise SpecError(
            f"the agents' code has {size} bytes; a match as a Job takes {MAX_SECRET} in all: build images of large ones"
        )
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def secret(job: Mapping[str, Any], data: Mapping[str, str]) -> Object:
    """The Secret of a Job that exists. It is removed with the Job."""
    metadata = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": metadata["name"], "labels": metadata["labels"], "ownerReferences": [owner]},
        "immutable": True,
        "data": dict(data),
    }


def job(name: str, match: JobMatch, settings: ServerConfig, instance: str) -> Object:
    k8s = settings.k8s
    order = match.order
    users = FIRST_USER + secrets.randbelow(USERS)
    pod: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": False,
        "hostNetwork": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [
            {"name": "order", "secret": {"secretName": name, "items": [{"key": "order", "path": "order"}]}},
            {"name": "tools", "emptyDir": {}},
        ],
        "initContainers": [_tools(k8s.orchestrator_image)],
        "containers": [_orchestrator(len(match.agents), settings)],
    }
    for number, agent in enumerate(match.agents):
        pod["volumes"] += _agent_volumes(name, number, agent)
        pod["containers"].append(_agent(number, agent, settings, users + number))
    if k8s.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": given} for given in k8s.image_pull_secrets]
    if k8s.node_selector:
        pod["nodeSelector"] = dict(k8s.node_selector)
    if k8s.runtime_class:
        pod["runtimeClassName"] = k8s.runtime_class
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": labels(instance),
            "annotations": {MATCH_ID: match.match_id, "harena.dev/owner": match.caller},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(order.start_s + order.timeout_s) + SPARE_S,
            "ttlSecondsAfterFinished": k8s.ttl_sec,
            "template": {"metadata": {"labels": labels(instance)}, "spec": pod},
        },
    }


def _confined(user: int) -> Object:
    return {
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _tools(image_name: str) -> Object:
    return {
        "name": TOOLS,
        "image": image_name,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "harena.match.orchestrator.tools", wire.TOOLS],
        "volumeMounts": [{"name": "tools", "mountPath": wire.TOOLS}],
        "securityContext": _confined(ORCHESTRATOR_USER),
        "resources": _resources(cpu=1.0, cpu_request=0.1, memory_mb=256),
    }


def _orchestrator(agents: int, settings: ServerConfig) -> Object:
    seats = [{"name": f"seat-{number}", "mountPath": f"{wire.SEATS}/{number}"} for number in range(agents)]
    return {
        "name": ORCHESTRATOR,
        "image": settings.k8s.orchestrator_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "harena.match.orchestrator.main"],
        "volumeMounts": [
            {"name": "order", "mountPath": wire.ORDER_FILE.rpartition("/")[0], "readOnly": True},
            *seats,
        ],
        "securityContext": _confined(ORCHESTRATOR_USER),
        "resources": _resources(cpu=1.0, cpu_request=settings.k8s.cpu_request, memory_mb=1024, request_mb=256),
    }


def _agent(number: int, agent: PodAgent, settings: ServerConfig, user: int) -> Object:
    limits, k8s = settings.resource_limits, settings.k8s
    seat = f"{wire.AGENT_SEAT}/{wire.SEAT_SOCKET}"
    log_bytes = settings.sandbox.output_mb << 20
    command = [f"{wire.TOOLS}/harena-seat", seat, wire.SCRATCH, str(limits.processes), str(log_bytes), "--"]
    mounts: list[Object] = [
        {"name": "tools", "mountPath": wire.TOOLS, "readOnly": True},
        {"name": f"seat-{number}", "mountPath": wire.AGENT_SEAT, "readOnly": True},
        {"name": f"tmp-{number}", "mountPath": wire.SCRATCH},
    ]
    if agent.code.files:
        mounts.append({"name": f"agent-{number}", "mountPath": wire.AGENT_CODE, "readOnly": True})
    made: Object = {
        "name": f"agent-{number}",
        "image": agent.image or k8s.agent_image or k8s.orchestrator_image,
        "imagePullPolicy": "IfNotPresent",
        "command": [_literal(word) for word in [*command, *_words(agent)]],
        "env": [{"name": "HOME", "value": wire.SCRATCH}],
        "volumeMounts": mounts,
        "securityContext": _confined(user),
        "resources": _resources(cpu=limits.cpu_count, cpu_request=k8s.cpu_request, memory_mb=limits.memory_limit),
    }
    if not agent.image:
        made["workingDir"] = wire.AGENT_CODE
    return made


def _words(agent: PodAgent) -> Sequence[str]:
    """Words that start the agent: of its image, or Python with the file that was sent."""
    code = agent.code
    if agent.image or code.command:
        return image.command_of(code)
    entry = AgentCode(name=code.name, files={}, entry=f"{wire.AGENT_CODE}/{code.entry}", image="code")
    return image.command_of(entry)


def _literal(word: str) -> str:
    """Kubernetes replaces $(NAME) in commands; a doubled $ stays one."""
    return word.replace("$", "$$")


def _agent_volumes(name: str, number: int, agent: PodAgent) -> list[Object]:
    made: list[Object] = [
        {"name": f"seat-{number}", "emptyDir": {}},
        # In memory, which counts against the agent's own limit: an agent that fills a disk could have the pod evicted,
        # and so make the match void.
        {"name": f"tmp-{number}", "emptyDir": {"medium": "Memory"}},
    ]
    if agent.code.files:
        items = [{"key": f"agent-{number}.{at}", "path": path} for at, path in enumerate(agent.code.files)]
        made.append({"name": f"agent-{number}", "secret": {"secretName": name, "items": items, "defaultMode": 0o555}})
    return made


def _resources(*, cpu: float, cpu_request: float, memory_mb: int, request_mb: int | None = None) -> Object:
    return {
        "limits": {"cpu": f"{round(cpu * 1000)}m", "memory": f"{memory_mb}Mi"},
        "requests": {"cpu": f"{round(min(cpu, cpu_request) * 1000)}m", "memory": f"{request_mb or memory_mb}Mi"},
    }
