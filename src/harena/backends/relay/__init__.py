"""Backend with boxes in another process, reached over one stream: no descriptor, process id or path crosses it.

It shows that a backend does not have to share a process with its caller, and is the smallest example of a backend.
`link` has the messages, `client` the caller's side, `node` the other side.
"""

from __future__ import annotations

from harena.backends.relay.client import RelayBackend

__all__ = ["RelayBackend"]
