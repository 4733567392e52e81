"""Who plays next on a continuous ladder, and who may not play on. Guarantees: pure decisions, the same arguments and
random state give the same match; nobody starves, nobody meets itself. Does not rate, start or record anything.

A match is made for one agent, and opponents are sought for it. It is made for, in this order:

    waiting        an agent that has been passed over for too long: the longest waiting first
    provisional    an agent with few games: the fewest first
    uncertain      the agent whose rating is least sure

Opponents come from a window around its place in the order of strength. Its width is drawn anew for each match from a
heavy-tailed distribution, as in Halite: mostly neighbours, at times anybody, which ties the whole field together.
"""

from __future__ import annotations

import enum
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from harena.arena.ladder.ratings import Rating
from harena.errors import SpecError
from harena.match.result import SeatStatus

FAULTS = 5
"""Forfeits by the agent's own fault among its last FAULT_WINDOW matches that bench it. A bug in a rare position should
not; one that shows in every second match costs others their games."""
FAULT_WINDOW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingRules:
    seats: int = 2
    provisional_games: int = 10
    window: float = 2.0
    """Places up or down that always are within reach; half of the time twice as many are, or more."""
    tail: float = 1.0
    """The reach is window / u**tail for u uniform in (0, 1]; more is wilder, 0 is a fixed window. Halite had 5 and
    0.65; in simulated ladders these two order the agents a little better (benchmarks/ladder.py)."""
    patience_rounds: int = 3
    """An agent waits too long when so many rounds were paired without it; in a round everybody could have played."""
    patience_s: float = 3600.0
    """Or when so much time has passed: for a ladder on which few matches are played."""
    at_once: int = 1
    """Matches that an agent may be in at the same time."""
    versions_meet: bool = False
    owners_meet: bool = False
    """Whether agents of one owner meet: an owner could feed one by another."""

    def __post_init__(self) -> None:
        for name, low in (("seats", 2), ("provisional_games", 0), ("patience_rounds", 1), ("at_once", 1)):
            if getattr(self, name) < low:
                raise SpecError(f"pairing rule {name}={getattr(self, name)!r}: at least {low}")
        if not (self.window >= 1 and 0 <= self.tail <= 2 and self.patience_s > 0):
            raise SpecError("pairing rules: window from 1, tail from 0 to 2, patience_s above 0")

    def patience(self, agents: int) -> int:
        """Matches without an agent after which it is served next, behind those who wait longer; so nobody waits for
        more than this and `agents` picks. `recent` must reach back as far, or only `patience_s` is left to guard it."""
        return self.patience_rounds * math.ceil(agents / self.seats)


RULES = PairingRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    agent: str
    rating: Rating
    owner: str = ""
    """Empty: nobody else's."""
    lineage: str = ""
    """The same for all versions of an agent; empty: it has no others."""
    waiting_since: float
    """When its last match was created, or when it entered; on the clock of `now`."""
    benched: bool = False


class Reason(enum.Enum):
    WAITING = "waiting"
    PROVISIONAL = "provisional"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderPairing:
    agents: tuple[str, ...]
    """The agents in seat order; the order is drawn at random."""
    sought: str
    """The agent that the match was made for."""
    reason: Reason


def choose(
    ratings: Sequence[Candidate],
    recent: Sequence[tuple[str, ...]],
    running: Iterable[tuple[str, ...]],
    *,
    rng: random.Random,
    now: float,
    rules: PairingRules = RULES,
    needy: Collection[str] | None = None,
) -> LadderPairing | None:
    """The next match; None when no table can be filled now. `recent`: the agents of the last matches that were created,
    the latest last, running ones too. `running`: those of the matches that have not ended. `needy`: whom a match may be
    made for; None: anybody. Opponents may be anybody."""
    busy = Counter(agent for table in running for agent in set(table))
    free = [one for one in ratings if not one.benched and busy[one.agent] < rules.at_once]
    free.sort(key=lambda one: one.agent)  # the caller's order must not matter
    last = _last_tables(recent)
    patience = rules.patience(len(ratings))

    def starving(one: Candidate) -> bool:
        return last.get(one.agent, len(recent)) >= patience or now - one.waiting_since > rules.patience_s

    def rematch(a: str, b: str) -> bool:
        return any(one in last and other in recent[-1 - last[one]] for one, other in ((a, b), (b, a)))

    sought = free if needy is None else [one for one in free if one.agent in needy]
    for reason, one in _by_need(sought, starving, rng=rng, rules=rules):
        table = _table(one, free, rematch, rng=rng, rules=rules)
        if table is not None:
            rng.shuffle(table)
            return LadderPairing(agents=tuple(table), sought=one.agent, reason=reason)
    return None


