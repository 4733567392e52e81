"""Local backend: boxes on this machine, built from Linux namespaces, without Docker and without root."""

from __future__ import annotations

from harena.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
