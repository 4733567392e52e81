"""Pairings and seeds of series, round robin, Swiss, single and double elimination. Guarantees: pure decisions; the same
arguments and results give the same games. Games are played elsewhere.

`series` and `round_robin` are lists of pairings, `Fixed` makes a schedule of one; the others decide round by round.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harena.match.series.schedule import Pairing, Played, Schedule, Standing, check, check_size, derive

SUDDEN_DEATH = 3
"""Games after an even tie, before the lower seed number decides."""
SEARCH = 20_000
"""Steps of the search for a Swiss round without rematches; one that needs more settles for some."""


def rotated(agents: Sequence[int], by: int) -> tuple[int, ...]:
    by %= len(agents)
    return (*agents[by:], *agents[:by])


# ---- fixed schedules ----


def series(n_agents: int, games: int, *, mirror: bool, seed: int) -> list[Pairing]:
    """Repeated games of the same agents, each with its own seed. With `mirror` each seed is played in all rotations of
    the seats, and `games` is rounded up to complete sets."""
    check(n_agents >= 1 and games >= 1, f"a series of {games} games with {n_agents} agents: at least one of each")
    check_size(games)
    agents = range(n_agents)
    if not mirror:
        return _numbered((tuple(agents), derive(seed, game), 1, 0) for game in range(games))
    sets = range(-(-games // n_agents))
    return _numbered((rotated(agents, turn), derive(seed, index), 1, 0) for index in sets for turn in agents)


def round_robin(n: int, games: int, mirror: bool, seed: int, *, seats: int = 2) -> list[Pairing]:
    """Every table of `seats` agents plays `games` games, on the same seeds as every other table. Two seats: in rounds
    in which nobody plays twice. Without `mirror` the seats change from game to game."""
    check(games >= 1, f"{games} games: at least one")
    check(1 <= seats <= n, f"{n} agents for {seats} seats: at least as many agents as seats")
    sets = -(-games // seats) if mirror else games
    per_table = sets * seats if mirror else games
    check_size(math.comb(n, seats) * per_table)

    def table(round: int, number: int, agents: tuple[int, ...]) -> Iterable[tuple[tuple[int, ...], int, int, int]]:
        for game in range(per_table):
            turn, index = (game % seats, game // seats) if mirror else (game + round + number, game)
            yield rotated(agents, turn), derive(seed, index), round, number

    rounds = _circle(n) if seats == 2 else [[table] for table in itertools.combinations(range(n), seats)]
    numbers = itertools.count()
    return _numbered(
        game
        for round, tables in enumerate(rounds, 1)
        for agents in tables
        for game in table(round, next(numbers), agents)
    )


def _circle(n: int) -> list[list[tuple[int, ...]]]:
    """Circle method: one agent stays, the others rotate."""
    ring = list(range(n)) if n % 2 == 0 else [*range(n), -1]
    rounds: list[list[tuple[int, ...]]] = []
    for _ in range(len(ring) - 1):
        pairs = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        rounds.append([pair for pair in pairs if -1 not in pair])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def _numbered(games: Iterable[tuple[tuple[int, ...], int, int, int]]) -> list[Pairing]:
    return [
        Pairing(seats=seats, seed=seed, round=round, number=number, tie=tie)
        for number, (seats, seed, round, tie) in enumerate(games)
    ]


class Fixed(Schedule):
    """A list made beforehand, by `series` or `round_robin`, in one go. Ranked by points per game, then by score."""

    def __init__(self, n: int, pairings: Sequence[Pairing]) -> None:
        super().__init__(n)
        self._pairings = list(pairings)
        self.expected = len(self._pairings)

    def _advance(self) -> list[Pairing]:
        pairings, self._pairings = self._pairings, []
        return pairings


# ---- Swiss ----


class Swiss(Schedule):
    """Each round pairs neighbours in the standings who have not met, as far as that can be; of an odd number one has a
    bye, which counts as won. Ranked by points, then by Buchholz. Two games in a row share a seed, seats swapped."""

    def __init__(self, n: int, rounds: int, seed: int, *, games: int = 1) -> None:
        super().__init__(n)
        check(n >= 2 and rounds >= 1 and games >= 1, f"Swiss: {n} agents, {rounds} rounds, {games} games: too few")
        self.expected = n // 2 * rounds * games
        check_size(self.expected)
        self.rounds, self._seed, self._games = rounds, seed, games
        self._round = 0
        self._met: Counter[frozenset[int]] = Counter()
        self._byes: Counter[int] = Counter()
        self._first: Counter[int] = Counter()
        self._numbers = itertools.count()
        self._ties = itertools.count()

    def _advance(self) -> list[Pairing]:
        if self._round == self.rounds:
            return []
        self._round += 1
        bye, pairs = self._pairs()
        if bye is not None:
            self._byes[bye] += 1
        return [pairing for pair in pairs for pairing in self._meeting(pair)]

    def _pairs(self) -> tuple[int | None, list[tuple[int, int]]]:
        rows = self._tally()
        order = sorted(rows, key=lambda agent: (-rows[agent].points, derive(self._seed, -1 - agent)))
        if self.n % 2 == 0:
            return None, _neighbours(order, self._met) or _fewest_rematches(order, self._met)
        fewest = min(self._byes[agent] for agent in order)
        byes = [agent for agent in reversed(order) if self._byes[agent] == fewest]
        for bye in byes:
            if pairs := _neighbours([agent for agent in order if agent != bye], self._met):
                return bye, pairs
        return byes[0], _fewest_rematches([agent for agent in order if agent != byes[0]], self._met)

    def _meeting(self, pair: tuple[int, int]) -> list[Pairing]:
        self._met[frozenset(pair)] += 1
        tie = next(self._ties)
        # The agent that had the first seat less often gets it now; the seed decides between equals.
        agents = sorted(pair, key=lambda agent: (self._first[agent], derive(self._seed, -1 - agent)))
        self._first[agents[0]] += 1
        return [
            Pairing(
                seats=rotated(agents, game),
                seed=derive(self._seed, tie * self._games + game // 2),
                round=self._round,
                number=next(self._numbers),
                tie=tie,
            )
            for game in range(self._games)
        ]

    def _tally(self) -> dict[int, Standing]:
        rows = super()._tally()
        for agent, byes in self._byes.items():
            rows[agent] = replace(rows[agent], byes=byes, points=rows[agent].points + byes * self._games)
        buchholz: defaultdict[int, float] = defaultdict(float)
        for (one, other), times in self._met.items():
            buchholz[one] += times * rows[other].points
            buchholz[other] += times * rows[one].points
        return {agent: replace(row, tie_break=buchholz[agent]) for agent, row in rows.items()}

    def _rank_key(self, row: Standing) -> tuple[float, ...]:
        return row.points, row.tie_break, row.score


def _neighbours(order: list[int], met: Counter[frozenset[int]]) -> list[tuple[int, int]]:
    """Pairs without a rematch, each from the top with the nearest that leaves a way for the rest; or none at all."""
    steps = itertools.count()

    def search(left: list[int]) -> list[tuple[int, int]] | None:
        if not left:
            return []
        first = left[0]
        for at in range(1, len(left)):
            if met[frozenset((first, left[at]))]:
                continue
            if next(steps) > SEARCH:
                return None
            if (rest := search(left[1:at] + left[at + 1 :])) is not None:
                return [(first, left[at]), *rest]
        return None

    return search(order) or []


def _fewest_rematches(order: list[int], met: Counter[frozenset[int]]) -> list[tuple[int, int]]:
    left, pairs = list(order), list[tuple[int, int]]()
    while left:
        first = left.pop(0)
        other = min(left, key=lambda agent: met[frozenset((first, agent))])
        left.remove(other)
        pairs.append((first, other))
    return pairs


# ---- elimination ----

BYE = -1
Source = tuple[str, int]
"""("seed", agent), ("winner", tie) or ("loser", tie)."""


@dataclass(slots=True)
class BracketTie:
    """One meeting in the bracket."""

    sources: tuple[Source, Source]
    stage: str
    level: int = 0
    """Above 0: its loser is out, and the higher the level the better the place."""
    only_if_second_won: int | None = None
    """Played only if the second of that tie won it: the final's second part, in double elimination."""
    players: tuple[int, ...] = ()
    winner: int | None = None
    loser: int | None = None
    scheduled: int = 0
    extra: int = 0


