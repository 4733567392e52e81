"""How long replays and logs are kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """What either rule lets go is forgotten. Without a rule everything is kept."""

    keep_days: int | None = None
    """None: forever."""
    keep_matches: int | None = None
    """Latest matches of each environment; None: all."""
