"""Evaluate agents in a few lines: compare two with an interval, play a league, show tables as data frames.

    print(evaluate("a.py", "b.py", env="connect_four", games=200))
    league(["a.py", "b.py", "c.py"], env="pong", games=20).to_frame()

Every agent plays in its own box. Each seed is played in all rotations of the seats (`mirror`), so that luck and the
first move even out. Intervals are those of `harena match` (95 %).
"""

from __future__ import annotations

import math
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harena import notebook
from harena.errors import BackendUnavailable, SpecError
from harena.match import registry
from harena.match.agent import image
from harena.match.result import AgentCode, Clock, MatchSpec
from harena.match.run.runner import Runner
from harena.match.series import tournament
from harena.match.series.contest import Contest, TableRow, ahead, lockstep
from harena.match.series.schedule import Pairing
from harena.statistics import Comparison, Interval

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]

AgentSource = str | os.PathLike[str] | bytes | AgentCode
BATCH = 256
COLUMNS = ("agent", "games", "wins", "draws", "losses", "win_rate", "low", "high", "score", "faults", "cpu_s")


class AgentEvaluation:
    """Results of a series or a league."""

    def __init__(self, env: str, names: Sequence[str], contest: Contest, seed: int) -> None:
        self.env = env
        self.names = list(names)
        self.seed = seed
        """Give it again to play the same games."""
        self._contest = contest
        self.rows: list[TableRow] = contest.rows()
        """One for each agent, the best first."""

    @property
    def games(self) -> int:
        """Number of games that count."""
        return self._contest.counted_games()

    @property
    def distinct_games(self) -> int:
        """Number of games that do not repeat another one. Few of them mean that the agents leave little to chance."""
        return self._contest.distinct_games()

    def row(self, agent: int | str = 0) -> TableRow:
        """The row of an agent, by name or by the order in which they were given."""
        number = self.names.index(agent) if isinstance(agent, str) else agent
        return next(row for row in self.rows if row.standing.agent == number)

    @property
    def win_rate(self) -> Interval:
        """Share of the points that the first agent took: a draw is half a point."""
        return self.row(0).rate

    @property
    def score(self) -> Interval:
        """Mean score of the first agent, in the game's own points."""
        return self.row(0).score

    def comparisons(self) -> list[Comparison]:
        return self._contest.comparisons()

    def to_frame(self, what: str = "agents") -> pandas.DataFrame:
        """The table as a pandas DataFrame: "agents", or "games" with one row for each seat of each game."""
        try:
            import pandas  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]
        except ModuleNotFoundError as error:
            raise BackendUnavailable("to_frame needs pandas: pip install pandas") from error
        frame: Any = pandas.DataFrame(self.records(what))
        return frame

    def records(self, what: str = "agents") -> list[dict[str, Any]]:
        """The same table without pandas."""
        if what == "games":
            return self._game_records()
        if what != "agents":
            raise SpecError(f"{what!r:.40}: there is 'agents' and 'games'")
        return [
            {
                "agent": self.names[row.standing.agent],
                "games": row.standing.games,
                "wins": row.standing.wins,
                "draws": row.standing.draws,
                "losses": row.standing.losses,
                "win_rate": row.rate.value,
                "low": row.rate.low,
                "high": row.rate.high,
                "score": row.score.value,
                "faults": row.faults,
                "cpu_s": row.cpu_s,
            }
            for row in self.rows
        ]

    def _game_records(self) -> list[dict[str, Any]]:
        return [
            {
                "game": number,
                "seed": game.pairing.seed,
                "seat": seat,
                "agent": self.names[agent],
                "score": game.result.scores[seat] if game.result.scores else math.nan,
                "won": game.winner == agent if game.winner is not None else None,
                "status": game.result.seats[seat].status.value,
                "match": game.result.status.value,
                "steps": game.result.steps,
            }
            for number, game in enumerate(self._contest.games)
            for seat, agent in enumerate(game.pairing.seats)
        ]

    def __repr__(self) -> str:
        lines = [f"{self.env}, {self.games} games ({self.distinct_games} distinct)"]
        wide = max(map(len, self.names))
        for row in self.rows:
            value = row.score if len(self.names) == 1 or row.rate.value != row.rate.value else row.rate
            what = "score" if value is row.score else "points"
            lines.append(f"{self.names[row.standing.agent]:<{wide}}  {what} {_interval(value)}{_faults(row)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [[record[name] for name in COLUMNS] for record in self.records()]
        return notebook.table(f"{self.env}, {self.games} games", COLUMNS, rows)


def evaluate(
    *agents: AgentSource,
    env: str,
    games: int = 100,
    mirror: bool = True,
    seed: int | None = None,
    config: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    together: bool = False,
    workers: int | None = None,
) -> AgentEvaluation:
    """Play agents that fill the seats of a game against each other, or one agent of a game with one seat. together:
    play games in lockstep, which is many times faster; an agent that crashes then loses all games of its batch."""
    registry.trust(env)  # whoever calls this may run code here
    game = registry.make(env, config)
    if len(agents) != game.seats:
        raise SpecError(f"{game.id} has {game.seats} seats and {len(agents)} agents were given; `league` plays more")
    seed = secrets.randbits(62) if seed is None else seed
    pairings = tournament.series(len(agents), games, mirror=mirror and game.seats > 1, seed=seed)
    return _play(agents, pairings, game.id, config, clock, seed, together, workers)


def league(
    agents: Sequence[AgentSource],
    *,
    env: str,
    games: int = 20,
    mirror: bool = True,
    seed: int | None = None,
    config: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    together: bool = False,
    workers: int | None = None,
) -> AgentEvaluation:
    """Play a round robin: every table of agents plays `games` games, on the same seeds."""
    registry.trust(env)
    game = registry.make(env, config)
    seed = secrets.randbits(62) if seed is None else seed
    pairings = tournament.round_robin(len(agents), games, mirror, seed, seats=game.seats)
    return _play(agents, pairings, game.id, config, clock, seed, together, workers)


def _play(
    agents: Sequence[AgentSource],
    pairings: Sequence[Pairing],
    env: str,
    config: Mapping[str, Any] | None,
    clock: Clock | None,
    seed: int,
    together: bool,
    workers: int | None,
) -> AgentEvaluation:
    codes = _named([agent if isinstance(agent, AgentCode) else image.load_any(agent) for agent in agents])

    def spec_of(pairing: Pairing) -> MatchSpec:
        return MatchSpec(
            environment=env,
            agents=tuple(codes[agent] for agent in pairing.seats),
            seed=pairing.seed,
            clock=clock or Clock(),
            config=dict(config or {}),
            keep=True,
            record=False,
        )

    contest = Contest(tournament.Fixed(len(codes), pairings), spec_of)
    with Runner(workers) as runner:
        contest.run(lockstep(runner, BATCH) if together else ahead(runner, 2 * runner.workers))
    return AgentEvaluation(env, [code.name for code in codes], contest, seed)


def _named(codes: Sequence[AgentCode]) -> list[AgentCode]:
    """Give agents of one name a number."""
    import dataclasses

    counts, seen = Counter(code.name for code in codes), Counter[str]()
    named: list[AgentCode] = []
    for code in codes:
        seen[code.name] += 1
        name = f"{code.name} #{seen[code.name]}" if counts[code.name] > 1 else code.name
        named.append(dataclasses.replace(code, name=name))
    return named


def _interval(value: Interval) -> str:
    return f"{value.value:.3g} [{value.low:.3g}, {value.high:.3g}]"


def _faults(row: TableRow) -> str:
    return f", {row.faults} faults" if row.faults else ""