class Elimination(Schedule):
    """What both brackets share. Agents are seeded by their index; byes go to the lowest numbers. A tie is decided by
    points, then by the total score, then by sudden death, at last by the lower seed number, which `notes` says."""

    def __init__(self, n: int, seed: int, games: int = 1) -> None:
        super().__init__(n)
        check(n >= 2 and games >= 1, f"elimination: {n} agents and {games} games: at least two and one")
        check_size(2 * n * games)
        self.expected = (n - 1) * games
        self._seed, self._games = seed, games
        self.ties: list[BracketTie] = []
        self._round = 0
        self._numbers = itertools.count()
        self._seeds = itertools.count()

    @property
    def champion(self) -> int | None:
        return self.ties[-1].winner

    def _add(self, one: Source, other: Source, stage: str, level: int = 0) -> int:
        self.ties.append(BracketTie((one, other), stage, level))
        return len(self.ties) - 1

    def _winners_bracket(self, *, out: bool) -> list[list[int]]:
        """The numbers of its ties, round by round."""
        entries: list[Source] = [("seed", agent) for agent in _bracket_order(self.n)]
        rounds: list[list[int]] = []
        while len(entries) > 1:
            level = len(rounds) + 1
            pairs = _batched(entries)
            rounds.append([self._add(one, other, f"round {level}", level if out else 0) for one, other in pairs])
            entries = [("winner", tie) for tie in rounds[-1]]
        return rounds

    def _advance(self) -> list[Pairing]:
        games: defaultdict[int, list[Played]] = defaultdict(list)
        for game in self.played:
            games[game.pairing.tie].append(game)
        for number, tie in enumerate(self.ties):  # a tie comes after those it depends on
            if not tie.players:
                self._seat(tie)
            elif tie.winner is None:
                self._decide(tie, games[number])
        self._round += 1
        return [
            pairing
            for number, tie in enumerate(self.ties)
            if tie.players and tie.winner is None
            for pairing in self._games_of(number, tie)
        ]

    def _seat(self, tie: BracketTie) -> None:
        one, other = (self._known(source) for source in tie.sources)
        if one is None or other is None:
            return
        tie.players = (one, other)
        if BYE in tie.players:
            tie.winner, tie.loser = max(tie.players), BYE
        elif tie.only_if_second_won is not None:
            before = self.ties[tie.only_if_second_won]
            if before.winner == before.players[0]:
                tie.winner, tie.loser = before.winner, before.loser

    def _known(self, source: Source) -> int | None:
        kind, number = source
        if kind == "seed":
            return number
        return self.ties[number].winner if kind == "winner" else self.ties[number].loser

    def _games_of(self, number: int, tie: BracketTie) -> list[Pairing]:
        count = self._games if tie.scheduled == 0 else 1
        pairings: list[Pairing] = []
        seed = 0
        for game in range(count):
            if game % 2 == 0:
                seed = derive(self._seed, next(self._seeds))
            # A single game gives one of them the better seat: the seed draws who.
            turn = game if count > 1 else tie.scheduled + (derive(self._seed, -1 - number) & 1)
            seats = rotated(tie.players, turn)
            pairings.append(Pairing(seats=seats, seed=seed, round=self._round, number=next(self._numbers), tie=number))
        tie.scheduled += count
        return pairings

    def _decide(self, tie: BracketTie, games: list[Played]) -> None:
        one, other = (_totals(games, agent) for agent in tie.players)
        if one != other:
            tie.winner = tie.players[0] if one > other else tie.players[1]
        elif tie.extra < SUDDEN_DEATH:
            tie.extra += 1
            return
        else:
            first, second = sorted(tie.players)
            tie.winner = first
            self.notes.append(
                f"{tie.stage}: {{{first}}} and {{{second}}} were even after {tie.scheduled} games; "
                f"{{{first}}} goes on, by the lower seed number ({first + 1} before {second + 1})"
            )
        tie.loser = tie.players[1] if tie.winner == tie.players[0] else tie.players[0]

    def _tally(self) -> dict[int, Standing]:
        rows = super()._tally()
        for tie in self.ties:
            real = [agent for agent in tie.players if agent != BYE]
            if len(real) == 1 and len(tie.players) == 2:
                rows[real[0]] = replace(rows[real[0]], byes=rows[real[0]].byes + 1)
        return {agent: replace(row, tie_break=self._level(agent)) for agent, row in rows.items()}

    def _level(self, agent: int) -> float:
        levels = [tie.level for tie in self.ties if tie.level and tie.loser == agent]
        return float(levels[0]) if levels else float(max(tie.level for tie in self.ties) + 1)

    def _rank_key(self, row: Standing) -> tuple[float, ...]:
        return (row.tie_break,)


