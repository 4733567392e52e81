"""Several games of the same agents: the `schedule`, the `tournament`, and the `contest` that plays them."""

from __future__ import annotations
