"""Backend with boxes on a server, which `harena serve` runs: `Sandbox("https://host:8700", token=…)`.

One WebSocket connection carries everything that this process does with the server. When it is lost, the server closes
the boxes, and calls raise BoxLost; the next box opens a new connection.
"""

from __future__ import annotations

from harena.backends.remote.backend import RemoteBackend

__all__ = ["RemoteBackend"]
