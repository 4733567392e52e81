"""The match log.

Guarantees: matches are numbered in the order in which they were created, and read in that order; a match ends once.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from harena.arena.db import models
from harena.arena.db.database import Database, columns
from harena.arena.db.environments import EnvironmentRepository
from harena.arena.db.models import (
    Conflict,
    JobState,
    MatchKind,
    MatchState,
    NotFound,
    digest_text,
    environments,
    jobs,
    matches,
    name_text,
    reason_text,
    seats,
    submissions,
)
from harena.arena.db.seasons import SeasonRepository
from harena.errors import SpecError

MAX_SEED = (1 << 64) - 1
MAX_SEATS = 64
MAX_NUMBER = (1 << 63) - 1
MAX_MATCHES = 1000
"""Maximum number of matches on one page of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRecord:
    submission_id: str
    score: float | None
    """None until the match has a result."""
    status: str | None
    """harena.match.result.SeatStatus, by its value."""
    reason: str | None = None
    """Why it is not ok. For the agent's owner only."""
    log_digest: str | None = None
    """Digest of its output in the file store. Only the owner may read the output."""
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """How a seat came out of a match."""

    score: float
    status: str
    reason: str = ""
    log_digest: str | None = None
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRecord:
    number: int
    """Its place in the log."""
    id: str
    env_id: str
    season_id: int | None
    seed: int
    """Hidden from agents' owners until the match is over."""
    rated: bool
    kind: MatchKind
    tournament_id: str | None
    pairing: int | None
    """Number of a tournament match in the schedule. For a challenge, the seat of the challenger."""
    state: MatchState
    winner: int | None
    reason: str
    steps: int | None
    wall_s: float | None
    replay_digest: str | None
    created_at: float
    finished_at: float | None
    seats: tuple[SeatRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedResult:
    """A match as far as it matters for ratings."""

    number: int
    winner: int | None
    at: float
    """When it ended."""
    agents: tuple[str, ...]
    """Submissions, by seat."""
    scores: tuple[float, ...]


class MatchRepository:
    def __init__(self, database: Database, environments: EnvironmentRepository, seasons: SeasonRepository) -> None:
        self._database = database
        self._environments = environments
        self._seasons = seasons

    def create(
        self,
        env_id: str,
        participants: Sequence[str],
        *,
        seed: int,
        kind: MatchKind = MatchKind.LADDER,
        season_id: int | None = None,
        tournament_id: str | None = None,
        pairing: int | None = None,
    ) -> MatchRecord:
        """Submissions by seat. The number is taken here, whenever the match is played. Only the ladder's are rated."""
        if not 0 <= seed <= MAX_SEED:
            raise SpecError("a seed has 64 bits and no sign")
        if not 1 <= len(participants) <= MAX_SEATS:
            raise SpecError(f"a match has 1 to {MAX_SEATS} seats")
        match_id = uuid.uuid4().hex
        values = {
            "id": match_id,
            "env_id": env_id,
            "season_id": season_id,
            "seed": str(seed),
            "kind": MatchKind(kind),
            "rated": kind is MatchKind.LADDER,
            "tournament_id": tournament_id,
            "pairing": pairing,
            "state": MatchState.SCHEDULED,
            "reason": "",
            "created_at": self._database.clock(),
        }
        with self._database.begin() as connection:
            self._lock_environment(env_id)
            if season_id is not None:
                self._seasons.get(season_id)
            self._check_participants(env_id, participants)
            number = connection.scalar(matches.insert().values(values).returning(matches.c.number))
            rows = [
                {"match_number": number, "seat": seat, "submission_id": submission_id}
                for seat, submission_id in enumerate(participants)
            ]
            connection.execute(seats.insert(), rows)
            return self.get(match_id)

    def finish(
        self,
        match_id: str,
        state: MatchState,
        *,
        seats: Sequence[Seated] = (),
        winner: int | None = None,
        replay_digest: str | None = None,
        reason: str = "",
        steps: int | None = None,
        wall_s: float | None = None,
    ) -> MatchRecord:
        """Once: a second call raises Conflict. `seats` in their order; none when there is no result."""
        with self._database.begin() as connection:
            found = self.get(match_id)
            _check_result(found, MatchState(state), seats, winner)
            values = {
                "state": MatchState(state),
                "winner": winner,
                "reason": reason_text(reason),
                "replay_digest": None if replay_digest is None else digest_text(replay_digest),
                "steps": steps,
                "wall_s": wall_s,
                "finished_at": self._database.clock(),
            }
            open_ = (matches.c.id == match_id) & (matches.c.state == MatchState.SCHEDULED)
            if connection.execute(matches.update().where(open_).values(values)).rowcount != 1:
                raise Conflict(f"match {match_id} is {found.state} already")
            for number, seat in enumerate(seats):
                here = (models.seats.c.match_number == found.number) & (models.seats.c.seat == number)
                connection.execute(
                    models.seats.update()
                    .where(here)
                    .values(
                        score=seat.score,
                        status=seat.status,
                        reason=reason_text(seat.reason),
                        cpu_s=seat.cpu_s,
                        log_digest=None if seat.log_digest is None else digest_text(seat.log_digest),
                    )
                )
            return self.get(match_id)

    def get(self, match_id: str) -> MatchRecord:
        found = self.select(matches.c.id == match_id)
        if not found:
            raise NotFound(f"no match {match_id!r:.60}")
        return found[0]

    def of(self, submission_id: str, *, limit: int = 50) -> list[MatchRecord]:
        """Newest first."""
        of = sa.select(seats.c.match_number).where(seats.c.submission_id == submission_id).distinct()
        newest = of.order_by(seats.c.match_number.desc()).limit(limit)
        return self.select(matches.c.number.in_(newest))[::-1]

    def stray(self, key: str) -> list[str]:
        """Ids of open matches that no job will play. A match's job has this key with the id behind it."""
        at_hand = sa.exists().where(
            jobs.c.key == sa.literal(key) + matches.c.id, jobs.c.state.in_([JobState.QUEUED, JobState.RUNNING])
        )
        # Every one by name, because the index starts with it.
        somewhere = matches.c.env_id.in_(sa.select(environments.c.env_id))
        query = sa.select(matches.c.id).where(somewhere, matches.c.state == MatchState.SCHEDULED, ~at_hand)
        return [row["id"] for row in self._database.rows(query)]

    def some(self, most: int) -> list[str]:
        """Ids of matches with a replay, by chance."""
        query = sa.select(matches.c.id).where(matches.c.replay_digest.is_not(None))
        return [row["id"] for row in self._database.rows(query.order_by(sa.func.random()).limit(max(0, most)))]

    def where(
        self,
        *,
        env_id: str | None = None,
        season_id: int | None = None,
        submission_id: str | None = None,
        tournament_id: str | None = None,
        kind: MatchKind | None = None,
        state: MatchState | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        hidden: Collection[str] = (),
    ) -> list[MatchRecord]:
        """Newest first, without those of `hidden` environments. `before`: only with smaller numbers, the
        nearest to it; `after`: only with larger ones, the nearest to it."""
        wanted = {
            matches.c.env_id: env_id,
            matches.c.season_id: season_id,
            matches.c.tournament_id: tournament_id,
            matches.c.kind: kind,
            matches.c.state: state,
        }
        which = sa.select(matches.c.number).where(*(col == value for col, value in wanted.items() if value is not None))
        if hidden:
            which = which.where(matches.c.env_id.not_in(sorted(hidden)))
        if submission_id is not None:
            played = sa.select(seats.c.match_number).where(seats.c.submission_id == submission_id)
            which = which.where(matches.c.number.in_(played))
        if before is not None:
            which = which.where(matches.c.number < before)
        order = matches.c.number.desc()
        if after is not None:
            which, order = which.where(matches.c.number > after), matches.c.number.asc()
        nearest = which.order_by(order).limit(max(1, min(limit, MAX_MATCHES)))
        return self.select(matches.c.number.in_(nearest))[::-1]

    def open(self, *, env_id: str | None = None) -> list[MatchRecord]:
        """Those that have no result yet, oldest first."""
        # Every one by name, because the index starts with it.
        somewhere = matches.c.env_id.in_(sa.select(environments.c.env_id))
        where = somewhere if env_id is None else matches.c.env_id == env_id
        return self.select(where & (matches.c.state == MatchState.SCHEDULED))

    def open_challenges(self, owner_id: str) -> int:
        """Challenge games that this owner has asked for and that have no result yet."""
        query = (
            sa.select(sa.func.count().label("n"))
            .select_from(matches)
            .join(seats, (seats.c.match_number == matches.c.number) & (seats.c.seat == matches.c.pairing))
            .join(submissions, submissions.c.id == seats.c.submission_id)
            .where(matches.c.state == MatchState.SCHEDULED, matches.c.kind == MatchKind.CHALLENGE)
            .where(submissions.c.owner_id == owner_id)
        )
        row = self._database.row(query)
        return row["n"] if row else 0

    def log(self, env_id: str, *, season_id: int | None = None, after: int = 0, limit: int = 1000) -> list[MatchRecord]:
        """Rated matches with a result, in order of creation, up to the first one that is still open: a fold over them
        gives the same ratings whenever it is taken up again. With a season: its own only."""
        which = sa.select(matches.c.number).where(
            *within(env_id, season_id),
            matches.c.state == MatchState.FINISHED,
            matches.c.rated.is_(True),
            matches.c.number > after,
            matches.c.number <= self.settled_up_to(env_id, season_id=season_id),
        )
        return self.select(matches.c.number.in_(which.order_by(matches.c.number).limit(limit)))

    def settled_up_to(self, env_id: str, *, season_id: int | None = None) -> int:
        """The number before that of the first rated match that is still open; the largest there is, if none is."""
        first = sa.select(sa.func.min(matches.c.number).label("n")).where(
            *within(env_id, season_id), matches.c.rated.is_(True), matches.c.state == MatchState.SCHEDULED
        )
        row = self._database.row(first)
        return MAX_NUMBER if row is None or row["n"] is None else row["n"] - 1

    def results(self, env_id: str, *, season_id: int, after: int, up_to: int, limit: int = 10_000) -> list[RatedResult]:
        """What `match_log` has, with no more than ratings need: for a long log."""
        log = (
            sa.select(matches.c.number, matches.c.winner, matches.c.finished_at)
            .where(
                *within(env_id, season_id),
                matches.c.state == MatchState.FINISHED,
                matches.c.rated.is_(True),
                matches.c.number > after,
                matches.c.number <= up_to,
            )
            .order_by(matches.c.number)
            .limit(limit)
            .subquery()
        )
        query = sa.select(log, seats.c.submission_id, seats.c.score).join(seats, seats.c.match_number == log.c.number)
        found: list[RatedResult] = []
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(log.c.number, seats.c.seat))
            for (number, winner, at), group in groupby(rows, key=lambda row: row[:3]):
                agents, scores = zip(*((row[3], row[4] or 0.0) for row in group), strict=True)
                found.append(RatedResult(number=number, winner=winner, at=at or 0.0, agents=agents, scores=scores))
        return found

    def ended(self, env_id: str, *, season_id: int) -> dict[str, int]:
        """How many ladder matches of each submission have ended, with a result or without."""
        over = [*within(env_id, season_id), matches.c.rated.is_(True), matches.c.state != MatchState.SCHEDULED]
        query = sa.select(seats.c.submission_id, sa.func.count().label("n")).join(
            matches, matches.c.number == seats.c.match_number
        )
        rows = self._database.rows(query.where(*over).group_by(seats.c.submission_id))
        return {row["submission_id"]: row["n"] for row in rows}

    def select(self, which: sa.ColumnElement[bool]) -> list[MatchRecord]:
        """Return matches in order, each with its seats."""
        rows = self._database.rows(_MATCHES.where(which).order_by(matches.c.number, seats.c.seat))
        found: list[MatchRecord] = []
        for _, group in groupby(rows, key=lambda row: row["number"]):
            of = list(group)
            taken = tuple(SeatRecord(**{name: row[f"seat_{name}"] for name in _SEAT_FIELDS}) for row in of)
            fields: dict[str, Any] = {name: of[0][name] for name in _MATCH_FIELDS}
            fields["seed"] = int(fields["seed"])
            found.append(MatchRecord(**fields, seats=taken))
        return found

    # ---- parts ----

    def _lock_environment(self, env_id: str) -> None:
        """So that numbers also become visible in their order."""
        self._database.row(sa.select(environments.c.env_id).where(environments.c.env_id == env_id).with_for_update())
        self._environments.get(env_id)

    def _check_participants(self, env_id: str, participants: Sequence[str]) -> None:
        of = (submissions.c.env_id == env_id) & submissions.c.id.in_(list(participants))
        known = {row["id"] for row in self._database.rows(sa.select(submissions.c.id).where(of))}
        for submission_id in participants:
            if submission_id not in known:
                raise NotFound(f"no submission {submission_id!r:.60} in {env_id}")