def _last_tables(recent: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """How many matches ago each agent sat down; 0 is the latest."""
    last: dict[str, int] = {}
    for ago, table in enumerate(reversed(recent)):
        for agent in table:
            last.setdefault(agent, ago)
    return last


def _by_need(
    free: Sequence[Candidate], starving: Callable[[Candidate], bool], *, rng: random.Random, rules: PairingRules
) -> list[tuple[Reason, Candidate]]:
    waiting = [one for one in free if starving(one)]
    others = [one for one in free if not starving(one)]
    rng.shuffle(others)  # equals in random order
    provisional = [one for one in others if one.rating.games < rules.provisional_games]
    uncertain = [one for one in others if one.rating.games >= rules.provisional_games]
    waiting.sort(key=lambda one: one.waiting_since)
    provisional.sort(key=lambda one: (one.rating.games, one.waiting_since))
    uncertain.sort(key=lambda one: (-one.rating.sigma, one.rating.games))
    return [
        *((Reason.WAITING, one) for one in waiting),
        *((Reason.PROVISIONAL, one) for one in provisional),
        *((Reason.UNCERTAIN, one) for one in uncertain),
    ]


def _table(
    sought: Candidate,
    free: Sequence[Candidate],
    rematch: Callable[[str, str], bool],
    *,
    rng: random.Random,
    rules: PairingRules,
) -> list[str] | None:
    table = [sought]
    for one in _by_fit(sought, free, rematch, rng=rng, rules=rules):
        if len(table) < rules.seats and all(_may_meet(one, other, rules) for other in table):
            table.append(one)
    return [one.agent for one in table] if len(table) == rules.seats else None


def _by_fit(
    sought: Candidate,
    free: Sequence[Candidate],
    rematch: Callable[[str, str], bool],
    *,
    rng: random.Random,
    rules: PairingRules,
) -> list[Candidate]:
    """Within reach, in random order; then the others, the nearest first; last, those it has just met."""
    reach = rules.window / (1 - rng.random()) ** rules.tail
    order = sorted(free, key=lambda one: (one.rating.mu, one.agent))
    place = order.index(sought)
    ranked: list[tuple[bool, float, float, Candidate]] = []
    for at, one in enumerate(order):
        distance = abs(at - place)
        far = 0 if distance <= reach else distance
        ranked.append((rematch(sought.agent, one.agent), far, rng.random(), one))
    return [one for *_, one in sorted(ranked, key=lambda row: row[:3])]


def _may_meet(one: Candidate, other: Candidate, rules: PairingRules) -> bool:
    if one.agent == other.agent:
        return False
    if not rules.versions_meet and one.lineage and one.lineage == other.lineage:
        return False
    return rules.owners_meet or not one.owner or one.owner != other.owner


# ---- the bench ----


def bench_rule(history: Sequence[SeatStatus]) -> str | None:
    """Why an agent may not play on, or None. `history`: how it behaved in its matches, the latest last, since it
    entered or was last taken off the bench; matches that the platform voided are not in it."""
    faults = [status for status in history[-FAULT_WINDOW:] if status is not SeatStatus.OK]
    if len(faults) < FAULTS:
        return None
    kinds = ", ".join(f"{count} {status.value}" for status, count in Counter(faults).most_common())
    of = min(len(history), FAULT_WINDOW)
    return (
        f"{len(faults)} of its last {of} matches were forfeited by its own fault ({kinds}): "
        "see its logs and submit a new version, or ask the host to let it play on"
    )
