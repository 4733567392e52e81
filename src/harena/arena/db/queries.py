"""Lists and counts that only the API shows: pages of submissions, names, totals. Reads only, all with a cap.

What is costly to count (a board of a million entries) is counted again only after a hundred times as long as it took.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.accounts.keys import KeyRecord
from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.models import (
    BoardKind,
    EnvironmentKind,
    NotFound,
    State,
    SubmissionKind,
    board,
    evaluations,
    keys,
    members,
    named,
    owners,
    seasons,
    standings,
    submissions,
)
from harena.arena.db.records import Filter, SubmissionRecord
from harena.arena.db.store import Store

MAX_NAMES = 100_000
MAX_LISTED = 1000
MAX_NAMED = 20
"""Environments that an error names."""
LARGE = 10_000
"""Counts up to this are always exact and new."""
THRIFT = 100.0
MAX_CACHED = 1000
_VERSION = re.compile(r"-v\d{1,6}$", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Whose own submissions a list shows in every state."""

    owner: str | None = None
    client_id: str | None = None
    everything: bool = False
    teams: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    """Private environments of which this viewer learns nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLine:
    name: str
    per_day: int | None
    at_once: int | None
    submissions: int
    keys: int
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a board's own table does not know of a submission."""

    version: int
    anonymous: bool
    owner_id: str


class Queries:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts = _Thrifty()
        self._looks: tuple[tuple[Any, Any, Any], frozenset[str]] | None = None

    # ---- submissions ----

    def submissions(
        self,
        viewer: Viewer,
        *,
        owner: str | None = None,
        env_id: str | None = None,
        algorithm: str | None = None,
        state: State | None = None,
        mine: bool = False,
        limit: int = 50,
        offset: int = 0,
    ) -> list[SubmissionRecord]:
        """Newest first: the viewer's own and, unless only `mine` are asked for, of others what is ranked."""
        query = _SUBMISSIONS.where(submissions.c.deleted_at.is_(None))
        if owner is not None:
            query = query.where(named(owners.c.name, owner))
        for column, value in (
            (submissions.c.env_id, env_id),
            (submissions.c.algorithm, algorithm),
            (submissions.c.state, state),
        ):
            if value is not None:
                query = query.where(column == value)
        if mine:
            query = query.where(sa.or_(sa.false(), *own(viewer)))
        elif not viewer.everything:
            query = query.where(sa.or_(submissions.c.state == State.RANKED, *own(viewer)))
        if viewer.hidden:
            query = query.where(submissions.c.env_id.not_in(sorted(viewer.hidden)))
        query = query.order_by(submissions.c.created_at.desc(), submissions.c.id).limit(limit).offset(offset)
        return [SubmissionRecord(**row) for row in self._store.database.rows(query)]

    def submissions_by_id(self, viewer: Viewer, *, env_id: str, after: str, limit: int) -> list[SubmissionRecord]:
        """List submissions in the order of their ids: a page is found at once, however many there are."""
        query = _SUBMISSIONS.where(submissions.c.env_id == env_id, submissions.c.deleted_at.is_(None))
        query = query.where(submissions.c.id > after).order_by(submissions.c.id).limit(limit)
        if not viewer.everything:
            query = query.where(sa.or_(submissions.c.state == State.RANKED, *own(viewer)))
        return [SubmissionRecord(**row) for row in self._store.database.rows(query)]

    def listed(self, submission_ids: Collection[str]) -> dict[str, Listed]:
        query = sa.select(submissions.c.id, *(submissions.c[name] for name in Listed.__dataclass_fields__))
        rows = self._store.database.rows(query.where(submissions.c.id.in_(list(submission_ids))))
        return {row["id"]: Listed(**{name: row[name] for name in Listed.__dataclass_fields__}) for row in rows}

    def by_id(self, submission_ids: Collection[str]) -> dict[str, SubmissionRecord]:
        rows = self._store.database.rows(_SUBMISSIONS.where(submissions.c.id.in_(list(submission_ids))))
        return {row["id"]: SubmissionRecord(**row) for row in rows}

    def was_scored(self, submission_id: str) -> bool:
        query = sa.select(evaluations.c.id).where(evaluations.c.submission_id == submission_id).limit(1)
        return self._store.database.row(query) is not None

    # ---- boards ----

    def board_total(self, env_id: str, kind: SubmissionKind, where: Filter) -> int:
        return self._counts.get((env_id, kind, where), lambda: self._store.boards.size(env_id, kind=kind, where=where))

    def board_above(self, env_id: str, kind: SubmissionKind, score: float) -> int:
        """Entries that have a higher score."""
        of = (board.c.env_id == env_id) & (board.c.kind == kind) & (board.c.score > score)
        return self._number(sa.select(sa.func.count().label("n")).select_from(board).where(of))

    def board_ranks(self, env_id: str, kind: SubmissionKind, scores: Collection[float]) -> dict[float, int]:
        """The rank on the whole board of whoever has such a score; equal scores share one. Goes through the board at
        most once, whatever the page."""
        of = (board.c.env_id == env_id) & (board.c.kind == kind)
        ranks: dict[float, int] = {}
        rank, above = 1, None
        for score in sorted(set(scores), reverse=True):
            between = of & (board.c.score > score)
            if above is not None:
                between &= board.c.score <= above
            rank += self._number(sa.select(sa.func.count().label("n")).select_from(board).where(between))
            ranks[score], above = rank, score
        return ranks

    def environment_counts(self, env_id: str, kind: EnvironmentKind) -> tuple[int, int]:
        """Entries of its own live board, and submissions. Self-reported scores beside a verified board are not
        counted: they are on a separate board."""
        live = sa.select(seasons.c.id).where(seasons.c.env_id == env_id, seasons.c.ended_at.is_(None))
        scored = sa.select(sa.func.count().label("n")).select_from(board).where(board.c.env_id == env_id)
        scripts = kind is EnvironmentKind.SCRIPT_ONLY
        own = SubmissionKind.SELF_REPORTED if scripts else SubmissionKind.VERIFIED
        scored = scored.where(board.c.kind == own)
        ladder = sa.select(sa.func.count().label("n")).select_from(standings)
        ladder = ladder.where(standings.c.season_id.in_(live), standings.c.board == BoardKind.LADDER)
        sent = sa.select(sa.func.count().label("n")).select_from(submissions)
        sent = sent.where(submissions.c.env_id == env_id, submissions.c.deleted_at.is_(None))
        return (
            self._counts.get(
                ("entries", env_id, kind),
                lambda: self._number(ladder if kind is EnvironmentKind.LADDER else scored),
            ),
            self._counts.get(("submissions", env_id), lambda: self._number(sent)),
        )

    def environment(self, env_id: str, *, hidden: Collection[str] = ()) -> EnvironmentRecord:
        """Return an environment by its id, or the newest one of a name without a version. Those that are `hidden` from
        the caller are not found, and not named."""
        try:
            found = self._store.environments.get(env_id)
            if env_id not in hidden:
                return found
            raise NotFound(f"no environment {env_id!r:.80} here")
        except NotFound as error:
            here = [env for env in self._store.environments.all() if env.env_id not in hidden]
            named = [env for env in here if _VERSION.sub("", env.env_id) == env_id]
            if not named:
                names = ", ".join(env.env_id for env in here[:MAX_NAMED]) + (", …" if len(here) > MAX_NAMED else "")
                raise NotFound(f"{error}. Environments here: {names or 'none yet'}") from None
            return max(named, key=lambda env: int(env.env_id[len(env_id) + 2 :]))

    # ---- the rest ----

    def keyed_looks(self, looks: Callable[[str], str]) -> frozenset[str]:
        """How the names of owners look that have, or ever had, a key. Read again only when a key was made: everybody
        who submits without one is compared with all of them."""
        newest = sa.select(sa.func.count().label("n"), sa.func.max(keys.c.created_at).label("at")).select_from(keys)
        row = self._store.database.row(newest)
        teams = self._store.database.row(sa.select(sa.func.max(members.c.created_at).label("at")))
        made = (row["n"] if row else 0, row["at"] if row else None, teams["at"] if teams else None)
        known = self._looks
        if known is None or known[0] != made:
            known = self._looks = (made, frozenset(map(looks, self.keyed_names())))
        return known[1]

    def keyed_names(self) -> list[str]:
        """Owners that have, or ever had, a key, and teams."""
        keyed, team = keys.c.owner_id == owners.c.id, members.c.team_id == owners.c.id
        query = sa.select(owners.c.name).where(sa.exists().where(keyed) | sa.exists().where(team)).limit(MAX_NAMES)
        return [row["name"] for row in self._store.database.rows(query)]

    def all_keys(self) -> list[KeyRecord]:
        query = (
            sa.select(owners.c.name).where(sa.exists().where(keys.c.owner_id == owners.c.id)).order_by(owners.c.name)
        )
        names = [row["name"] for row in self._store.database.rows(query.limit(MAX_LISTED))]
        return [key for name in names for key in self._store.keys.of(name)][:MAX_LISTED]

    def owners(self, *, limit: int = MAX_LISTED, offset: int = 0) -> list[OwnerLine]:
        sent = sa.select(sa.func.count()).where(
            submissions.c.owner_id == owners.c.id, submissions.c.deleted_at.is_(None)
        )
        held = sa.select(sa.func.count()).where(keys.c.owner_id == owners.c.id, keys.c.revoked_at.is_(None))
        query = (
            sa.select(
                owners.c.name,
                owners.c.per_day,
                owners.c.at_once,
                owners.c.created_at,
                sent.scalar_subquery().label("submissions"),
                held.scalar_subquery().label("keys"),
            )
            .order_by(owners.c.name)
            .limit(limit)
            .offset(offset)
        )
        return [OwnerLine(**row) for row in self._store.database.rows(query)]

    def _number(self, query: sa.Select[Any]) -> int:
        row = self._store.database.row(query)
        return row["n"] if row else 0