class SingleElimination(Elimination):
    """An agent that loses a tie is out."""

    def __init__(self, n: int, seed: int, games: int = 1) -> None:
        super().__init__(n, seed, games)
        self._winners_bracket(out=True)


class DoubleElimination(Elimination):
    """An agent that loses two ties is out. The winner of the losers' bracket must win the final twice."""

    def __init__(self, n: int, seed: int, games: int = 1) -> None:
        super().__init__(n, seed, games)
        self.expected = (2 * n - 2) * games
        winners = self._winners_bracket(out=False)
        levels = itertools.count(1)

        def play(pairs: Iterable[tuple[Source, Source]]) -> list[Source]:
            level = next(levels)
            return [("winner", self._add(one, other, f"losers' round {level}", level)) for one, other in pairs]

        left: list[Source] = [("loser", tie) for tie in winners[0]]
        for round, ties in enumerate(winners[1:]):
            left = play(_batched(left))
            # Every other round comes in reversed, so that those who met do not meet again at once.
            fallen: list[Source] = [("loser", tie) for tie in (ties if round % 2 else reversed(ties))]
            left = play(zip(left, fallen, strict=True))
        final = self._add(("winner", winners[-1][0]), left[0], "final")
        last = self._add(("winner", final), ("loser", final), "second final", next(levels))
        self.ties[last].only_if_second_won = final


def _totals(games: list[Played], agent: int) -> tuple[float, float]:
    seats = [(game, game.pairing.seats.index(agent)) for game in games]
    # fsum: the order of the games must not make a difference between equals.
    return math.fsum(game.points[seat] for game, seat in seats), math.fsum(game.scores[seat] for game, seat in seats)


def _batched(entries: Sequence[Source]) -> list[tuple[Source, Source]]:
    return list(zip(entries[::2], entries[1::2], strict=True))


def _bracket_order(n: int) -> list[int]:
    """Seed numbers from the top of the bracket to its foot, so that the first two meet in the final at the earliest."""
    order = [0]
    while len(order) < n:
        order = [place for agent in order for place in (agent, 2 * len(order) - 1 - agent)]
    return [agent if agent < n else BYE for agent in order]
