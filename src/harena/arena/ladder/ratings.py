"""Ratings as a fold over the match log. Guarantees: pure computation; rated results count in the order in which their
matches were created, whatever order they arrived in, so a live ladder and a rebuilt one agree to the last bit. Does not
store anything and does not decide who plays: that is `pairing`.

    Ladder, fold     ratings that move with each match (Plackett-Luce, or Elo): quick to update, what pairing looks at
    refit            the published board: one Bradley-Terry fit over all results at once, with intervals and ranks

The board has no order effects. Results at tables of n seats count as their n(n-1)/2 comparisons, each with weight
1/(n-1), so that a match weighs the same for an agent at any table; a draw is half a win. Both make the intervals wider
than they need to be where there are many draws or large tables. Matches count as independent of each other: agents that
play the same game move by move again and again get intervals that are too narrow.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt
from openskill import models

from harena.errors import SpecError

SCALE = 400 / math.log(10)
"""Board points in one unit of log odds: 400 points are odds of ten to one, as in Elo."""
MEAN = 1500.0
"""Mean of the strengths of all agents. Only differences between strengths have a meaning."""
SPREAD = 2.0
"""Log odds; 347 points. The standard deviation of strengths in a field, as far as its results do not tell."""
SPREAD_AGENTS = 2.0
"""That guess weighs as much as so many agents."""
SPREAD_MAX = 6.0
"""Log odds; where everybody always wins or always loses, results would tell any spread."""
CONFIDENCE = 0.95

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


# ---- the log ----


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedOutcome:
    """One row of the match log. A match without a result (void, cancelled) has none."""

    number: int
    """Number of the match, in order of creation."""
    agents: tuple[str, ...]
    """Their ids, in seat order."""
    ranks: tuple[int, ...]
    """The rank of each seat: lower is better, equal is a draw. `ranks_of` makes them from scores."""
    rated: bool = True
    """False for challenges: such a row changes nothing."""

    def __post_init__(self) -> None:
        if len(self.agents) != len(self.ranks):
            raise SpecError(f"match {self.number}: {len(self.agents)} agents but {len(self.ranks)} ranks")
        if self.rated and len(self.agents) < 2:
            raise SpecError(f"match {self.number}: rated with {len(self.agents)} agents: at least two")
        if self.rated and len(set(self.agents)) < len(self.agents):
            raise SpecError(f"match {self.number}: an agent in two seats cannot be rated")


def ranks_of(scores: Sequence[float], *, winner: int | None = None) -> tuple[int, ...]:
    """1 for the best score, and so on; equal scores share a rank. A winner named by the game is first, whatever the
    scores say."""
    if any(math.isnan(score) for score in scores):
        raise SpecError(f"scores {list(scores)}: a score that is no number cannot be ranked")
    if winner is not None and not 0 <= winner < len(scores):
        raise SpecError(f"winner {winner}: there are {len(scores)} seats")
    keys = [(seat != winner, -score) for seat, score in enumerate(scores)]
    return tuple(1 + sum(other < key for other in keys) for key in keys)


# ---- ratings that move with each match ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    mu: float
    sigma: float
    """How unsure `mu` is; 0 where the model does not know."""
    games: int = 0
    """Rated ones."""


POINT = SCALE / (math.sqrt(2) * 25 / 6)
"""Board points in one unit of Plackett-Luce's mu: settled agents sqrt(2) betas apart have odds of e to one."""


class RatingModel(Protocol):
    """A rating system."""

    @property
    def start(self) -> Rating:
        """Return the rating of an unknown agent."""
        ...

    def update(self, before: Sequence[Rating], ranks: Sequence[int]) -> list[Rating]: ...

    def inherit(self, parent: Rating) -> Rating:
        """Return the rating of a new version that has not played yet."""
        ...

    @staticmethod
    def made(mu: float, sigma: float) -> bool:
        """Whether a stored rating is one of this system's. No two systems may claim the same one."""
        ...

    @staticmethod
    def points(mu: float, sigma: float) -> tuple[float, float]:
        """A rating and its doubt on the board's scale, as far as the two can be compared."""
        ...


class PlackettLuce:
    """Weng and Lin's online Plackett-Luce, by openskill: tables of any size, draws."""

    NEWS = 0.5
    """How much a new version may differ from the last, in units of what an unknown agent may."""

    def __init__(self) -> None:
        # An agent is code and does not change, so no doubt is added from game to game.
        self._model = models.PlackettLuce(tau=0.0)
        self.start = Rating(mu=self._model.mu, sigma=self._model.sigma)

    def update(self, before: Sequence[Rating], ranks: Sequence[int]) -> list[Rating]:
        teams = [[self._model.rating(mu=rating.mu, sigma=rating.sigma)] for rating in before]
        after = self._model.rate(teams, ranks=[float(rank) for rank in ranks])
        return [
            Rating(mu=team[0].mu, sigma=team[0].sigma, games=rating.games + 1)
            for team, rating in zip(after, before, strict=True)
        ]

    def inherit(self, parent: Rating) -> Rating:
        return Rating(mu=parent.mu, sigma=min(self.start.sigma, math.hypot(parent.sigma, self.NEWS * self.start.sigma)))

    @staticmethod
    def made(mu: float, sigma: float) -> bool:
        return sigma > 0  # it is never quite sure

    @staticmethod
    def points(mu: float, sigma: float) -> tuple[float, float]:
        return MEAN + POINT * (mu - 25), POINT * sigma