_MATCH_COLUMNS = columns(matches, MatchRecord)
_MATCH_FIELDS = [column.name for column in _MATCH_COLUMNS]
_SEAT_COLUMNS = columns(seats, SeatRecord)
_SEAT_FIELDS = [column.name for column in _SEAT_COLUMNS]
_MATCHES = sa.select(*_MATCH_COLUMNS, *(column.label(f"seat_{column.name}") for column in _SEAT_COLUMNS)).join(
    seats, seats.c.match_number == matches.c.number
)


def within(env_id: str, season_id: int | None) -> list[sa.ColumnElement[bool]]:
    return [matches.c.env_id == env_id, *([] if season_id is None else [matches.c.season_id == season_id])]


def _check_result(match: MatchRecord, state: MatchState, seats: Sequence[Seated], winner: int | None) -> None:
    expected = len(match.seats) if state in (MatchState.FINISHED, MatchState.TIMEOUT) else 0
    if state is MatchState.SCHEDULED:
        raise SpecError("a match ends as finished, timeout, cancelled or void")
    if len(seats) != expected:
        raise SpecError(f"a {state} match of {len(match.seats)} seats has {expected} results of seats")
    for seat in seats:
        name_text(seat.status, "a seat's status", max_chars=16)
    if not all(math.isfinite(seat.score) and math.isfinite(seat.cpu_s) for seat in seats):
        raise SpecError("scores and times are finite numbers")
    if winner is not None and not 0 <= winner < expected:
        raise SpecError(f"the winner {winner} is not a seat of the match")
