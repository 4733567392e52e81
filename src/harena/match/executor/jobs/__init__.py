"""Matches as Kubernetes Jobs: `manifest` (what is created), `pod_state` (what a pod's status means), `cluster` (one
cluster: watch, logs, clean-up) and `runner` (plays matches on the least loaded cluster). docs/adr/0022 says why.
"""

from __future__ import annotations