class Elo:
    """The well-known rating. In matches of n players, each pair counts K/(n-1)."""

    def __init__(self, *, k: float = 32.0) -> None:
        if not 0 < k <= 400:
            raise SpecError(f"Elo with K={k!r}: must be above 0 and at most 400")
        self.k = k
        self.start = Rating(mu=MEAN, sigma=0.0)

    def update(self, before: Sequence[Rating], ranks: Sequence[int]) -> list[Rating]:
        gains = [0.0] * len(before)
        for a, b in itertools.combinations(range(len(before)), 2):
            expected = 1 / (1 + 10 ** ((before[b].mu - before[a].mu) / 400))
            point = (float(ranks[a] < ranks[b]) + float(ranks[a] <= ranks[b])) / 2
            gains[a] += point - expected
            gains[b] -= point - expected
        share = self.k / (len(before) - 1)
        return [
            Rating(mu=rating.mu + share * gain, sigma=0.0, games=rating.games + 1)
            for rating, gain in zip(before, gains, strict=True)
        ]

    def inherit(self, parent: Rating) -> Rating:
        return Rating(mu=parent.mu, sigma=0.0)

    @staticmethod
    def made(mu: float, sigma: float) -> bool:
        return sigma <= 0  # it knows no doubt

    @staticmethod
    def points(mu: float, sigma: float) -> tuple[float, float]:
        return mu, sigma  # on the board's scale already


SYSTEMS: dict[str, type[RatingModel]] = {"plackett-luce": PlackettLuce, "elo": Elo}
"""Rating systems by the name that an environment's settings give. Stored ratings do not say which one made them."""


def points(mu: float, sigma: float) -> tuple[float, float]:
    """A stored rating on the board's scale, as the system that made it shows it."""
    system = next(system for system in SYSTEMS.values() if system.made(mu, sigma))
    return system.points(mu, sigma)


class RatingLadder:
    """The state of the fold. A result that comes late is put in its place: what was created after it is taken back and
    played again, at the cost of those matches only."""

    def __init__(self, *, model: RatingModel | None = None, parents: Mapping[str, str] | None = None) -> None:
        self._model: RatingModel = model or PlackettLuce()
        self._parents: dict[str, str] = {}
        self._ratings: dict[str, Rating] = {}
        self._log: list[RatedOutcome] = []
        self._before: list[tuple[Rating | None, ...]] = []
        for agent, parent in (parents or {}).items():
            self.enter(agent, parent=parent)

    @property
    def ratings(self) -> dict[str, Rating]:
        """Return the ratings of all agents that have played a rated match."""
        return dict(self._ratings)

    @property
    def log(self) -> tuple[RatedOutcome, ...]:
        """What counts, in order of creation."""
        return tuple(self._log)

    def enter(self, agent: str, *, parent: str) -> None:
        """`agent` is the next version of `parent`. To be said before it plays."""
        if self._parents.get(agent, parent) != parent or agent in self._ratings:
            raise SpecError(f"agent {agent} has played or has another parent: its origin cannot change")
        if agent == parent or agent in self._ancestors(parent):
            raise SpecError(f"agent {agent} would be a version of itself")
        self._parents[agent] = parent

    def rating(self, agent: str) -> Rating:
        """Also of one who has not played: its last version's, less sure, or that of an unknown agent."""
        line = [agent, *self._ancestors(agent)]
        unplayed = list(itertools.takewhile(lambda version: version not in self._ratings, line))
        rating = self._ratings[line[len(unplayed)]] if len(unplayed) < len(line) else self._model.start
        for _ in unplayed:
            rating = self._model.inherit(rating)
        return rating

    def apply(self, outcome: RatedOutcome) -> None:
        """The same result twice counts once."""
        if not outcome.rated:
            return
        at = bisect_left(self._log, outcome.number, key=lambda row: row.number)
        later = self._log[at:]
        if later and later[0].number == outcome.number:
            if later[0] != outcome:
                raise SpecError(f"match {outcome.number} has another result already: rebuild from the corrected log")
            return
        self._take_back(at)
        for row in (outcome, *later):
            self._play(row)

    def _ancestors(self, agent: str) -> list[str]:
        line: list[str] = []
        while agent in self._parents:
            agent = self._parents[agent]
            line.append(agent)
        return line

    def _play(self, outcome: RatedOutcome) -> None:
        after = self._model.update([self.rating(agent) for agent in outcome.agents], outcome.ranks)
        self._log.append(outcome)
        self._before.append(tuple(self._ratings.get(agent) for agent in outcome.agents))
        self._ratings.update(zip(outcome.agents, after, strict=True))

    def _take_back(self, at: int) -> None:
        while len(self._log) > at:
            for agent, rating in zip(self._log.pop().agents, self._before.pop(), strict=True):
                if rating is None:
                    del self._ratings[agent]
                else:
                    self._ratings[agent] = rating


