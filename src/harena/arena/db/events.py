"""Append-only event log. Guarantees: an event is written in the transaction of the change that it describes; numbers
only grow; a body holds what everybody may know, never a secret, a reason or a log. Old events are pruned; the rows that
they describe stay.
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
class EventNotice:
    """An event as it was told."""

    number: int
    topic: str
    kind: str
    body: dict[str, Any]
    created_at: float


class EventRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def publish(self, topic: str, kind: str, body: dict[str, Any]) -> None:
        row = {"topic": topic, "kind": kind, "body": body, "created_at": self._database.clock()}
        with self._database.begin() as connection:
            connection.execute(events.insert().values(row))
            self._database.note("events")

    def after(
        self, number: int, *, topic: str | None = None, topics: Collection[str] | None = None, limit: int = 100
    ) -> list[EventNotice]:
        """Return the events of one topic, of several, or of all."""
        query = sa.select(*columns(events, EventNotice)).where(events.c.number > number)
        if topic is not None:
            query = query.where(events.c.topic == topic)
        if topics is not None:
            query = query.where(events.c.topic.in_(list(topics)))
        return [EventNotice(**row) for row in self._database.rows(query.order_by(events.c.number).limit(page(limit)))]

    def get(self, number: int) -> EventNotice | None:
        row = self._database.row(sa.select(*columns(events, EventNotice)).where(events.c.number == number))
        return EventNotice(**row) if row else None

    def last(self) -> int:
        """Its number; 0: nothing has happened yet."""
        row = self._database.row(sa.select(sa.func.max(events.c.number).label("number")))
        return (row["number"] or 0) if row else 0

    def first(self) -> int:
        """The oldest that is still there: who has seen less has missed some."""
        row = self._database.row(sa.select(sa.func.min(events.c.number).label("number")))
        return (row["number"] or 0) if row else 0

    def prune(self, *, older_than_s: float, keep: int) -> int:
        """Deletes what is older, and what is more than `keep`; the last one always stays, so that numbers go on."""
        last = self.last()
        too_many = events.c.number <= last - max(1, keep)
        old = (events.c.created_at < self._database.clock() - older_than_s) & (events.c.number < last)
        with self._database.begin() as connection:
            return connection.execute(events.delete().where(too_many | old)).rowcount
