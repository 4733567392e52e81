"""How good, and how sure. Guarantees: pure functions of the counts and a seed. One sample a task gives a share with
Wilson's interval; several give pass@k by the unbiased estimator, with a bootstrap over tasks, because the samples of a
task are not independent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harena import statistics
from harena.errors import SpecError

RESAMPLES = 2000
"""Fifty lie beyond each end of a 95 % interval: steady to a few hundredths of its width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    value: float
    low: float
    high: float
    """The ends of the 95 % interval."""
    n: int
    """Tasks, not samples."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Score:
        value = math.nan if data["value"] is None else float(data["value"])
        return cls(value=value, low=float(data["low"]), high=float(data["high"]), n=int(data["n"]))

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that one of k samples of a task is right, when `right` of `samples` were: 1 - C(n-c, k) / C(n, k)."""
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise SpecError(f"pass@{k} of {samples} samples: draw at least k of them")
    if samples - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / place for place in range(samples - right + 1, samples + 1))


def score(right: Sequence[int], *, samples: int, k: int = 1, seed: int = 0) -> Score:
    """Score tasks with this many right answers out of `samples` each."""
    if not right:
        return Score(value=math.nan, low=0.0, high=1.0, n=0)
    if samples == 1:
        return wilson(sum(right), len(right))
    values = np.array([pass_at_k(samples, one, k) for one in right])
    return bootstrap(values, seed=seed)


def wilson(right: int, n: int) -> Score:
    interval = statistics.wilson(right, n)
    return Score(value=interval.value, low=interval.low, high=interval.high, n=n)


def bootstrap(values: np.ndarray, *, seed: int) -> Score:
    """Bound the mean by the percentiles of resampled means. Where all values are 0, or all 1, resampling knows no
    doubt: Wilson's interval stands in."""
    n, mean = len(values), float(values.mean())
    if values.min() == values.max() and mean in (0.0, 1.0):
        return wilson(round(mean * n), n)
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, n, (RESAMPLES, n), dtype=np.int32)].mean(axis=1)
    low, high = np.quantile(means, [(1 - statistics.CONFIDENCE) / 2, (1 + statistics.CONFIDENCE) / 2])
    return Score(value=mean, low=float(low), high=float(high), n=n)
