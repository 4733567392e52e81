"""The helper of b."""

from __future__ import annotations

WHOSE = "b"
ORDER = (0, 1, 2, 3, 4, 5, 6)
