"""Backend with one Docker container for each box.

`api` speaks with the daemon, `container` says what a container may have, `backend` makes boxes, and `inside` is what
runs in the container: a node (`harena.node`), which makes a local box there. So a guest that leaves its box is in a
container without network, capabilities or files of the host, and the host takes nothing it says on trust
(`harena.node.link`).
"""

from __future__ import annotations

from harena.backends.docker.backend import DockerBackend

__all__ = ["DockerBackend"]
