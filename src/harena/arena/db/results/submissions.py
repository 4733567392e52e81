"""Submissions and their evaluations.

Guarantees: every change of state goes through `models.transition` and a compare-and-set; a score, its board entry and
the event that tells of it are written in one transaction. Does not read files or run anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from harena.arena.db.accounts.owners import OwnerRepository
from harena.arena.db.accounts.quotas import QuotaRepository
from harena.arena.db.database import Database, columns
from harena.arena.db.environments import EnvironmentRepository
from harena.arena.db.events import EventRepository
from harena.arena.db.models import (
    ACTIVE,
    Conflict,
    Event,
    NotFound,
    State,
    SubmissionKind,
    board,
    digest_text,
    evaluations,
    name_text,
    owners,
    reason_text,
    submissions,
    transition,
)
from harena.arena.db.records import MAX_PAGE, DefaultQuota, EvaluationOutcome, EvaluationRecord, SubmissionRecord, page
from harena.arena.db.results.boards import BoardRepository
from harena.arena.db.seasons import SeasonRepository
from harena.errors import SpecError


class SubmissionRepository:
    def __init__(
        self,
        database: Database,
        *,
        owners: OwnerRepository,
        environments: EnvironmentRepository,
        seasons: SeasonRepository,
        boards: BoardRepository,
        quotas: QuotaRepository,
        events: EventRepository,
    ) -> None:
        self._database = database
        self._owners = owners
        self._environments = environments
        self._seasons = seasons
        self._boards = boards
        self._quotas = quotas
        self._events = events

    def add(
        self,
        owner: str,
        env_id: str,
        *,
        algorithm: str,
        digest: str,
        main_file: str,
        submission_id: str | None = None,
        client_id: str | None = None,
        anonymous: bool = False,
        kind: SubmissionKind = SubmissionKind.VERIFIED,
        warnings: Sequence[str] = (),
        quota: DefaultQuota | None = None,
        sender: str | None = None,
    ) -> SubmissionRecord:
        """Received, and counted against the quota. `sender` sent it for the owner, which is a team.
        `submission_id`, 32 hexadecimal digits, is its id; raises Conflict when there is one with that id."""
        now, submission_id = self._database.clock(), submission_id or uuid.uuid4().hex
        values = {
            "id": submission_id,
            "env_id": env_id,
            "algorithm": name_text(algorithm, "an algorithm's name"),
            "digest": digest_text(digest),
            "main_file": name_text(main_file, "a file's name"),
            "client_id": None if client_id is None else name_text(client_id, "a client's id"),
            "anonymous": anonymous,
            "warnings": reason_text("\n".join(warnings)),
            "kind": SubmissionKind(kind),
            "state": State.RECEIVED,
            "reason": "",
            "created_at": now,
            "updated_at": now,
        }
        with self._database.begin() as connection:
            if self._database.row(sa.select(submissions.c.id).where(submissions.c.id == submission_id)) is not None:
                raise Conflict(f"the id {submission_id} is taken: send a new client_id")
            season_id, who = self._open_season(env_id), self._owners.ensure(owner)
            self._owners.lock(who.id)
            self._quotas.check_owner(who, quota or DefaultQuota())
            sent_by = None if sender in (None, owner) else self._owners.ensure(sender)
            if sent_by is not None:
                self._quotas.check_owner(sent_by, quota or DefaultQuota())
            sender_id = None if sent_by is None else sent_by.id
            same = (submissions.c.owner_id == who.id) & (submissions.c.env_id == env_id)
            newest = sa.select(sa.func.max(submissions.c.version).label("version"))
            row = self._database.row(newest.where(same, submissions.c.algorithm == algorithm))
            version = (row["version"] or 0) + 1 if row else 1
            place = {"owner_id": who.id, "season_id": season_id, "version": version, "sender_id": sender_id}
            connection.execute(submissions.insert().values(values | place))
            self._quotas.charge(submission_id, who.id, sender_id)
            made = self.get(submission_id)
            self._tell(made)
            return made

    def get(self, submission_id: str) -> SubmissionRecord:
        row = self._database.row(_SUBMISSIONS.where(submissions.c.id == submission_id))
        if row is None:
            raise NotFound(f"no submission {submission_id!r:.60}")
        return SubmissionRecord(**row)

    def of(self, owner: str, *, limit: int = 50, offset: int = 0) -> list[SubmissionRecord]:
        return self.where(owner=owner, limit=limit, offset=offset)

    def where(
        self,
        *,
        owner: str | None = None,
        env_id: str | None = None,
        algorithm: str | None = None,
        states: Collection[State] | None = None,
        client_id: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[SubmissionRecord]:
        """Newest first, without the deleted ones. `client_id` finds only what was sent without a key."""
        query = _SUBMISSIONS.where(submissions.c.deleted_at.is_(None))
        if owner is not None:
            query = query.where(owners.c.name == owner)
        if env_id is not None:
            query = query.where(submissions.c.env_id == env_id)
        if algorithm is not None:
            query = query.where(submissions.c.algorithm == algorithm)
        if states is not None:
            query = query.where(submissions.c.state.in_(sorted(states)))
        if client_id is not None:
            query = query.where(submissions.c.client_id == client_id, submissions.c.anonymous.is_(True))
        query = query.order_by(submissions.c.created_at.desc(), submissions.c.id).limit(page(limit)).offset(offset)
        return [SubmissionRecord(**row) for row in self._database.rows(query)]

    def totals(self) -> dict[str, tuple[int, int]]:
        """Entries of the board and submissions, by environment."""
        n = sa.func.count().label("n")
        live = submissions.c.deleted_at.is_(None)
        entries = self._database.rows(sa.select(board.c.env_id, n).group_by(board.c.env_id))
        sent = self._database.rows(sa.select(submissions.c.env_id, n).where(live).group_by(submissions.c.env_id))
        on_board = {row["env_id"]: row["n"] for row in entries}
        return {row["env_id"]: (on_board.get(row["env_id"], 0), row["n"]) for row in sent}

    def code_is_used(self, digest: str) -> bool:
        """Whether some submission, deleted ones too, has this code."""
        return (
            self._database.row(sa.select(submissions.c.id).where(submissions.c.digest == digest).limit(1)) is not None
        )

    def in_states(self, states: Sequence[State], *, limit: int = MAX_PAGE) -> list[SubmissionRecord]:
        """Oldest first: what to carry on with after a restart."""
        query = _SUBMISSIONS.where(submissions.c.state.in_(list(states)))
        query = query.order_by(submissions.c.created_at, submissions.c.id).limit(page(limit))
        return [SubmissionRecord(**row) for row in self._database.rows(query)]

    def move(
        self, submission_id: str, event: Event, *, reason: str = "", seen: State | None = None
    ) -> SubmissionRecord:
        """Changes the state by `event`; with `seen`, only if the state is still that one."""
        if event in (Event.CHECK, Event.RANK, Event.REJECT, Event.FAIL):
            raise SpecError(f"use the method {event}: it writes more than the state")
        return self._move(submission_id, event, reason=reason, seen=seen)

    def _move(
        self,
        submission_id: str,
        event: Event,
        *,
        reason: str = "",
        log_digest: str | None = None,
        seen: State | None = None,
        also: Mapping[str, Any] | None = None,
    ) -> SubmissionRecord:
        with self._database.begin() as connection:
            before = self.get(submission_id)
            if seen is not None and before.state is not seen:
                raise Conflict(f"the submission is {before.state}, no longer {seen}")
            after = transition(before.state, event)
            values = {
                **(also or {}),
                "state": after,
                "reason": reason_text(reason),
                "updated_at": self._database.clock(),
            }
            if log_digest is not None:
                values["log_digest"] = digest_text(log_digest)
            unchanged = (submissions.c.id == submission_id) & (submissions.c.state == before.state)
            if connection.execute(submissions.update().where(unchanged).values(values)).rowcount != 1:
                raise Conflict(f"the submission is no longer {before.state}: somebody else moved it")
            moved = self.get(submission_id)
            if before.kind is not moved.kind:
                self._boards.refresh(before)
            if event is Event.RANK or before.score != moved.score:
                self._boards.refresh(moved)
            self._tell(moved)
            return moved

    def check(self, submission_id: str, kind: SubmissionKind) -> SubmissionRecord:
        """Found fit to run, as an agent or as a script. A score of the other kind is dropped."""
        with self._database.begin():
            same = self.get(submission_id).kind is SubmissionKind(kind)
            return self._move(
                submission_id, Event.CHECK, also={"kind": SubmissionKind(kind), **({} if same else _NO_SCORE)}
            )

    def set_kind(self, submission_id: str, kind: SubmissionKind) -> None:
        """While it runs: as an agent it failed, and it is tried as a script, or the other way round. A score of the
        other kind is dropped."""
        with self._database.begin() as connection:
            before = self.get(submission_id)
            changed = submissions.update().where(submissions.c.id == submission_id)
            connection.execute(changed.values(kind=SubmissionKind(kind), **_NO_SCORE))
            self._boards.refresh(before)

    def set_job(self, submission_id: str, job_id: int) -> SubmissionRecord:
        """The job that evaluates it from now on."""
        with self._database.begin() as connection:
            connection.execute(submissions.update().where(submissions.c.id == submission_id).values(job_id=job_id))
            return self.get(submission_id)

    def rank(
        self,
        submission_id: str,
        outcome: EvaluationOutcome,
        *,
        log_digest: str | None = None,
        warnings: Sequence[str] = (),
    ) -> SubmissionRecord:
        """Keeps the evaluation and puts its score on the board of the submission's kind."""
        scores = {"score": outcome.score, "low": outcome.low, "high": outcome.high}
        with self._database.begin() as connection:
            more = scores | self._warned(submission_id, warnings)
            ranked = self._move(submission_id, Event.RANK, log_digest=log_digest, also=more)
            connection.execute(
                evaluations.insert().values(
                    submission_id=submission_id,
                    kind=ranked.kind,
                    episodes=outcome.episodes,
                    metrics=outcome.metrics,
                    created_at=self._database.clock(),
                    **scores,
                )
            )
            return ranked

    def enter(
        self, submission_id: str, *, log_digest: str | None = None, warnings: Sequence[str] = ()
    ) -> SubmissionRecord:
        """Ranked without a score: it can play, and what it is worth the ladder's matches will show."""
        with self._database.begin():
            also = self._warned(submission_id, warnings)
            return self._move(submission_id, Event.RANK, log_digest=log_digest, also=also)

    def reject(self, submission_id: str, reason: str, *, log_digest: str | None = None) -> SubmissionRecord:
        """The code is not acceptable; what it had scored before no longer counts."""
        return self._move(submission_id, Event.REJECT, reason=reason, log_digest=log_digest, also=_NO_SCORE)

    def fail(
        self, submission_id: str, reason: str, *, platform: bool, log_digest: str | None = None
    ) -> SubmissionRecord:
        """A platform fault gives the quota back and leaves an earlier score alone; the agent's own takes it away."""
        with self._database.begin():
            dropped = {} if platform else _NO_SCORE
            failed = self._move(submission_id, Event.FAIL, reason=reason, log_digest=log_digest, also=dropped)
            if platform:
                self._quotas.refund(submission_id)
            return failed

    def delete(self, submission_id: str) -> SubmissionRecord:
        """Takes it off the board and out of lists. Matches that it played stay: others' ratings rest on them."""
        with self._database.begin() as connection:
            before = self.get(submission_id)
            if before.state in ACTIVE:
                raise Conflict(f"the submission is {before.state}: cancel it first")
            there = (submissions.c.id == submission_id) & submissions.c.deleted_at.is_(None)
            if (
                connection.execute(submissions.update().where(there).values(deleted_at=self._database.clock())).rowcount
                == 1
            ):
                self._boards.refresh(before)
                body = {"id": before.id, "state": "deleted", "env_id": before.env_id}
                self._events.publish(f"submission:{before.id}", "state", body)
            return self.get(submission_id)

    def charge_again(self, submission_id: str, quota: DefaultQuota) -> None:
        """Charge the quota for one more evaluation, which counts as much as a submission."""
        with self._database.begin():
            owner = self._owners.ensure(self.get(submission_id).owner)
            self._owners.lock(owner.id)
            self._quotas.check_owner(owner, quota)
            sent = self._database.row(sa.select(submissions.c.sender_id).where(submissions.c.id == submission_id))
            self._quotas.charge(submission_id, owner.id, sent["sender_id"] if sent else None)

    def active(self, season_id: int) -> list[tuple[str, int | None]]:
        """Ids of a season's submissions that are not evaluated yet, with those of their jobs."""
        query = sa.select(submissions.c.id, submissions.c.job_id).where(
            submissions.c.season_id == season_id, submissions.c.state.in_(sorted(ACTIVE))
        )
        return [(row["id"], row["job_id"]) for row in self._database.rows(query)]

    def some(self, most: int) -> list[str]:
        """Ids of verified submissions with an evaluation, by chance."""
        query = (
            sa.select(submissions.c.id)
            .where(submissions.c.state == State.RANKED, submissions.c.kind == SubmissionKind.VERIFIED)
            .where(sa.exists().where(evaluations.c.submission_id == submissions.c.id))
        )
        return [row["id"] for row in self._database.rows(query.order_by(sa.func.random()).limit(max(0, most)))]

    def evaluations(self, submission_id: str) -> list[EvaluationRecord]:
        query = sa.select(*columns(evaluations, EvaluationRecord)).where(evaluations.c.submission_id == submission_id)
        return [EvaluationRecord(**row) for row in self._database.rows(query.order_by(evaluations.c.id))]

    # ---- parts ----

    def _open_season(self, env_id: str) -> int | None:
        if not self._environments.get(env_id).enabled:
            raise Conflict(f"{env_id} takes no submissions now: its host has switched it off")
        season = self._seasons.live(env_id)
        if season is not None and season.frozen:
            raise Conflict(f"the season {season.name!r:.80} is frozen: it takes no more submissions")
        return season.id if season else None

    def _warned(self, submission_id: str, warnings: Sequence[str]) -> dict[str, str]:
        """Each warning once, after those that are there."""
        if not warnings:
            return {}
        known = [line for line in self.get(submission_id).warnings.split("\n") if line]
        return {"warnings": reason_text("\n".join(dict.fromkeys((*known, *warnings))))}

    def _tell(self, submission: SubmissionRecord) -> None:
        """Everybody may hear it: no reason, no warning, no name of a file."""
        body: dict[str, Any] = {"id": submission.id, "state": submission.state.value, "env_id": submission.env_id}
        if submission.state is State.RANKED:
            body["score"] = submission.score
        self._events.publish(f"submission:{submission.id}", "state", body)


_NO_SCORE = {"score": None, "low": None, "high": None}
_SUBMISSIONS = sa.select(*columns(submissions, SubmissionRecord), owners.c.name.label("owner")).join(owners)