def fold(
    log: Iterable[RatedOutcome], *, model: RatingModel | None = None, parents: Mapping[str, str] | None = None
) -> RatingLadder:
    """The ladder after all of `log`, given in any order. `parents`: the version before, for each that has one."""
    ladder = RatingLadder(model=model, parents=parents)
    for outcome in sorted(log, key=lambda row: row.number):
        ladder.apply(outcome)
    return ladder


# ---- the board ----


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingEntry:
    agent: str
    rank: int
    """One more than the number of agents that are stronger for sure enough: by the difference of the two, at the
    board's confidence. Ranks are shared, and an agent with few games may share a better one than the agent above it."""
    strength: float
    """400 points are odds of ten to one; the field's mean is 1500."""
    low: float
    high: float
    """The interval of the strength, relative to the mean of the largest component."""
    games: int
    component: int
    """Which of the board's components it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingBoard:
    entries: tuple[RatingEntry, ...]
    """Entries by strength, the strongest first."""
    components: tuple[tuple[str, ...], ...]
    """Agents that a chain of results connects, the largest component first. With more than one, each has its mean at
    1500 and nothing says which is stronger: ranks are within a component, and the intervals outside of the largest
    allow for it. An agent without games is a component of its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTally:
    """All that the fit needs of a log."""

    agents: tuple[str, ...]
    wins: Matrix
    """[i, j]: weighted comparisons that i won against j; draws are half."""
    games: npt.NDArray[np.int64]


def tally(log: Iterable[RatedOutcome], *, agents: Iterable[str] = ()) -> PairTally:
    by_seats: defaultdict[int, list[RatedOutcome]] = defaultdict(list)
    for outcome in log:
        if outcome.rated:
            by_seats[len(outcome.agents)].append(outcome)
    seats_of = {seats: [agent for row in rows for agent in row.agents] for seats, rows in by_seats.items()}
    order = sorted(set(agents).union(*seats_of.values()))
    index = {agent: position for position, agent in enumerate(order)}
    wins, games = np.zeros((len(order), len(order))), np.zeros(len(order), np.int64)
    for seats, rows in sorted(by_seats.items()):
        size = seats * len(rows)
        # Iterators that run in C: reading the log is most of the time that a board takes.
        seated = np.fromiter(map(index.__getitem__, seats_of[seats]), np.intp, size)
        ranks = np.fromiter(itertools.chain.from_iterable(row.ranks for row in rows), np.int64, size)
        wins += _comparisons(seated.reshape(-1, seats), ranks.reshape(-1, seats), len(order)) / (seats - 1)
        games += np.bincount(seated, minlength=len(order))
    return PairTally(agents=tuple(order), wins=wins, games=games)


def _comparisons(seated: npt.NDArray[np.intp], ranks: npt.NDArray[np.int64], n: int) -> Matrix:
    """Unweighted: sums of halves are exact, so the order of the rows leaves no trace."""
    wins = np.zeros(n * n)
    for a, b in itertools.combinations(range(seated.shape[1]), 2):
        points = ((ranks[:, a] < ranks[:, b]).astype(np.float64) + (ranks[:, a] <= ranks[:, b])) / 2
        wins += np.bincount(seated[:, a] * n + seated[:, b], points, n * n)
        wins += np.bincount(seated[:, b] * n + seated[:, a], 1 - points, n * n)
    return wins.reshape(n, n)


def refit(
    log: Iterable[RatedOutcome],
    *,
    agents: Iterable[str] = (),
    listed: Collection[str] | None = None,
    confidence: float = CONFIDENCE,
) -> RatingBoard:
    """`agents`: also on the board, if they have not played yet. `listed`: as `board` takes it."""
    return board(tally(log, agents=agents), listed=listed, confidence=confidence)


