"""Backend with boxes in pods of a warm pool: `SandboxPool("kubernetes://NAMESPACE/POOL")`.

A box is made in a pod that was claimed by one patch (`harena.kube.claims`). Its verbs go straight to the pod's server
over TLS, and never through the Kubernetes API.
"""

from __future__ import annotations

from harena.backends.kubernetes.backend import KubernetesBackend

__all__ = ["KubernetesBackend"]
