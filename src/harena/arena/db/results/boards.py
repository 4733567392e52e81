"""The boards of single-seat environments: the best entry of each owner and algorithm, kept beside the submissions.

Guarantees: verified and self-reported scores never share a board; a board is of the season that runs, so what an older
season's submission scored cannot stand on it; it follows from the submissions and can be made again from them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from harena.arena.db.accounts.owners import OwnerRepository
from harena.arena.db.database import Database, columns
from harena.arena.db.events import EventRepository
from harena.arena.db.models import SubmissionKind, board, named, owners, submissions
from harena.arena.db.records import BoardRecord, Filter, Sort, SubmissionRecord, page
from harena.arena.db.seasons import SeasonRepository

COMMON = 500
"""With so many owners of one name the board is looked through in order; what fewer have is sorted."""
CROWD = 7000
"""Where sorting what a filter leaves of a million entries takes as long as looking for the first 50 in order."""


class BoardRepository:
    def __init__(
        self, database: Database, owners: OwnerRepository, seasons: SeasonRepository, events: EventRepository
    ) -> None:
        self._database = database
        self._owners = owners
        self._seasons = seasons
        self._events = events

    def top(
        self,
        env_id: str,
        *,
        kind: SubmissionKind = SubmissionKind.VERIFIED,
        where: Filter | None = None,
        sort: Sort = Sort.SCORE_DESC,
        limit: int = 50,
        offset: int = 0,
    ) -> list[BoardRecord]:
        """The best entry of each owner and algorithm, of one kind."""
        where = where or Filter()
        few = self._few(where.user)
        crowded = few is None and self._crowded(env_id, kind, where, sort)
        query = board_query(env_id, kind, where, sort, crowded=crowded, few=few)
        query = query.limit(page(limit)).offset(offset)
        return [BoardRecord(**row) for row in self._database.rows(query)]

    def size(self, env_id: str, *, kind: SubmissionKind = SubmissionKind.VERIFIED, where: Filter | None = None) -> int:
        """Entries that `leaderboard` would give without a limit."""
        where = where or Filter()
        few = self._few(where.user)
        entries = board_query(env_id, kind, where, Sort.SCORE_DESC, few=few, all_of_them=True).order_by(None)
        row = self._database.row(entries.with_only_columns(sa.func.count().label("n"), maintain_column_froms=True))
        return row["n"] if row else 0

    def entries(self, env_id: str, kind: SubmissionKind, places: Collection[tuple[str, str]]) -> list[BoardRecord]:
        """The entries of these owners and algorithms."""
        names = {owner for owner, _ in places}
        whose = sa.select(owners.c.id).where(owners.c.name.in_(names))
        query = _ENTRIES.where(board.c.env_id == env_id, board.c.kind == SubmissionKind(kind))
        rows = self._database.rows(
            query.where(board.c.owner_id.in_(whose), board.c.algorithm.in_({algorithm for _, algorithm in places}))
        )
        return [BoardRecord(**row) for row in rows if (row["owner"], row["algorithm"]) in places]

    def of(self, env_id: str, kind: SubmissionKind, submission_ids: Collection[str]) -> dict[str, BoardRecord]:
        """Those of the submissions that stand on the live board now."""
        query = _ENTRIES.join(submissions, _STANDS).where(submissions.c.id.in_(list(submission_ids)))
        rows = self._database.rows(query.where(board.c.env_id == env_id, board.c.kind == SubmissionKind(kind)))
        return {row["submission_id"]: BoardRecord(**row) for row in rows}

    def part(
        self, env_id: str, kind: SubmissionKind, *, after: tuple[str, str] | None, limit: int
    ) -> tuple[list[BoardRecord], tuple[str, str] | None]:
        """Entries by owner and algorithm after the place given, and the last one's place, to go on from there."""
        query = _ENTRIES.add_columns(board.c.owner_id).where(
            board.c.env_id == env_id, board.c.kind == SubmissionKind(kind)
        )
        if after is not None:
            query = query.where(sa.tuple_(board.c.owner_id, board.c.algorithm) > sa.tuple_(*map(sa.literal, after)))
        rows = self._database.rows(query.order_by(board.c.owner_id, board.c.algorithm).limit(limit))
        last = (rows[-1]["owner_id"], rows[-1]["algorithm"]) if rows else None
        return [BoardRecord(**{name: row[name] for name in BoardRecord.__dataclass_fields__}) for row in rows], last

    def clear(self, env_id: str) -> None:
        """Empty the board for a new season. The submissions keep their scores."""
        with self._database.begin() as connection:
            connection.execute(board.delete().where(board.c.env_id == env_id))
            self._events.publish(f"board:{env_id}", "board", {"score": None})

    def refresh(self, of: SubmissionRecord) -> None:
        """Recompute an owner's entry from the submissions. Called inside `begin()`."""
        live = self._seasons.live(of.env_id)
        if of.season_id != (live.id if live else None):
            return  # its season's board is history
        place = {"env_id": of.env_id, "kind": of.kind, "owner_id": of.owner_id, "algorithm": of.algorithm}
        self._owners.lock(of.owner_id)
        best = self._database.row(
            _BEST, {f"of_{name}": value for name, value in place.items()} | {"of_season": of.season_id}
        )
        with self._database.begin() as connection:
            if best is None:
                connection.execute(board.delete().where(*(board.c[name] == value for name, value in place.items())))
            else:
                insert = self._database.insert(board).values(**place, **best)
                connection.execute(insert.on_conflict_do_update(index_elements=list(place), set_=dict(best)))
            body = {"kind": of.kind.value, "owner": of.owner, "algorithm": of.algorithm}
            self._events.publish(f"board:{of.env_id}", "board", body | {"score": best["score"] if best else None})

    # ---- parts ----

    def _few(self, name: str | None) -> list[str] | None:
        """Ids of the owners of that name; None: of all owners, or of very many, as "anonymous"."""
        if name is None:
            return None
        rows = self._database.rows(sa.select(owners.c.id).where(named(owners.c.name, name)).limit(COMMON))
        return [row["id"] for row in rows] if len(rows) < COMMON else None

    def _crowded(self, env_id: str, kind: SubmissionKind, where: Filter, sort: Sort) -> bool:
        """Whether the range that the board is not sorted by leaves many entries."""
        by_score = Sort(sort) is Sort.SCORE_DESC
        range_ = _between(board.c.at, *where.dates) if by_score else _between(board.c.score, *where.scores)
        if not range_:
            return False
        some = sa.select(board.c.at).where(board.c.env_id == env_id, board.c.kind == SubmissionKind(kind), *range_)
        row = self._database.row(sa.select(sa.func.count().label("n")).select_from(some.limit(CROWD).subquery()))
        return row is not None and row["n"] >= CROWD


