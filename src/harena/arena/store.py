"""Submissions, their evaluations, the board, quotas and events. With `Accounts` and `Ladder`: all SQL of the arena but
the job table's.

Guarantees: every change of state goes through `models.transition` and a compare-and-set; a score, its board entry and
the event that tells of it are written in one transaction; self-reported scores are on a board of their own; a quota is
given back at most once. Does not read files or run anything.
"""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from harena.arena.accounts import Owner
from harena.arena.database import columns
from harena.arena.ladder import Ladder
from harena.arena.models import (
    ACTIVE,
    Conflict,
    Event,
    Kind,
    NotFound,
    QuotaExceeded,
    State,
    board,
    charges,
    digest_text,
    evaluations,
    events,
    json_text,
    name_text,
    owners,
    reason_text,
    submissions,
    transition,
)
from harena.errors import SpecError

DAY_S = 86400
MAX_PAGE = 1000
CROWD = 7000
"""Where sorting what a filter leaves of a million entries takes as long as looking for the first 50 in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    id: str
    owner_id: str
    owner: str
    env_id: str
    season_id: int | None
    algorithm: str
    client_id: str | None
    main_file: str
    digest: str
    """Of the code, in the file store."""
    version: int
    """Counts from 1 for each owner, environment and algorithm."""
    kind: Kind
    state: State
    reason: str
    """Why it was rejected or failed, for its owner."""
    log_digest: str | None
    """Of the log, in the file store. For its owner only."""
    score: float | None
    """What stands on the board. A platform fault in a later evaluation does not take it away."""
    low: float | None
    high: float | None
    created_at: float
    updated_at: float
    deleted_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an evaluation found. An end of the interval is None where too little is known."""

    score: float
    low: float | None = None
    high: float | None = None
    episodes: int = 0
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.score, self.low, self.high) if value is not None):
            raise SpecError("a score and its interval are finite numbers")
        json_text(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    id: int
    submission_id: str
    kind: Kind
    score: float
    low: float | None
    high: float | None
    episodes: int
    metrics: dict[str, Any]
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of a board: the best of an owner's submissions of one algorithm."""

    env_id: str
    kind: Kind
    owner: str
    algorithm: str
    submission_id: str
    score: float
    low: float | None
    high: float | None
    at: float
    """When it was submitted."""


class Sort(enum.StrEnum):
    SCORE_DESC = "score_desc"
    DATE_DESC = "date_desc"
    DATE_ASC = "date_asc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    user: str | None = None
    algorithm: str | None = None
    score_min: float | None = None
    score_max: float | None = None
    date_from: float | None = None
    date_to: float | None = None

    @property
    def scores(self) -> tuple[float | None, float | None]:
        return self.score_min, self.score_max

    @property
    def dates(self) -> tuple[float | None, float | None]:
        return self.date_from, self.date_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What the host allows an owner who has no numbers of their own. None: no limit."""

    per_day: int | None = 100
    """By UTC days."""
    at_once: int | None = 10
    """Received, checked, queued or running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event as it was told."""

    number: int
    topic: str
    kind: str
    body: dict[str, Any]
    created_at: float


class Store(Ladder):
    # ---- submissions ----

    def submit(
        self,
        owner: str,
        env_id: str,
        *,
        algorithm: str,
        digest: str,
        main_file: str,
        client_id: str | None = None,
        kind: Kind = Kind.VERIFIED,
        quota: Quota | None = None,
    ) -> Submission:
        """Received, and counted against the quota."""
        now, submission_id = self.clock(), uuid.uuid4().hex
        values = {
            "id": submission_id, "env_id": env_id, "algorithm": name_text(algorithm, "an algorithm's name"),
            "digest": digest_text(digest), "main_file": name_text(main_file, "a file's name"),
            "client_id": None if client_id is None else name_text(client_id, "a client's id"),
            "kind": Kind(kind), "state": State.RECEIVED, "reason": "", "created_at": now, "updated_at": now,
        }  # fmt: skip
        with self.begin() as connection:
            season_id, who = self._open_season(env_id), self.owner(owner)
            self._lock_owner(who.id)
            self._check_quota(who, quota or Quota())
            same = (submissions.c.owner_id == who.id) & (submissions.c.env_id == env_id)
            newest = sa.select(sa.func.max(submissions.c.version).label("version"))
            row = self.row(newest.where(same, submissions.c.algorithm == algorithm))
            version = (row["version"] or 0) + 1 if row else 1
            place = {"owner_id": who.id, "season_id": season_id, "version": version}
            connection.execute(submissions.insert().values(values | place))
            day = int(now) // DAY_S
            connection.execute(charges.insert().values(submission_id=submission_id, owner_id=who.id, day=day))
            made = self.submission(submission_id)
            self._tell(made)
            return made

    def submission(self, submission_id: str) -> Submission:
        row = self.row(_SUBMISSIONS.where(submissions.c.id == submission_id))
        if row is None:
            raise NotFound(f"no submission {submission_id!r:.60}")
        return Submission(**row)

    def submissions_of(self, owner: str, *, limit: int = 50, offset: int = 0) -> list[Submission]:
        """Newest first, without the deleted ones."""
        query = _SUBMISSIONS.where(owners.c.name == owner, submissions.c.deleted_at.is_(None))
        query = query.order_by(submissions.c.created_at.desc(), submissions.c.id).limit(_page(limit)).offset(offset)
        return [Submission(**row) for row in self.rows(query)]

    def submissions_in(self, states: Sequence[State], *, limit: int = MAX_PAGE) -> list[Submission]:
        """Oldest first: what to carry on with after a restart."""
        query = _SUBMISSIONS.where(submissions.c.state.in_(list(states)))
        query = query.order_by(submissions.c.created_at, submissions.c.id).limit(_page(limit))
        return [Submission(**row) for row in self.rows(query)]

    def move(
        self, submission_id: str, event: Event, *, reason: str = "", seen: State | None = None
    ) -> Submission:  # fmt: skip
        """Changes the state by `event`; with `seen`, only if the state is still that one."""
        if event in (Event.CHECK, Event.RANK, Event.REJECT, Event.FAIL):
            raise SpecError(f"use the method {event}: it writes more than the state")
        return self._move(submission_id, event, reason=reason, seen=seen)

    def _move(
        self, submission_id: str, event: Event, *, reason: str = "", log_digest: str | None = None,
        seen: State | None = None, also: Mapping[str, Any] | None = None,
    ) -> Submission:  # fmt: skip
        with self.begin() as connection:
            before = self.submission(submission_id)
            if seen is not None and before.state is not seen:
                raise Conflict(f"the submission is {before.state}, no longer {seen}")
            after = transition(before.state, event)
            values = {**(also or {}), "state": after, "reason": reason_text(reason), "updated_at": self.clock()}
            if log_digest is not None:
                values["log_digest"] = digest_text(log_digest)
            unchanged = (submissions.c.id == submission_id) & (submissions.c.state == before.state)
            if connection.execute(submissions.update().where(unchanged).values(values)).rowcount != 1:
                raise Conflict(f"the submission is no longer {before.state}: somebody else moved it")
            moved = self.submission(submission_id)
            if before.kind is not moved.kind:
                self._refresh_board(before)
            if event is Event.RANK or before.score != moved.score:
                self._refresh_board(moved)
            self._tell(moved)
            return moved

    def check(self, submission_id: str, kind: Kind) -> Submission:
        """Found fit to run, as an agent or as a script. A score of the other kind is dropped."""
        with self.begin():
            same = self.submission(submission_id).kind is Kind(kind)
            return self._move(submission_id, Event.CHECK, also={"kind": Kind(kind), **({} if same else _NO_SCORE)})

    def rank(self, submission_id: str, outcome: Outcome, *, log_digest: str | None = None) -> Submission:
        """Keeps the evaluation and puts its score on the board of the submission's kind."""
        scores = {"score": outcome.score, "low": outcome.low, "high": outcome.high}
        with self.begin() as connection:
            ranked = self._move(submission_id, Event.RANK, log_digest=log_digest, also=scores)
            connection.execute(evaluations.insert().values(
                submission_id=submission_id, kind=ranked.kind, episodes=outcome.episodes, metrics=outcome.metrics,
                created_at=self.clock(), **scores,
            ))  # fmt: skip
            return ranked

    def reject(self, submission_id: str, reason: str, *, log_digest: str | None = None) -> Submission:
        """The code is not acceptable; what it had scored before no longer counts."""
        return self._move(submission_id, Event.REJECT, reason=reason, log_digest=log_digest, also=_NO_SCORE)

    def fail(
        self, submission_id: str, reason: str, *, platform: bool, log_digest: str | None = None
    ) -> Submission:  # fmt: skip
        """A platform fault gives the quota back and leaves an earlier score alone; the agent's own takes it away."""
        with self.begin():
            dropped = {} if platform else _NO_SCORE
            failed = self._move(submission_id, Event.FAIL, reason=reason, log_digest=log_digest, also=dropped)
            if platform:
                self.refund(submission_id)
            return failed

    def delete(self, submission_id: str) -> Submission:
        """Takes it off the board and out of lists. Matches that it played stay: others' ratings rest on them."""
        with self.begin() as connection:
            before = self.submission(submission_id)
            if before.state in ACTIVE:
                raise Conflict(f"the submission is {before.state}: cancel it first")
            there = (submissions.c.id == submission_id) & submissions.c.deleted_at.is_(None)
            connection.execute(submissions.update().where(there).values(deleted_at=self.clock()))
            self._refresh_board(before)
            return self.submission(submission_id)

    def evaluations_of(self, submission_id: str) -> list[Evaluation]:
        query = sa.select(*columns(evaluations, Evaluation)).where(evaluations.c.submission_id == submission_id)
        return [Evaluation(**row) for row in self.rows(query.order_by(evaluations.c.id))]

    # ---- quotas ----

    def used(self, owner: str) -> tuple[int, int]:
        """Submissions today, and at this moment."""
        found = self.find_owner(owner)
        return (0, 0) if found is None else self._used(found.id)

    def refund(self, submission_id: str) -> bool:
        """Whether it was given back now: only the first call does."""
        charged = (charges.c.submission_id == submission_id) & charges.c.refunded_at.is_(None)
        with self.begin() as connection:
            return connection.execute(charges.update().where(charged).values(refunded_at=self.clock())).rowcount == 1

    # ---- the board ----

    def leaderboard(
        self, env_id: str, *, kind: Kind = Kind.VERIFIED, where: Filter | None = None,
        sort: Sort = Sort.SCORE_DESC, limit: int = 50, offset: int = 0,
    ) -> list[Entry]:  # fmt: skip
        """The best entry of each owner and algorithm, of one kind."""
        where = where or Filter()
        crowded = self._crowded(env_id, kind, where, sort)
        query = board_query(env_id, kind, where, sort, crowded=crowded).limit(_page(limit)).offset(offset)
        return [Entry(**row) for row in self.rows(query)]

    # ---- events ----

    def publish(self, topic: str, kind: str, body: dict[str, Any]) -> None:
        row = {"topic": topic, "kind": kind, "body": body, "created_at": self.clock()}
        with self.begin() as connection:
            connection.execute(events.insert().values(row))

    def events_after(self, number: int, *, topic: str | None = None, limit: int = 100) -> list[Notice]:
        query = sa.select(*columns(events, Notice)).where(events.c.number > number)
        if topic is not None:
            query = query.where(events.c.topic == topic)
        return [Notice(**row) for row in self.rows(query.order_by(events.c.number).limit(_page(limit)))]

    def last_event(self) -> int:
        row = self.row(sa.select(sa.func.max(events.c.number).label("number")))
        return (row["number"] or 0) if row else 0

    # ---- parts ----

    def _open_season(self, env_id: str) -> int | None:
        if not self.environment(env_id).enabled:
            raise Conflict(f"{env_id} takes no submissions now: its host has switched it off")
        season = self.live_season(env_id)
        if season is not None and season.frozen:
            raise Conflict(f"the season {season.name!r:.80} is frozen: it takes no more submissions")
        return season.id if season else None

    def _lock_owner(self, owner_id: str) -> None:
        """One change at a time for each owner, so that quota, version and best entry are counted right."""
        self.row(sa.select(owners.c.id).where(owners.c.id == owner_id).with_for_update())

    def _used(self, owner_id: str) -> tuple[int, int]:
        count = sa.select(sa.func.count().label("n"))
        day = int(self.clock()) // DAY_S
        today = (charges.c.owner_id == owner_id) & (charges.c.day == day) & charges.c.refunded_at.is_(None)
        active = (submissions.c.owner_id == owner_id) & submissions.c.state.in_(sorted(ACTIVE))
        per_day, at_once = (
            self.row(count.select_from(charges).where(today)),
            self.row(count.select_from(submissions).where(active)),
        )
        return per_day["n"] if per_day else 0, at_once["n"] if at_once else 0

    def _check_quota(self, owner: Owner, default: Quota) -> None:
        per_day = default.per_day if owner.per_day is None else owner.per_day
        at_once = default.at_once if owner.at_once is None else owner.at_once
        today, active = self._used(owner.id)
        if per_day is not None and today >= per_day:
            raise QuotaExceeded(f"{per_day} submissions a day are used up: the next day starts at 00:00 UTC")
        if at_once is not None and active >= at_once:
            raise QuotaExceeded(f"{at_once} submissions at once are under way: wait for one to end, or cancel it")

    def _crowded(self, env_id: str, kind: Kind, where: Filter, sort: Sort) -> bool:
        """Whether the range that the board is not sorted by leaves many entries."""
        by_score = Sort(sort) is Sort.SCORE_DESC
        range_ = _between(board.c.at, *where.dates) if by_score else _between(board.c.score, *where.scores)
        if not range_ or where.user is not None:
            return False
        some = sa.select(board.c.at).where(board.c.env_id == env_id, board.c.kind == Kind(kind), *range_)
        row = self.row(sa.select(sa.func.count().label("n")).select_from(some.limit(CROWD).subquery()))
        return row is not None and row["n"] >= CROWD

    def _tell(self, submission: Submission) -> None:
        body = {"id": submission.id, "state": submission.state.value, "env_id": submission.env_id}
        self.publish(f"submission:{submission.id}", "state", body)

    def _refresh_board(self, of: Submission) -> None:
        """From the submissions, whatever was there before. Called inside `begin()`."""
        place = {"env_id": of.env_id, "kind": of.kind, "owner_id": of.owner_id, "algorithm": of.algorithm}
        self._lock_owner(of.owner_id)
        best = self.row(_BEST, {f"of_{name}": value for name, value in place.items()})
        with self.begin() as connection:
            if best is None:
                connection.execute(board.delete().where(*(board.c[name] == value for name, value in place.items())))
            else:
                insert = self.insert(board).values(**place, **best)
                connection.execute(insert.on_conflict_do_update(index_elements=list(place), set_=dict(best)))
            body = {"kind": of.kind.value, "owner": of.owner, "algorithm": of.algorithm}
            self.publish(f"board:{of.env_id}", "board", body | {"score": best["score"] if best else None})


_NO_SCORE = {"score": None, "low": None, "high": None}
_SUBMISSIONS = sa.select(*columns(submissions, Submission), owners.c.name.label("owner")).join(owners)
_BEST = (
    sa.select(
        submissions.c.id.label("submission_id"), submissions.c.score, submissions.c.low, submissions.c.high,
        submissions.c.created_at.label("at"),
    )
    .where(*(submissions.c[name] == sa.bindparam(f"of_{name}") for name in ("env_id", "kind", "owner_id", "algorithm")))
    .where(submissions.c.score.is_not(None), submissions.c.deleted_at.is_(None))
    .order_by(submissions.c.score.desc(), submissions.c.created_at, submissions.c.id)
    .limit(1)
)  # fmt: skip

# Not joins: a planner that started from the owners would read the whole board.
_OWNER_NAME = sa.select(owners.c.name).where(owners.c.id == board.c.owner_id).scalar_subquery().label("owner")
_ENTRIES = sa.select(*columns(board, Entry), _OWNER_NAME)


def board_query(
    env_id: str, kind: Kind, where: Filter, sort: Sort, *, crowded: bool = False
) -> sa.Select[*tuple[Any, ...]]:  # fmt: skip
    """Says to the planner, who does not know how many rows a filter leaves, which index to take: a column plus 0 is in
    none. One owner has few entries, so these are sorted; of a crowded range, the first 50 in order are soon found."""
    by_score, alone = Sort(sort) is Sort.SCORE_DESC, where.user is not None
    score = board.c.score + 0 if alone or (crowded and not by_score) else board.c.score
    at = board.c.at + 0 if alone or (crowded and by_score) else board.c.at
    query = _ENTRIES.where(board.c.env_id == env_id, board.c.kind == Kind(kind))
    if alone:
        owner = sa.select(owners.c.id).where(owners.c.name == where.user).scalar_subquery()
        query = query.where(board.c.owner_id == owner)
    if where.algorithm is not None:
        query = query.where(board.c.algorithm == where.algorithm)
    query = query.where(*_between(score, *where.scores), *_between(at, *where.dates))
    if by_score:
        return query.order_by(score.desc(), board.c.at, board.c.submission_id)
    if sort == Sort.DATE_DESC:
        return query.order_by(at.desc(), board.c.submission_id.desc())
    return query.order_by(at, board.c.submission_id)


def _between(
    column: sa.ColumnElement[float], low: float | None, high: float | None
) -> list[sa.ColumnElement[bool]]:  # fmt: skip
    return [*([] if low is None else [column >= low]), *([] if high is None else [column <= high])]


def _page(limit: int) -> int:
    return max(1, min(limit, MAX_PAGE))
