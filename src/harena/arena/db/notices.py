"""Webhooks and mail addresses of owners, what is to be delivered to them, and changes of rank.

Guarantees: an event becomes a delivery at most once, however many processes look for news; a delivery that is being
sent is nobody else's until its time is over. Deliveries may arrive twice after a crash; their number tells.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.accounts.owners import OwnerRepository
from harena.arena.db.database import Database, columns
from harena.arena.db.models import (
    Conflict,
    HookKind,
    NotFound,
    deliveries,
    hooks,
    notice_cursor,
    owners,
    rank_changes,
    ranks,
    reason_text,
)

MAX_HOOKS = 10
"""Maximum number of webhooks and mail addresses of one owner."""
KEPT_CHANGES = 1000
"""Changes of rank of an environment that are kept."""
KEPT_S = 30 * 86400.0
"""Deliveries that are over are kept for this long."""
GIVE_UP_HOOK = 20
"""A target that this many deliveries in a row did not reach is switched off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRecord:
    id: str
    owner: str
    kind: HookKind
    target: str
    secret: str
    failures: int
    created_at: float
    confirmed_at: float | None
    disabled_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecord:
    id: int
    hook_id: str
    event: str
    body: dict[str, Any]
    attempts: int
    reason: str
    created_at: float
    next_at: float | None
    done_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChange:
    id: int
    env_id: str
    owner: str
    algorithm: str
    before: int | None
    """None: it was not among the best."""
    after: int | None
    created_at: float


