"""What a result on hidden episodes depends on, and what it is worth as the best of several tries."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from statistics import NormalDist

from harena.arena.settings import EnvironmentSettings

Z95 = NormalDist().inv_cdf(0.975)


def conditions(settings: EnvironmentSettings) -> str:
    """What a result depends on besides code and secret. A host who changes it has everything drawn again."""
    parts = [settings.episodes, *dataclasses.astuple(settings.clock), settings.memory_mb, settings.processes]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def discounted(score: float, low: float | None, high: float | None, tries: int) -> float | None:
    """The score less what the best of so many equal tries exceeds their mean by, on average. None: no interval."""
    if low is None or high is None:
        return None
    luck = NormalDist().inv_cdf((tries - 0.375) / (tries + 0.25)) if tries > 1 else 0.0  # Blom's approximation
    return score - luck * (high - low) / (2 * Z95)
