"""The helper of a."""

from __future__ import annotations

WHOSE = "a"
ORDER = (3, 2, 4, 1, 5, 0, 6)
