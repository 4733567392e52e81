"""Boxes that live in another process, reached over one stream: no descriptor, process id or path crosses it.

The proof that a backend need not share a process with its caller, and the smallest example of one. `link` has the
messages, `client` the caller's side, `node` the other.
"""

from __future__ import annotations

from harena.backends.relay.client import RelayBackend

__all__ = ["RelayBackend"]