class NoticeRepository:
    def __init__(self, database: Database, owners: OwnerRepository) -> None:
        self._database = database
        self._owners = owners

    # ---- hooks ----

    def add_hook(self, owner: str, kind: HookKind, target: str) -> HookRecord:
        """Raises Conflict when the owner has too many. A mail address must be confirmed before it gets news."""
        with self._database.begin() as connection:
            if len(self.hooks_of(owner)) >= MAX_HOOKS:
                raise Conflict(f"you have {MAX_HOOKS} webhooks and mail addresses: remove one first")
            now, mail = self._database.clock(), kind is HookKind.MAIL
            hook_id = uuid.uuid4().hex
            row = {
                "id": hook_id,
                "owner_id": self._owners.ensure(owner).id,
                "kind": kind,
                "target": target,
                "secret": f"{secrets.randbelow(10**8):08d}" if mail else secrets.token_hex(32),
                "created_at": now,
                "confirmed_at": None if mail else now,
            }
            connection.execute(hooks.insert().values(row))
            return self.hook(hook_id)

    def hook(self, hook_id: str) -> HookRecord:
        row = self._database.row(_HOOKS.where(hooks.c.id == hook_id))
        if row is None:
            raise NotFound(f"no webhook or mail address {hook_id!r:.60}")
        return HookRecord(**row)

    def hooks_of(self, owner: str) -> list[HookRecord]:
        rows = self._database.rows(_HOOKS.where(owners.c.name == owner).order_by(hooks.c.created_at, hooks.c.id))
        return [HookRecord(**row) for row in rows]

    def listening(self, names: Collection[str]) -> list[HookRecord]:
        """Hooks of these owners that get news."""
        query = _HOOKS.where(owners.c.name.in_(list(names)), hooks.c.confirmed_at.is_not(None))
        return [HookRecord(**row) for row in self._database.rows(query.where(hooks.c.disabled_at.is_(None)))]

    def confirm(self, hook_id: str) -> None:
        self._change(hook_id, confirmed_at=self._database.clock())

    def count_guess(self, hook_id: str) -> int:
        """Wrong codes so far, with this one."""
        self._change(hook_id, failures=hooks.c.failures + 1)
        return self.hook(hook_id).failures

    def remove_hook(self, hook_id: str) -> None:
        with self._database.begin() as connection:
            connection.execute(deliveries.delete().where(deliveries.c.hook_id == hook_id))
            connection.execute(hooks.delete().where(hooks.c.id == hook_id))

    def _change(self, hook_id: str, **values: Any) -> None:
        with self._database.begin() as connection:
            connection.execute(hooks.update().where(hooks.c.id == hook_id).values(values))

    # ---- deliveries ----

    def add_delivery(self, hook_id: str, event: str, body: Mapping[str, Any]) -> int:
        now = self._database.clock()
        row = {"hook_id": hook_id, "event": event, "body": dict(body), "created_at": now, "next_at": now}
        with self._database.begin() as connection:
            made = connection.execute(deliveries.insert().values(row).returning(deliveries.c.id)).scalar_one()
            self._database.note("deliveries")
            return int(made)

    def deliveries_of(self, hook_id: str, limit: int = 20) -> list[DeliveryRecord]:
        """Newest first."""
        query = _DELIVERIES.where(deliveries.c.hook_id == hook_id).order_by(deliveries.c.id.desc()).limit(limit)
        return [DeliveryRecord(**row) for row in self._database.rows(query)]

    def claim(self, lease_s: float) -> DeliveryRecord | None:
        """The next that is due, which nobody else gets for `lease_s`."""
        now = self._database.clock()
        # The first attempt is due at once, also when the clock was set back since.
        due = (deliveries.c.next_at <= now) | (deliveries.c.next_at.is_not(None) & (deliveries.c.attempts == 0))
        row = self._database.row(sa.select(deliveries.c.id).where(due).order_by(deliveries.c.next_at).limit(1))
        if row is None:
            return None
        mine = (deliveries.c.id == row["id"]) & due
        taken = {"next_at": now + lease_s, "attempts": deliveries.c.attempts + 1}
        with self._database.begin() as connection:
            if connection.execute(deliveries.update().where(mine).values(taken)).rowcount != 1:
                return None
            found = self._database.row(_DELIVERIES.where(deliveries.c.id == row["id"]))
        return DeliveryRecord(**found) if found else None

    def delivered(self, delivery: DeliveryRecord) -> None:
        with self._database.begin():
            self._end(delivery.id, done_at=self._database.clock(), next_at=None, reason="")
            self._change(delivery.hook_id, failures=0)

    def failed(self, delivery: DeliveryRecord, reason: str, again_in_s: float | None) -> None:
        """`again_in_s` None: it is given up, and so is a hook to which nothing gets through."""
        now = self._database.clock()
        with self._database.begin():
            next_at = None if again_in_s is None else now + again_in_s
            self._end(delivery.id, next_at=next_at, reason=reason_text(reason))
            if again_in_s is None:
                self._change(delivery.hook_id, failures=hooks.c.failures + 1)
                if self.hook(delivery.hook_id).failures >= GIVE_UP_HOOK:
                    self._change(delivery.hook_id, disabled_at=now)

    def prune(self) -> None:
        old = deliveries.c.next_at.is_(None) & (deliveries.c.created_at < self._database.clock() - KEPT_S)
        with self._database.begin() as connection:
            connection.execute(deliveries.delete().where(old))

    def _end(self, delivery_id: int, **values: Any) -> None:
        with self._database.begin() as connection:
            connection.execute(deliveries.update().where(deliveries.c.id == delivery_id).values(values))

    # ---- what was seen ----

    def cursor(self) -> int | None:
        """Number of the last event that was looked at; None: none was yet."""
        row = self._database.row(sa.select(notice_cursor.c.number))
        return row["number"] if row else None

    def advance(self, number: int) -> None:
        insert = self._database.insert(notice_cursor).values(id=1, number=number)
        with self._database.begin() as connection:
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_={"number": number}))

    def ranks(self, env_id: str) -> dict[tuple[str, str], int]:
        rows = self._database.rows(sa.select(ranks).where(ranks.c.env_id == env_id))
        return {(row["owner"], row["algorithm"]): row["rank"] for row in rows}

    def replace_ranks(self, env_id: str, now: Mapping[tuple[str, str], int], best: int) -> list[RankChange]:
        """Keep the ranks of the best, and note each change among the first `best`. Returns the changes; of a board
        that is seen for the first time there are none."""
        with self._database.begin() as connection:
            before = self.ranks(env_id)
            if before == dict(now):
                return []
            connection.execute(ranks.delete().where(ranks.c.env_id == env_id))
            rows = [{"env_id": env_id, "owner": key[0], "algorithm": key[1], "rank": rank} for key, rank in now.items()]
            if rows:
                connection.execute(ranks.insert(), rows)
            last = self._last_change(env_id)
            for key in sorted({*before, *now} if before else ()):
                pair = before.get(key), now.get(key)
                if pair[0] != pair[1] and min(rank for rank in pair if rank is not None) <= best:
                    row = {"env_id": env_id, "owner": key[0], "algorithm": key[1], "before": pair[0], "after": pair[1]}
                    connection.execute(rank_changes.insert().values(row | {"created_at": self._database.clock()}))
            old = (rank_changes.c.env_id == env_id) & (rank_changes.c.id <= self._last_change(env_id) - KEPT_CHANGES)
            connection.execute(rank_changes.delete().where(old))
            query = _CHANGES.where(rank_changes.c.env_id == env_id, rank_changes.c.id > last)
            return [RankChange(**row) for row in self._database.rows(query.order_by(rank_changes.c.id))]

    def changes(
        self, *, env_id: str | None = None, owner: str | None = None, hidden: Collection[str] = (), limit: int = 50
    ) -> list[RankChange]:
        """Newest first, without those of `hidden` environments."""
        query = _CHANGES.order_by(rank_changes.c.id.desc()).limit(limit)
        for column, value in ((rank_changes.c.env_id, env_id), (rank_changes.c.owner, owner)):
            if value is not None:
                query = query.where(column == value)
        if hidden:
            query = query.where(rank_changes.c.env_id.not_in(sorted(hidden)))
        return [RankChange(**row) for row in self._database.rows(query)]

    def _last_change(self, env_id: str) -> int:
        newest = sa.select(sa.func.max(rank_changes.c.id).label("id")).where(rank_changes.c.env_id == env_id)
        row = self._database.row(newest)
        return (row["id"] or 0) if row else 0


_HOOKS = sa.select(
    *(hooks.c[name] for name in HookRecord.__dataclass_fields__ if name != "owner"), owners.c.name.label("owner")
).join(owners, owners.c.id == hooks.c.owner_id)
_DELIVERIES = sa.select(*columns(deliveries, DeliveryRecord))
_CHANGES = sa.select(*columns(rank_changes, RankChange))