class _Thrifty:
    """Large counts, kept for a while in proportion to what they cost."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, count: Callable[[], int]) -> int:
        began = time.monotonic()
        with self._lock:
            number, until = self._kept.get(key, (0, 0.0))
        if began < until:
            return number
        number = count()
        if number > LARGE:
            now = time.monotonic()
            with self._lock:
                if len(self._kept) >= MAX_CACHED:
                    self._kept.clear()
                self._kept[key] = (number, now + (now - began) * THRIFT)
        return number


_SUBMISSION_FIELDS = tuple(name for name in SubmissionRecord.__dataclass_fields__ if name != "owner")
_SUBMISSIONS = sa.select(*(submissions.c[name] for name in _SUBMISSION_FIELDS), owners.c.name.label("owner")).join(
    owners, owners.c.id == submissions.c.owner_id
)


def own(viewer: Viewer) -> list[sa.ColumnElement[bool]]:
    """What makes a submission the viewer's own."""
    owned: list[sa.ColumnElement[bool]] = []
    if viewer.owner is not None:
        names = sorted({viewer.owner, *viewer.teams})
        owned.append(owners.c.name.in_(names) & submissions.c.anonymous.is_(False))
    if viewer.client_id is not None:
        owned.append((submissions.c.client_id == viewer.client_id) & submissions.c.anonymous.is_(True))
    return owned
