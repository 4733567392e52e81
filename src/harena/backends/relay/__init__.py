"""Backend with boxes in another process of this machine, reached over one stream.

It shows that a backend does not have to share a process with its caller. `harena.node` has both sides of the stream.
"""

from __future__ import annotations

from harena.backends.relay.client import RelayBackend

__all__ = ["RelayBackend"]
