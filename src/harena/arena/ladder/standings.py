"""Boards of ladders, and all boards of seasons that have ended. Guarantees: a board is replaced as a whole, with the
event that tells of it, so nobody reads half of one; it follows from the match log alone. The live boards of verified
and self-reported scores are not here: `store.boards.top` has them until their season ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db import models
from harena.arena.db.models import (
    BoardKind,
    Kind,
    MatchKind,
    MatchState,
    benches,
    board,
    matches,
    named,
    owners,
    seats,
    standings,
    submissions,
)
from harena.arena.db.records import MAX_PAGE, Filter, Sort
from harena.arena.db.store import Store
from harena.arena.ladder import ratings, roster
from harena.arena.ladder.fold import Fold
from harena.arena.seasons.finals import Finalist
from harena.arena.settings import EnvironmentSettings

SPARK_POINTS = 32
MAX_OPPONENTS = 200
DIGITS = 6
"""Of strengths after the point. The last bits of a fit depend on how many processors the linear algebra found; a board
must not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardStanding:
    """A line of a board."""

    season_id: int
    board: BoardKind
    submission_id: str
    env_id: str
    owner: str
    algorithm: str
    version: int
    rank: int
    """Shared where nobody can tell who is better."""
    place: int
    """The order on the page, from 1."""
    score: float
    low: float | None
    high: float | None
    games: int
    wins: int
    draws: int
    losses: int
    component: int
    """Of a ladder: agents that a chain of games connects. The strengths of different ones say nothing."""
    at: float
    """When it was submitted."""
    anonymous: bool = False
    benched: bool = False
    provisional: bool = False
    """So few games that its place is not to be trusted yet."""
    final: bool = False
    """The score is that of the finals."""
    public_score: float | None = None
    """The finalist's score on the public board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpponentRecord:
    """Whom an agent has met on the ladder, and how it went for the agent."""

    submission_id: str
    owner: str
    algorithm: str
    version: int
    games: int
    wins: int
    draws: int
    losses: int


class Standings:
    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- reading ----

    def standings(
        self,
        env_id: str,
        *,
        board: BoardKind = BoardKind.LADDER,
        season_id: int | None = None,
        user: str | None = None,
        algorithm: str | None = None,
        where: Filter | None = None,
        sort: Sort = Sort.SCORE_DESC,
        limit: int = 50,
        offset: int = 0,
    ) -> list[BoardStanding]:
        """Of the season that runs, or of the one that is named. In the order of the board, or of submission."""
        query = self._chosen(_STANDINGS, env_id, board, season_id, user, algorithm, where)
        if query is None:
            return []
        order = {
            Sort.SCORE_DESC: standings.c.place,
            Sort.DATE_DESC: standings.c.at.desc(),
            Sort.DATE_ASC: standings.c.at,
        }[Sort(sort)]
        query = query.order_by(order, standings.c.place).limit(max(1, min(limit, MAX_PAGE))).offset(offset)
        return self._lines(self._store.database.rows(query))

    def count(
        self,
        env_id: str,
        *,
        board: BoardKind = BoardKind.LADDER,
        season_id: int | None = None,
        user: str | None = None,
        algorithm: str | None = None,
        where: Filter | None = None,
    ) -> int:
        counted = sa.select(sa.func.count().label("n")).select_from(standings)
        query = self._chosen(counted, env_id, board, season_id, user, algorithm, where)
        row = None if query is None else self._store.database.row(query)
        return row["n"] if row else 0

    def standing(self, submission_id: str) -> BoardStanding | None:
        """On the latest board that has it."""
        query = _STANDINGS.where(standings.c.submission_id == submission_id).order_by(standings.c.season_id.desc())
        lines = self._lines(self._store.database.rows(query.limit(1)))
        return lines[0] if lines else None

    def spark(self, submission_ids: Collection[str]) -> dict[str, list[float]]:
        """How their ratings went, on the board's scale, in up to SPARK_POINTS points, the latest last."""
        if not submission_ids:
            return {}
        table = models.ratings
        agent = table.c.submission_id
        number = sa.func.row_number().over(partition_by=agent, order_by=table.c.match_number).label("at")
        size = sa.func.count().over(partition_by=agent).label("size")
        every = sa.select(agent, table.c.match_number, number, size).where(agent.in_(list(submission_ids))).subquery()
        # Counted from the end, so that the latest is always one of them.
        step = (every.c.size + SPARK_POINTS - 1) // SPARK_POINTS
        same = (agent == every.c.submission_id) & (table.c.match_number == every.c.match_number)
        picked = (
            sa.select(agent, table.c.mu, table.c.sigma).join(every, same).where((every.c.size - every.c.at) % step == 0)
        )
        sparks: dict[str, list[float]] = {submission_id: [] for submission_id in submission_ids}
        for row in self._store.database.rows(picked.order_by(agent, table.c.match_number)):
            sparks[row["submission_id"]].append(ratings.points(row["mu"], row["sigma"])[0])
        return sparks

    def opponents(self, submission_id: str) -> list[OpponentRecord]:
        """Those it has met most often first."""
        mine, other = seats.alias(), seats.alias()
        met = (
            sa.select(
                other.c.submission_id,
                matches.c.winner,
                mine.c.seat.label("mine"),
                other.c.seat.label("other"),
                mine.c.score.label("my_score"),
                other.c.score.label("other_score"),
            )
            .join(matches, matches.c.number == mine.c.match_number)
            .join(other, (other.c.match_number == mine.c.match_number) & (other.c.seat != mine.c.seat))
            .where(mine.c.submission_id == submission_id, matches.c.state == MatchState.FINISHED)
            .where(matches.c.kind == MatchKind.LADDER)
        )
        results: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for row in self._store.database.rows(met):
            results[row["submission_id"]][_came_out(row)] += 1
        most = sorted(results, key=lambda key: (-sum(results[key]), key))[:MAX_OPPONENTS]
        known = roster.agents(self._store, most)
        return [
            OpponentRecord(
                submission_id=key,
                owner=known[key].owner,
                algorithm=known[key].algorithm,
                version=known[key].version,
                games=sum(results[key]),
                wins=results[key][0],
                draws=results[key][1],
                losses=results[key][2],
            )
            for key in most
        ]

    # ---- writing ----

    def refit(self, fold: Fold) -> list[BoardStanding]:
        """The board of a ladder by all results so far: of the agents that play on it and have played."""
        lines = ladder_lines(fold, roster.live(self._store, fold.season_id))
        self.replace(fold.env_id, fold.season_id, BoardKind.LADDER, lines)
        return lines

    def replace(self, env_id: str, season_id: int, which: BoardKind, lines: Sequence[BoardStanding]) -> None:
        with self._store.begin() as connection:
            of = (standings.c.season_id == season_id) & (standings.c.board == which)
            connection.execute(standings.delete().where(of))
            if lines:
                connection.execute(standings.insert(), [_row(line) for line in lines])
            body = {"board": which.value, "season_id": season_id, "entries": len(lines)}
            self._store.events.publish(f"board:{env_id}", "board", body)

    def archive(self, env_id: str, season_id: int, kind: Kind, finalists: Sequence[Finalist] = ()) -> None:
        """Keeps the live board of scores as the season's, and empties it. Finalists come first, as their finals were;
        then the others, as they stand on the public board."""
        which = BoardKind(kind.value)
        first = self._final_lines(env_id, season_id, finalists)
        ahead = (board.c.score.desc(), board.c.at, board.c.submission_id)
        zero, above = sa.literal(0), sa.literal(len(first))
        lines = sa.select(
            sa.literal(season_id),
            sa.literal(which, standings.c.board.type),
            board.c.submission_id,
            board.c.env_id,
            owners.c.name,
            board.c.algorithm,
            submissions.c.version,
            sa.func.rank().over(order_by=board.c.score.desc()) + above,
            sa.func.row_number().over(order_by=ahead) + above,
            board.c.score,
            board.c.low,
            board.c.high,
            zero,
            zero,
            zero,
            zero,
            zero,
            board.c.at,
            sa.false(),
        ).join(owners, owners.c.id == board.c.owner_id)
        lines = lines.join(submissions, submissions.c.id == board.c.submission_id)
        of = (board.c.env_id == env_id) & (board.c.kind == kind)
        in_finals = sa.exists().where(
            standings.c.season_id == season_id,
            standings.c.board == which,
            standings.c.submission_id == board.c.submission_id,
        )
        with self._store.begin() as connection:
            there = (standings.c.season_id == season_id) & (standings.c.board == which)
            connection.execute(standings.delete().where(there))
            if first:
                connection.execute(standings.insert(), [_row(line) for line in first])
            connection.execute(standings.insert().from_select(list(_FIELDS), lines.where(of, ~in_finals)))
            connection.execute(board.delete().where(of))

    def _final_lines(self, env_id: str, season_id: int, finalists: Sequence[Finalist]) -> list[BoardStanding]:
        scored = [(one.score, one) for one in finalists if one.score is not None]
        lines: list[BoardStanding] = []
        rank, last = 0, None
        for score, one in sorted(scored, key=lambda pair: (-pair[0], pair[1].submission_id)):
            of = self._store.submissions.get(one.submission_id)
            if of.deleted_at is not None:
                continue
            place = len(lines) + 1
            rank, last = (rank if score == last else place), score
            lines.append(
                BoardStanding(
                    season_id=season_id,
                    board=BoardKind.VERIFIED,
                    submission_id=of.id,
                    env_id=env_id,
                    owner=of.owner,
                    algorithm=of.algorithm,
                    version=of.version,
                    rank=rank,
                    place=place,
                    score=score,
                    low=one.low,
                    high=one.high,
                    games=0,
                    wins=0,
                    draws=0,
                    losses=0,
                    component=0,
                    at=of.created_at,
                    final=True,
                )
            )
        return lines

    # ---- parts ----

    def _chosen(
        self,
        query: sa.Select[Any],
        env_id: str,
        which: BoardKind,
        season_id: int | None,
        user: str | None,
        algorithm: str | None,
        where: Filter | None,
    ) -> sa.Select[Any] | None:
        if season_id is None:
            season = self._store.seasons.live(env_id)
            if season is None:
                return None
            season_id = season.id
        where = where or Filter()
        query = query.where(standings.c.season_id == season_id, standings.c.board == BoardKind(which))
        query = query.where(standings.c.env_id == env_id)
        user = where.user if user is None else user
        algorithm = where.algorithm if algorithm is None else algorithm
        if user is not None:
            query = query.where(named(standings.c.owner, user))
        if algorithm is not None:
            query = query.where(standings.c.algorithm == algorithm)
        for column, (low, high) in ((standings.c.score, where.scores), (standings.c.at, where.dates)):
            if low is not None:
                query = query.where(column >= low)
            if high is not None:
                query = query.where(column <= high)
        return query

    def _lines(self, rows: Sequence[sa.RowMapping]) -> list[BoardStanding]:
        few: dict[str, int] = {}
        for env_id in {row["env_id"] for row in rows}:
            few[env_id] = EnvironmentSettings.parse(self._store.environments.get(env_id).settings).provisional_games
        return [
            BoardStanding(**row, provisional=row["board"] is BoardKind.LADDER and row["games"] < few[row["env_id"]])
            for row in rows
        ]