_BEST = (
    sa.select(
        submissions.c.id.label("submission_id"),
        submissions.c.score,
        submissions.c.low,
        submissions.c.high,
        submissions.c.created_at.label("at"),
    )
    .where(*(submissions.c[name] == sa.bindparam(f"of_{name}") for name in ("env_id", "kind", "owner_id", "algorithm")))
    .where(submissions.c.season_id.is_not_distinct_from(sa.bindparam("of_season")))
    .where(submissions.c.score.is_not(None), submissions.c.deleted_at.is_(None))
    .order_by(submissions.c.score.desc(), submissions.c.created_at, submissions.c.id)
    .limit(1)
)

# Not joins: a planner that started from the owners would read the whole board.
_OWNER_NAME = sa.select(owners.c.name).where(owners.c.id == board.c.owner_id).scalar_subquery().label("owner")
_ENTRIES = sa.select(*columns(board, BoardRecord), _OWNER_NAME)
_STANDS = (
    (submissions.c.env_id == board.c.env_id)
    & (submissions.c.kind == board.c.kind)
    & (submissions.c.owner_id == board.c.owner_id)
    & (submissions.c.algorithm == board.c.algorithm)
    & (submissions.c.id == board.c.submission_id)
)


def board_query(
    env_id: str,
    kind: SubmissionKind,
    where: Filter,
    sort: Sort,
    *,
    crowded: bool = False,
    few: Sequence[str] | None = None,
    all_of_them: bool = False,
) -> sa.Select[*tuple[Any, ...]]:
    """Says to the planner, who does not know how many rows a filter leaves, which index to take: a column plus 0 is in
    none. One owner has few entries, so these are sorted; of a crowded range, or of owners with a common name, the first
    50 in order are soon found. `few`: the owners that the filter names, if they are not very many.
    `all_of_them`: for a count."""
    by_score, alone = Sort(sort) is Sort.SCORE_DESC, few is not None
    score = board.c.score + 0 if alone or (crowded and not by_score) else board.c.score
    at = board.c.at + 0 if alone or (crowded and by_score) else board.c.at
    query = _ENTRIES.where(board.c.env_id == env_id, board.c.kind == SubmissionKind(kind))
    if few is not None:
        query = query.where(board.c.owner_id.in_(few))
    elif where.user is not None and all_of_them:
        query = query.where(board.c.owner_id.in_(sa.select(owners.c.id).where(named(owners.c.name, where.user))))
    elif where.user is not None:
        # Not EXISTS: PostgreSQL would make a join of it and read everything that these owners have.
        theirs = sa.select(named(owners.c.name, where.user)).where(owners.c.id == board.c.owner_id)
        query = query.where(theirs.scalar_subquery())
    if where.algorithm is not None:
        query = query.where(board.c.algorithm == where.algorithm)
    query = query.where(*_between(score, *where.scores), *_between(at, *where.dates))
    if by_score:
        return query.order_by(score.desc(), board.c.at, board.c.submission_id)
    if sort == Sort.DATE_DESC:
        return query.order_by(at.desc(), board.c.submission_id.desc())
    return query.order_by(at, board.c.submission_id)


def _between(column: sa.ColumnElement[float], low: float | None, high: float | None) -> list[sa.ColumnElement[bool]]:
    return [*([] if low is None else [column >= low]), *([] if high is None else [column <= high])]
