"""Names that the operator and its clients share: API group, labels, annotations, keys of Secrets."""

from __future__ import annotations

GROUP, VERSION = "harena.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
GROUPS = {
    "warmpools": API_VERSION,
    "sandboxes": API_VERSION,
    "tasks": API_VERSION,
    "leases": "coordination.k8s.io/v1",
    "networkpolicies": "networking.k8s.io/v1",
    "deployments": "apps/v1",
}
"""API groups of resources outside of the core group."""

POOL = f"{GROUP}/pool"
"""Label of a pod and its Secret: the pool that they belong to."""
STATE = f"{GROUP}/state"
"""Label of a pod: idle, allocated or released."""
SANDBOX = f"{GROUP}/sandbox"
"""Label of a claimed pod: the sandbox or the claim that has it."""
POD = f"{GROUP}/pod"
"""Label of a Secret: its pod."""
REVISION = f"{GROUP}/revision"
"""Label of a pod: digest of what the pool's pods are made from."""
CLAIMED_AT = f"{GROUP}/claimed-at"
CLAIMED_BY = f"{GROUP}/claimed-by"
EXPIRES_AT = f"{GROUP}/expires-at"
"""Annotations of a claimed pod. After `expires-at` the operator deletes it."""
SANDBOX_UID = f"{GROUP}/sandbox-uid"
"""Annotation of a pod that belongs to a Sandbox object."""
BOXES = f"{GROUP}/boxes-per-pod"
"""Annotation of a pod: how many boxes a client puts into it."""
LIFETIME = f"{GROUP}/lifetime-seconds"
"""Annotation of a pod: how long a claim may last."""
AUTHORITY_DIGEST = f"{GROUP}/authority"
"""Annotation of a pod: digest of the certificate authority that its certificate comes from."""
FINALIZER = f"{GROUP}/operator"

IDLE, ALLOCATED, RELEASED = "idle", "allocated", "released"

PORT = 8700
KEY = "key"
"""In the Secret of a pool's clients: the key from which the token of each pod is derived."""
AUTHORITY = "ca.crt"
"""There too: the certificate authority of the pool's pods."""
TOKEN_NAME = "client"
"""Owner of the boxes in a pod, as its server knows it."""


def clients_secret(pool: str) -> str:
    """Name of the Secret that clients of a pool read."""
    return f"harena-pool-{pool}"


def authority_secret(pool: str) -> str:
    """Name of the Secret with the private key of the pool's certificate authority, which only the operator reads."""
    return f"harena-ca-{pool}"


def server_name(namespace: str, pod: str) -> str:
    """Name in the certificate of a pod. It is never looked up: clients connect to the pod's address."""
    return f"{pod}.{namespace}.pods.{GROUP}"
