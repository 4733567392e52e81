"""What happened, for who wants to follow it. Guarantees: an event is written in the transaction of what it tells of;
numbers only grow; a body holds what everybody may know, never a secret, a reason or a log. Old ones are pruned: the
rows that they tell of stay.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import Database, columns
from harena.arena.db.models import events
from harena.arena.db.records import page


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event as it was told."""

    number: int
    topic: str
    kind: str
    body: dict[str, Any]
    created_at: float


class Events(Database):
    def publish(self, topic: str, kind: str, body: dict[str, Any]) -> None:
        row = {"topic": topic, "kind": kind, "body": body, "created_at": self.clock()}
        with self.begin() as connection:
            connection.execute(events.insert().values(row))
            self.note("events")

    def events_after(
        self, number: int, *, topic: str | None = None, topics: Collection[str] | None = None, limit: int = 100
    ) -> list[Notice]:
        """Of one topic, of several, or of all."""
        query = sa.select(*columns(events, Notice)).where(events.c.number > number)
        if topic is not None:
            query = query.where(events.c.topic == topic)
        if topics is not None:
            query = query.where(events.c.topic.in_(list(topics)))
        return [Notice(**row) for row in self.rows(query.order_by(events.c.number).limit(page(limit)))]

    def last_event(self) -> int:
        """Its number; 0: nothing has happened yet."""
        row = self.row(sa.select(sa.func.max(events.c.number).label("number")))
        return (row["number"] or 0) if row else 0

    def first_event(self) -> int:
        """The oldest that is still there: who has seen less has missed some."""
        row = self.row(sa.select(sa.func.min(events.c.number).label("number")))
        return (row["number"] or 0) if row else 0

    def prune_events(self, *, older_than_s: float, keep: int) -> int:
        """Deletes what is older, and what is more than `keep`; the last one always stays, so that numbers go on."""
        last = self.last_event()
        too_many = events.c.number <= last - max(1, keep)
        old = (events.c.created_at < self.clock() - older_than_s) & (events.c.number < last)
        with self.begin() as connection:
            return connection.execute(events.delete().where(too_many | old)).rowcount