def ladder_lines(fold: Fold, agents: Sequence[roster.RosterAgent]) -> list[BoardStanding]:
    """By all results of the fold; agents that have not played yet are on no board."""
    known = {agent.submission_id: agent for agent in agents if agent.submission_id in fold.tallies}
    fitted = ratings.refit(fold.log, listed=known).entries
    lines: list[BoardStanding] = []
    ordered = sorted(fitted, key=lambda entry: (-round(entry.strength, DIGITS), entry.agent))
    for place, entry in enumerate(ordered, 1):
        agent, tally = known[entry.agent], fold.tallies[entry.agent]
        score, low, high = (round(value, DIGITS) for value in (entry.strength, entry.low, entry.high))
        lines.append(
            BoardStanding(
                season_id=fold.season_id,
                board=BoardKind.LADDER,
                submission_id=entry.agent,
                env_id=fold.env_id,
                owner=agent.owner,
                algorithm=agent.algorithm,
                version=agent.version,
                rank=entry.rank,
                place=place,
                score=score,
                low=low,
                high=high,
                games=entry.games,
                wins=tally.wins,
                draws=tally.draws,
                losses=tally.losses,
                component=entry.component,
                at=agent.created_at,
            )
        )
    return lines


def _came_out(row: sa.RowMapping) -> int:
    """0 for a win, 1 for a draw, 2 for a loss, between two seats of one match; a named winner is above all scores."""
    keys = [(row["winner"] != row[seat], -(row[score] or 0.0)) for seat, score in _SIDES]
    return 1 if keys[0] == keys[1] else (0 if keys[0] < keys[1] else 2)


def _row(line: BoardStanding) -> dict[str, Any]:
    return {name: getattr(line, name) for name in _FIELDS}


_SIDES = (("mine", "my_score"), ("other", "other_score"))
_FIELDS = (
    "season_id",
    "board",
    "submission_id",
    "env_id",
    "owner",
    "algorithm",
    "version",
    "rank",
    "place",
    "score",
    "low",
    "high",
    "games",
    "wins",
    "draws",
    "losses",
    "component",
    "at",
    "final",
)
_BENCHED = sa.exists().where(benches.c.submission_id == standings.c.submission_id, benches.c.lifted_at.is_(None))
_STANDINGS = sa.select(
    *(standings.c[name] for name in _FIELDS),
    submissions.c.anonymous,
    _BENCHED.label("benched"),
    sa.case((standings.c.final, submissions.c.score)).label("public_score"),
).join(submissions, submissions.c.id == standings.c.submission_id)
