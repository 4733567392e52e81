"""Fails before it is an agent."""

from __future__ import annotations

raise RuntimeError("no good from the start")
