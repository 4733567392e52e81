"""How sure a result is. Guarantees: pure functions of the results and a seed. Games of the same agents with the same
seed are not independent: they make one block, and every interval counts blocks, not games. Does not rate: strengths on
a scale are not computed here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 4000
"""A hundred lie beyond each end of a 95 % interval: steady to a few hundredths of its width."""
BOOTSTRAP_MAX = 1000
"""Above this many values the mean is as good as normal, and Student's t gives the same for less work."""
MIN_BLOCKS = 5
"""Fewer equal differences would show one by luck: an interval of no width is no proof."""

Blocks = Mapping[int, Sequence[float]]
"""The values of all games of a block, by its number."""


@dataclass(frozen=True, slots=True)
class Interval:
    value: float
    low: float
    """-inf where too little is known."""
    high: float

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high

    def as_json(self) -> dict[str, float | None]:
        parts = {"value": self.value, "low": self.low, "high": self.high}
        return {name: round(part, 6) if math.isfinite(part) else None for name, part in parts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two agents, head to head."""

    a: int
    b: int
    games: int
    """That both sat in; of one seat: seeds that both played. 0: they cannot be compared."""
    rate: Interval
    """The share of points that `a` took; 0.5 is even. In games of one seat: of the blocks in which it scored more."""
    difference: Interval
    """Mean score of `a` less that of `b`, paired by block."""
    winner: int | None
    """The agent that is better for sure enough; None: no difference shown."""

    def as_json(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "games": self.games,
            "winner": self.winner,
            "rate": self.rate.as_json(),
            "difference": self.difference.as_json(),
        }

    def sentence(self, names: Sequence[str]) -> str:
        a, b = names[self.a], names[self.b]
        if self.winner is None:
            return f"{a} against {b}: no difference shown"
        return f"{a} beats {b}" if self.winner == self.a else f"{b} beats {a}"


def wilson(successes: float, n: int, *, confidence: float = CONFIDENCE) -> Interval:
    """A share of `n`, by Wilson's score interval; a draw is half a success."""
    if n < 1:
        return Interval(math.nan, 0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = centre - half, centre + half
    return Interval(share, low if share > 0 else 0.0, high if share < 1 else 1.0)  # exact where rounding is not


def win_rate(points: Blocks, *, confidence: float = CONFIDENCE) -> Interval:
    """The share of all games, with Wilson's interval for as many trials as there are blocks."""
    blocks = len(points)
    return wilson(_overall(points) * blocks if blocks else 0.0, blocks, confidence=confidence)


def score_mean(scores: Blocks, *, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean score by Student's t over blocks, without bounds where those would say nothing."""
    if len(scores) < MIN_BLOCKS:
        return Interval(_overall(scores) if scores else math.nan, -math.inf, math.inf)
    interval, mean = t_interval([_mean(group) for group in scores.values()], confidence=confidence), _overall(scores)
    return Interval(mean, mean + interval.low - interval.value, mean + interval.high - interval.value)


def t_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
    """The mean, by Student's t."""
    n = len(values)
    if n == 0:
        return Interval(math.nan, -math.inf, math.inf)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = t_quantile(0.5 + confidence / 2, n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half)


def bootstrap(values: Sequence[float], *, seed: int, confidence: float = CONFIDENCE) -> Interval:
    """The mean, by resampling; for values that are far from normal. Its tails are widened as t is wider than the
    normal distribution, because the plain percentiles are too narrow for few values."""
    n = len(values)
    if n < 2 or n > BOOTSTRAP_MAX:
        return t_interval(values, confidence=confidence)
    data = np.asarray(values, float)
    means = data[np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))].mean(axis=1)
    t = t_quantile(0.5 + confidence / 2, n - 1) * math.sqrt(n / (n - 1))
    tail = NormalDist().cdf(-t)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(data.mean()), float(low), float(high))


def paired_difference(
    a: Blocks, b: Blocks, *, method: Literal["bootstrap", "t"] = "bootstrap", seed: int = 0
) -> Interval:
    """Mean of `a` less mean of `b`, over the blocks that both played in: what the seed gives or takes cancels out."""
    common = sorted(a.keys() & b.keys())
    differences = [_mean(a[key]) - _mean(b[key]) for key in common]
    return bootstrap(differences, seed=seed) if method == "bootstrap" else t_interval(differences)


def _overall(blocks: Blocks) -> float:
    return _mean([value for group in blocks.values() for value in group])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# ---- head to head ----


@dataclass(frozen=True, slots=True)
class ScoredGame:
    """What counts of a finished game; agents, scores and winner by seat."""

    block: int
    """The same for games with one seed at one table; in games of one seat, for all games with one seed."""
    agents: tuple[int, ...]
    scores: tuple[float, ...]
    winner: int | None


def compare(games: Iterable[ScoredGame], a: int, b: int, *, seed: int = 0) -> Comparison:
    """Compare two agents by the points of the games that both sat in, or else by their scores block by block."""
    rates: defaultdict[int, list[float]] = defaultdict(list)
    scores: dict[int, defaultdict[int, list[float]]] = {a: defaultdict(list), b: defaultdict(list)}
    for game in games:
        for agent in (a, b):
            if agent in game.agents:
                scores[agent][game.block].append(game.scores[game.agents.index(agent)])
        if a in game.agents and b in game.agents:
            rates[game.block].append(_point(game, a, b))
    difference = paired_difference(scores[a], scores[b], seed=seed)
    if rates:
        rate = win_rate(rates)
        better = (a if rate.value > 0.5 else b) if rate.excludes(0.5) else None
        return Comparison(a=a, b=b, games=_count(rates), rate=rate, difference=difference, winner=better)
    for block in scores[a].keys() & scores[b].keys():
        rates[block].append(_sign(_mean(scores[a][block]) - _mean(scores[b][block])))
    shown = len(rates) >= MIN_BLOCKS and difference.excludes(0.0)
    better = (a if difference.value > 0 else b) if shown else None
    return Comparison(a=a, b=b, games=_count(rates), rate=win_rate(rates), difference=difference, winner=better)


def _count(blocks: Blocks) -> int:
    return sum(len(group) for group in blocks.values())


def _point(game: ScoredGame, a: int, b: int) -> float:
    """1 when `a` came out above `b`, at a table of any size."""
    one, other = game.agents.index(a), game.agents.index(b)
    if game.winner in (one, other):
        return float(game.winner == one)
    return _sign(game.scores[one] - game.scores[other])


def _sign(difference: float) -> float:
    return 0.5 if difference == 0 else float(difference > 0)


# ---- Student's t, without scipy ----


def t_quantile(p: float, df: int) -> float:
    """The value that t with `df` degrees of freedom stays below with probability `p`, from 0.5 to below 1."""
    low, high = 0.0, 2.0
    while t_cdf(high, df) < p:
        high *= 2
    return _bisect(lambda t: t_cdf(t, df) < p, low, high)


def t_cdf(t: float, df: int) -> float:
    """Return the distribution function of Student's t for t ≥ 0."""
    return 1 - _incomplete_beta(df / 2, 0.5, df / (df + t * t)) / 2


def _bisect(below: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised; by its continued fraction (Numerical Recipes, 6.4)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d)
            c = 1 + numerator / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction
