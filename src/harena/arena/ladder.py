"""The match log and the ratings that follow from it.

Guarantees: matches are numbered in the order in which they were created, and read in that order; a match ends once; a
rated match that finished moves each rating once, and a void, cancelled or unrated one none. Does not compute ratings.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from harena.arena.accounts import Accounts
from harena.arena.database import columns
from harena.arena.models import (
    Conflict,
    MatchState,
    NotFound,
    digest_text,
    environments,
    matches,
    name_text,
    ratings,
    reason_text,
    seats,
    submissions,
)
from harena.errors import SpecError

MAX_SEED = (1 << 64) - 1
MAX_SEATS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    submission_id: str
    score: float | None
    """None until the match has a result."""
    status: str | None
    """harena.match.result.SeatStatus, by its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    number: int
    """Its place in the log."""
    id: str
    env_id: str
    season_id: int | None
    seed: int
    """Hidden from agents' owners until the match is over."""
    rated: bool
    state: MatchState
    winner: int | None
    reason: str
    replay_digest: str | None
    created_at: float
    finished_at: float | None
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    match_number: int
    submission_id: str
    mu: float
    sigma: float
    created_at: float


class Ladder(Accounts):
    def create_match(
        self, env_id: str, participants: Sequence[str], *, seed: int, rated: bool = True, season_id: int | None = None
    ) -> Match:
        """Submissions by seat. The number is taken here, whenever the match is played."""
        if not 0 <= seed <= MAX_SEED:
            raise SpecError("a seed has 64 bits and no sign")
        if not 1 <= len(participants) <= MAX_SEATS:
            raise SpecError(f"a match has 1 to {MAX_SEATS} seats")
        match_id = uuid.uuid4().hex
        values = {
            "id": match_id, "env_id": env_id, "season_id": season_id, "seed": str(seed), "rated": rated,
            "state": MatchState.SCHEDULED, "reason": "", "created_at": self.clock(),
        }  # fmt: skip
        with self.begin() as connection:
            self._lock_environment(env_id)
            if season_id is not None:
                self.season(season_id)
            self._check_participants(env_id, participants)
            number = connection.scalar(matches.insert().values(values).returning(matches.c.number))
            rows = [
                {"match_number": number, "seat": seat, "submission_id": submission_id}
                for seat, submission_id in enumerate(participants)
            ]
            connection.execute(seats.insert(), rows)
            return self.match(match_id)

    def finish_match(
        self,
        match_id: str,
        state: MatchState,
        *,
        scores: Sequence[float] = (),
        statuses: Sequence[str] = (),
        winner: int | None = None,
        replay_digest: str | None = None,
        reason: str = "",
    ) -> Match:
        """Once: a second call raises Conflict. Scores and statuses are by seat."""
        with self.begin() as connection:
            found = self.match(match_id)
            _check_result(found, MatchState(state), scores, statuses, winner)
            values = {
                "state": MatchState(state), "winner": winner, "reason": reason_text(reason),
                "replay_digest": None if replay_digest is None else digest_text(replay_digest),
                "finished_at": self.clock(),
            }  # fmt: skip
            open_ = (matches.c.id == match_id) & (matches.c.state == MatchState.SCHEDULED)
            if connection.execute(matches.update().where(open_).values(values)).rowcount != 1:
                raise Conflict(f"match {match_id} is {found.state} already")
            for seat, (score, status) in enumerate(zip(scores, statuses, strict=True)):
                here = (seats.c.match_number == found.number) & (seats.c.seat == seat)
                connection.execute(seats.update().where(here).values(score=score, status=status))
            return self.match(match_id)

    def match(self, match_id: str) -> Match:
        found = self._matches(matches.c.id == match_id)
        if not found:
            raise NotFound(f"no match {match_id!r:.60}")
        return found[0]

    def matches_of(self, submission_id: str, *, limit: int = 50) -> list[Match]:
        """Newest first."""
        of = sa.select(seats.c.match_number).where(seats.c.submission_id == submission_id).distinct()
        newest = of.order_by(seats.c.match_number.desc()).limit(limit)
        return self._matches(matches.c.number.in_(newest))[::-1]

    def match_log(self, env_id: str, *, after: int = 0, limit: int = 1000) -> list[Match]:
        """Rated matches with a result, in order of creation, up to the first one that is still open: a fold over them
        gives the same ratings whenever it is taken up again."""
        in_env, rated = matches.c.env_id == env_id, matches.c.rated.is_(True)
        still_open = sa.select(sa.func.min(matches.c.number)).where(
            in_env, rated, matches.c.state == MatchState.SCHEDULED
        )  # fmt: skip
        settled = sa.func.coalesce(matches.c.number < still_open.scalar_subquery(), sa.true())
        which = sa.select(matches.c.number).where(in_env, rated, matches.c.state == MatchState.FINISHED)
        which = which.where(matches.c.number > after, settled).order_by(matches.c.number).limit(limit)
        return self._matches(matches.c.number.in_(which))

    # ---- ratings ----

    def record_ratings(self, match_number: int, after: Mapping[str, tuple[float, float]]) -> None:
        """mu and sigma by submission, after this match. Once: a second call raises Conflict and changes nothing."""
        if not all(math.isfinite(part) for pair in after.values() for part in pair):
            raise SpecError("a rating is a pair of finite numbers")
        now = self.clock()
        rows = [
            {"match_number": match_number, "submission_id": submission_id, "mu": mu, "sigma": sigma, "created_at": now}
            for submission_id, (mu, sigma) in after.items()
        ]
        with self.begin() as connection:
            found = self._matches(matches.c.number == match_number)
            if not found or not found[0].rated or found[0].state is not MatchState.FINISHED:
                raise Conflict(f"match {match_number} moves no rating")
            if not after or not set(after) <= {seat.submission_id for seat in found[0].seats}:
                raise SpecError(f"ratings after match {match_number} are of those who played it")
            done = sa.select(ratings.c.submission_id).where(ratings.c.match_number == match_number).limit(1)
            if self.row(done) is not None:
                raise Conflict(f"match {match_number} has moved its ratings already")
            connection.execute(ratings.insert(), rows)

    def rating_history(self, submission_id: str) -> list[Rating]:
        query = sa.select(*columns(ratings, Rating)).where(ratings.c.submission_id == submission_id)
        return [Rating(**row) for row in self.rows(query.order_by(ratings.c.match_number))]

    def ratings(self, env_id: str) -> dict[str, Rating]:
        """The latest of each submission that has one."""
        newest = (
            sa.select(ratings.c.submission_id, sa.func.max(ratings.c.match_number).label("number"))
            .join(submissions, submissions.c.id == ratings.c.submission_id)
            .where(submissions.c.env_id == env_id)
            .group_by(ratings.c.submission_id)
            .subquery()
        )
        same = (ratings.c.submission_id == newest.c.submission_id) & (ratings.c.match_number == newest.c.number)
        rows = self.rows(sa.select(*columns(ratings, Rating)).join(newest, same))
        return {row["submission_id"]: Rating(**row) for row in rows}

    def rated_up_to(self, env_id: str) -> int:
        """The number of the last match that moved ratings here; 0: none has."""
        newest = sa.select(sa.func.max(ratings.c.match_number).label("number")).join(
            matches, matches.c.number == ratings.c.match_number
        )  # fmt: skip
        row = self.row(newest.where(matches.c.env_id == env_id))
        return (row["number"] or 0) if row else 0

    # ---- parts ----

    def _lock_environment(self, env_id: str) -> None:
        """So that numbers also become visible in their order."""
        self.row(sa.select(environments.c.env_id).where(environments.c.env_id == env_id).with_for_update())
        self.environment(env_id)

    def _check_participants(self, env_id: str, participants: Sequence[str]) -> None:
        of = (submissions.c.env_id == env_id) & submissions.c.id.in_(list(participants))
        known = {row["id"] for row in self.rows(sa.select(submissions.c.id).where(of))}
        for submission_id in participants:
            if submission_id not in known:
                raise NotFound(f"no submission {submission_id!r:.60} in {env_id}")

    def _matches(self, which: sa.ColumnElement[bool]) -> list[Match]:
        """In order, each with its seats."""
        rows = self.rows(_MATCHES.where(which).order_by(matches.c.number, seats.c.seat))
        found: list[Match] = []
        for _, group in groupby(rows, key=lambda row: row["number"]):
            of = list(group)
            taken = tuple(
                Seat(submission_id=row["submission_id"], score=row["score"], status=row["status"]) for row in of
            )  # fmt: skip
            fields: dict[str, Any] = {name: of[0][name] for name in _MATCH_FIELDS}
            fields["seed"] = int(fields["seed"])
            found.append(Match(**fields, seats=taken))
        return found


_MATCH_COLUMNS = columns(matches, Match)
_MATCH_FIELDS = [column.name for column in _MATCH_COLUMNS]
_MATCHES = sa.select(*_MATCH_COLUMNS, *columns(seats, Seat)).join(seats, seats.c.match_number == matches.c.number)


def _check_result(
    match: Match, state: MatchState, scores: Sequence[float], statuses: Sequence[str], winner: int | None
) -> None:
    expected = len(match.seats) if state in (MatchState.FINISHED, MatchState.TIMEOUT) else 0
    if state is MatchState.SCHEDULED:
        raise SpecError("a match ends as finished, timeout, cancelled or void")
    if not len(scores) == len(statuses) == expected:
        raise SpecError(f"a {state} match of {len(match.seats)} seats has {expected} scores and statuses")
    for status in statuses:
        name_text(status, "a seat's status", max_chars=16)
    if not all(map(math.isfinite, scores)):
        raise SpecError("scores are finite numbers")
    if winner is not None and not 0 <= winner < expected:
        raise SpecError(f"the winner {winner} is not a seat of the match")
