"""Owners: whoever sends submissions, with a key or without one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import sqlalchemy as sa

from harena.arena.db.database import Database, columns
from harena.arena.db.models import name_text, owners
from harena.arena.db.records import page


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRecord:
    id: str
    name: str
    per_day: int | None
    """Submissions a day; None: the host's default."""
    at_once: int | None
    created_at: float


class OwnerRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def ensure(self, name: str) -> OwnerRecord:
        """The owner of that name, made on first use."""
        if isinstance(name, str) and (found := self.find(name)) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
            return found  # also one whose name was taken before names were checked as they are now
        name_text(name, "an owner's name")
        row = {"id": uuid.uuid4().hex, "name": name, "created_at": self._database.clock()}
        with self._database.begin() as connection:
            connection.execute(
                self._database.insert(owners).values(row).on_conflict_do_nothing(index_elements=["name"])
            )
            made = self.find(name)
        assert made is not None
        return made

    def find(self, name: str) -> OwnerRecord | None:
        row = self._database.row(sa.select(*columns(owners, OwnerRecord)).where(owners.c.name == name))
        return OwnerRecord(**row) if row else None

    def all(self, *, limit: int = 100, offset: int = 0) -> list[OwnerRecord]:
        """List owners by name."""
        query = sa.select(*columns(owners, OwnerRecord)).order_by(owners.c.name).limit(page(limit)).offset(offset)
        return [OwnerRecord(**row) for row in self._database.rows(query)]

    def set_quota(self, name: str, *, per_day: int | None, at_once: int | None) -> OwnerRecord:
        """Set the quota of this owner alone. None restores the host's default."""
        owner_id = self.ensure(name).id
        with self._database.begin() as connection:
            connection.execute(owners.update().where(owners.c.id == owner_id).values(per_day=per_day, at_once=at_once))
            return self.ensure(name)

    def lock(self, owner_id: str) -> None:
        """One change at a time for each owner, so that quota, version and best entry are counted right."""
        self._database.row(sa.select(owners.c.id).where(owners.c.id == owner_id).with_for_update())
