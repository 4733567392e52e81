"""Several games of the same agents: the `schedule`, the `tournament`, the `driver` and the `contest` with its table."""

from __future__ import annotations