def board(counts: PairTally, *, listed: Collection[str] | None = None, confidence: float = CONFIDENCE) -> RatingBoard:
    """`listed`: only these have a line, and only these count for a rank; the results of the others still say how
    strong these are. None: all."""
    if not 0 < confidence < 1:
        raise SpecError(f"confidence={confidence!r}: must be between 0 and 1")
    if not counts.agents:
        return RatingBoard(entries=(), components=())
    components = _components(counts.wins)
    strengths, covariance = bradley_terry(counts.wins)
    if len(components[0]) > 1:
        covariance = _centred(covariance, components[0])
    labels = _labels(components, len(counts.agents))
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    shown = np.array([listed is None or agent in listed for agent in counts.agents])
    ranks = _ranks(strengths, covariance, labels, z, shown)
    points = MEAN + SCALE * strengths
    half = SCALE * z * np.sqrt(np.maximum(np.diag(covariance), 0))  # rounding
    entries = [
        RatingEntry(
            agent=agent,
            rank=int(ranks[i]),
            strength=float(points[i]),
            low=float(points[i] - half[i]),
            high=float(points[i] + half[i]),
            games=int(counts.games[i]),
            component=int(labels[i]),
        )
        for i, agent in enumerate(counts.agents)
        if shown[i]
    ]
    return RatingBoard(
        entries=tuple(sorted(entries, key=lambda entry: (-entry.strength, entry.agent))),
        components=tuple(tuple(counts.agents[i] for i in members) for members in components),
    )


def bradley_terry(wins: Matrix) -> tuple[Vector, Matrix]:
    """Strengths in log odds, around 0, and their covariance.

    Strengths are taken to be normally distributed, as widely as the results themselves say. That keeps an unbeaten
    agent finite. It also keeps the intervals honest: a ladder pairs neighbours by the very results that are fitted
    here, and with a much wider distribution the field looks more spread out than it is: 95 % intervals held in 86-90 %.
    """
    total, points = wins + wins.T, wins.sum(axis=1)
    played = np.flatnonzero(total.any(axis=1))
    strengths, covariance, spread = np.zeros(len(wins)), np.zeros_like(wins), SPREAD
    for _ in range(200):
        strengths = _fit(total, points, strengths, spread)
        covariance = np.linalg.inv(_information(total, _expected(strengths), spread)).astype(np.float64)
        # A step of expectation maximisation.
        squares = float((strengths[played] ** 2 + np.diag(covariance)[played]).sum()) + SPREAD_AGENTS * SPREAD**2
        before, spread = spread, min(SPREAD_MAX, math.sqrt(squares / (len(played) + SPREAD_AGENTS)))
        if abs(spread - before) < 1e-3 * before:
            break
    return strengths, covariance


def _fit(total: Matrix, points: Vector, strengths: Vector, spread: float) -> Vector:
    for _ in range(200):
        expected = _expected(strengths)
        gradient: Vector = points - (total * expected).sum(axis=1) - strengths / spread**2
        step = np.linalg.solve(_information(total, expected, spread), gradient).astype(np.float64)
        # Newton's step, damped as logistic functions need it to climb from anywhere: whole once it is small.
        size = float(step.max() - step.min())
        strengths = strengths + step * (math.log1p(size) / size if size > 0 else 1.0)
        if size < 1e-4:  # the next one would be about its square
            break
    return strengths


def _expected(strengths: Vector) -> Matrix:
    return (1 + np.tanh((strengths[:, None] - strengths[None, :]) / 2)) / 2


def _information(total: Matrix, expected: Matrix, spread: float) -> Matrix:
    weights = total * expected * (1 - expected)
    return np.diag(weights.sum(axis=1) + spread**-2) - weights


def _centred(covariance: Matrix, members: list[int]) -> Matrix:
    """Return the covariance of strengths relative to the mean of `members`. How unsure that mean itself is, the results
    cannot tell and nobody asks: with it, the intervals would be too wide."""
    covariance = covariance - covariance[members].mean(axis=0)
    return covariance - covariance[:, members].mean(axis=1, keepdims=True)


def _ranks(
    strengths: Vector, covariance: Matrix, labels: npt.NDArray[np.intp], z: float, shown: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    variance = np.diag(covariance)
    spread = np.sqrt(np.maximum(variance[:, None] + variance[None, :] - 2 * covariance, 0))
    stronger = strengths[None, :] - strengths[:, None] > np.maximum(z * spread, 1e-9)
    return 1 + (stronger & (labels[:, None] == labels[None, :]) & shown[None, :]).sum(axis=1)


def _components(wins: Matrix) -> list[list[int]]:
    met = (wins + wins.T) > 0
    left, found = set(range(len(wins))), list[list[int]]()
    while left:
        members, edge = set[int](), {min(left)}
        while edge:
            members |= edge
            edge = set(np.flatnonzero(met[sorted(edge)].any(axis=0)).tolist()) - members
        left -= members
        found.append(sorted(members))
    return sorted(found, key=lambda members: (-len(members), members))


def _labels(components: list[list[int]], n: int) -> npt.NDArray[np.intp]:
    labels = np.zeros(n, np.intp)
    for label, members in enumerate(components):
        labels[members] = label
    return labels
