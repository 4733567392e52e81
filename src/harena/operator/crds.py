"""The custom resources, defined once. deploy/k8s/crds is made from them by `make crds`.

Only what Kubernetes 1.20 knows is used. What a schema cannot say is checked by the operator, which answers with a
condition.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harena.kube import names
from harena.operator import tasks, views

Schema = dict[str, Any]
MAX_NAME = 45
"""A pod's name is that of its pool with a suffix, and also a label, which has 63 characters."""


def text(most: int, **more: Any) -> Schema:
    """Text that may be empty, unless it has a least length: some API servers take an empty one for null."""
    empty = {} if "minLength" in more or "pattern" in more else {"nullable": True}
    return {"type": "string", "maxLength": most, **empty, **more}


def whole(low: int, high: int, **more: Any) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def listed(items: Schema, most: int, **more: Any) -> Schema:
    return {"type": "array", "items": items, "maxItems": most, **more}


def record(properties: Schema, *required: str, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {}), **more}


def enum(*values: str, **more: Any) -> Schema:
    return {"type": "string", "enum": list(values), **more}


OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""Something of Kubernetes itself, which the operator or the API server checks."""
TIME: Schema = {"type": "string", "format": "date-time"}
COUNT: Schema = {"type": "integer"}
DURATION = text(20, pattern=r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)?$")
TTL = whole(0, 30 * 86400, description="How long it is kept after its end. Without it, until it is deleted.")
CONDITIONS = listed(
    record(
        {
            "type": text(63),
            "status": enum("True", "False", "Unknown"),
            "reason": text(200),
            "message": text(2000),
            "lastTransitionTime": TIME,
        },
        "type",
        "status",
    ),
    10,
)

WARM_POOL = record(
    {
        "metadata": record({"name": text(MAX_NAME, minLength=1)}),
        "spec": record(
            {
                "replicas": whole(0, 10_000, default=1, description="Idle pods that are kept ready."),
                "image": text(1000, description="Image that boxes have. It needs Python 3.11 as python3."),
                "template": {**OPEN, "description": "A PodTemplateSpec. docs/kubernetes.md lists what it may have."},
                "boxesPerPod": whole(1, 1000, default=1, description="Boxes that a client puts into one pod."),
                "isolation": enum("best", "full", "restricted", default="best"),
                "updateStrategy": record(
                    {"type": enum("Recreate", "OnReplenish", default="OnReplenish")},
                    description="How a change of the template reaches idle pods: at once, or as they are claimed.",
                ),
                "lifetimeSeconds": whole(
                    1, 30 * 86400, default=views.LIFETIME_SECONDS, description="Longest time of a claim."
                ),
                "idleSeconds": whole(
                    1, 86400, default=views.IDLE_SECONDS, description="A claimed pod ends this long after its clients."
                ),
                "diskMb": whole(16, 1 << 20, description="Size of a pod's /tmp, which holds the files of boxes."),
                "clients": listed(OPEN, 100, description="NetworkPolicyPeers that reach the pods; else the namespace."),
                "egress": listed(OPEN, 100, description="NetworkPolicyEgressRules; else nothing can be reached."),
            }
        ),
        "status": record(
            {
                "phase": enum("Pending", "Ready", "Scaling"),
                "ready": COUNT,
                "idle": COUNT,
                "allocated": COUNT,
                "total": COUNT,
                "observedGeneration": COUNT,
                "selector": text(500),
                "conditions": CONDITIONS,
            }
        ),
    },
    "spec",
)
SANDBOX = record(
    {
        "metadata": record({"name": text(63, minLength=1)}),
        "spec": record(
            {
                "poolRef": text(MAX_NAME, minLength=1),
                "keepAlive": {
                    "type": "boolean",
                    "default": False,
                    "description": "Keep the pod after the last Task has ended.",
                },
                "ttlSecondsAfterFinished": TTL,
                "lifetimeSeconds": whole(1, 30 * 86400),
            },
            "poolRef",
        ),
        "status": record(
            {
                "phase": enum("Pending", "Ready", "Bound", "Released"),
                "podName": text(253),
                "podIP": text(64),
                "allocatedAt": TIME,
                "releasedAt": TIME,
                "session": text(64),
                "isolation": text(20),
                "conditions": CONDITIONS,
            }
        ),
    },
    "spec",
)
STEP = record(
    {
        "name": text(200, minLength=1),
        "type": enum("Command", "FilePatch", default="Command"),
        "command": listed(text(100_000), 1000),
        "path": text(4000),
        "content": text(1_000_000),
        "workDir": text(4000),
        "env": {"type": "object", "additionalProperties": text(100_000)},
        "container": enum("sidecar", "executor"),
        "timeout": DURATION,
    },
    "name",
)
TASK = record(
    {
        "spec": record(
            {
                "sandboxRef": text(63, minLength=1),
                "timeout": {**DURATION, "default": tasks.TIMEOUT},
                "keepGoing": {"type": "boolean", "default": False},
                "ttlSecondsAfterFinished": TTL,
                "steps": listed(STEP, 1000, minItems=1),
            },
            "sandboxRef",
            "steps",
        ),
        "status": record(
            {
                "state": enum("Pending", "Running", "Succeeded", "Failed"),
                "message": text(1000),
                "stdout": text(1_000_000),
                "stderr": text(1_000_000),
                "exitCode": COUNT,
                "startedAt": TIME,
                "completedAt": TIME,
                "steps": listed(OPEN, 1000),
            }
        ),
    },
    "spec",
)
AGE = ("Age", "date", ".metadata.creationTimestamp")
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.idle",
    "labelSelectorPath": ".status.selector",
}


def definition(kind: str, plural: str, short: str, schema: Schema, columns: list[tuple[str, str, str]]) -> Schema:
    scale = {"scale": SCALE} if kind == "WarmPool" else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}", "labels": {"app.kubernetes.io/part-of": "harena"}},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["harena"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}, **scale},
                    "schema": {"openAPIV3Schema": schema},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": where} for name, kind, where in columns
                    ],
                }
            ],
        },
    }


def _columns(*fields: str) -> list[tuple[str, str, str]]:
    return [(part[0], part[1], part[2]) for part in (field.split() for field in fields)]


CRDS = {
    "warmpools": definition(
        "WarmPool",
        "warmpools",
        "wp",
        WARM_POOL,
        [
            *_columns(
                "Replicas integer .spec.replicas",
                "Ready integer .status.ready",
                "Allocated integer .status.allocated",
                "Total integer .status.total",
                "Phase string .status.phase",
            ),
            ("Message", "string", ".status.conditions[?(@.type=='Ready')].message"),
            AGE,
        ],
    ),
    "sandboxes": definition(
        "Sandbox",
        "sandboxes",
        "sbx",
        SANDBOX,
        [
            *_columns(
                "Pool string .spec.poolRef",
                "Phase string .status.phase",
                "Pod string .status.podName",
                "IP string .status.podIP",
            ),
            ("Message", "string", ".status.conditions[?(@.type=='Ready')].message"),
            AGE,
        ],
    ),
    "tasks": definition(
        "Task",
        "tasks",
        "tsk",
        TASK,
        [
            *_columns(
                "Sandbox string .spec.sandboxRef",
                "State string .status.state",
                "Exit integer .status.exitCode",
                "Message string .status.message",
            ),
            AGE,
        ],
    ),
}


def files() -> dict[str, str]:
    """The contents of deploy/k8s/crds, by file name."""
    import yaml

    head = "# Made from src/harena/operator/crds.py by `make crds`.\n"
    return {f"{name}.yaml": head + yaml.safe_dump(crd, sort_keys=False, width=120) for name, crd in CRDS.items()}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (folder / name).write_text(content)


if __name__ == "__main__":
    main()
