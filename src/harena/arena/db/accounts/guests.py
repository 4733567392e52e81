"""Guests of environments that are not public. Guarantees: an owner is a guest by name or through a team."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from harena.arena.db.accounts.owners import OwnerRepository
from harena.arena.db.database import Database
from harena.arena.db.models import Access, environments, guests, owners


class GuestRepository:
    def __init__(self, database: Database, owners: OwnerRepository) -> None:
        self._database = database
        self._owners = owners

    def of(self, env_id: str) -> list[str]:
        query = sa.select(owners.c.name).join(guests, guests.c.owner_id == owners.c.id)
        rows = self._database.rows(query.where(guests.c.env_id == env_id).order_by(owners.c.name))
        return [row["name"] for row in rows]

    def invite(self, env_id: str, owner: str) -> None:
        """Idempotent. An owner that is not known yet is added, so that people can be invited before they come."""
        with self._database.begin() as connection:
            row = {"env_id": env_id, "owner_id": self._owners.ensure(owner).id, "created_at": self._database.clock()}
            insert = self._database.insert(guests).values(row)
            connection.execute(insert.on_conflict_do_nothing(index_elements=["env_id", "owner_id"]))

    def remove(self, env_id: str, owner: str) -> bool:
        """Whether the owner was a guest."""
        owner_id = sa.select(owners.c.id).where(owners.c.name == owner).scalar_subquery()
        with self._database.begin() as connection:
            gone = guests.delete().where(guests.c.env_id == env_id, guests.c.owner_id == owner_id)
            return connection.execute(gone).rowcount > 0

    def is_guest(self, env_id: str, names: Collection[str]) -> bool:
        """Whether one of these names is invited."""
        query = sa.select(guests.c.env_id).join(owners, owners.c.id == guests.c.owner_id)
        query = query.where(guests.c.env_id == env_id, owners.c.name.in_(list(names)))
        return self._database.row(query.limit(1)) is not None

    def private(self) -> frozenset[str]:
        """Every private environment."""
        query = sa.select(environments.c.env_id).where(environments.c.access == Access.PRIVATE)
        return frozenset(row["env_id"] for row in self._database.rows(query))

    def hidden_from(self, names: Collection[str]) -> frozenset[str]:
        """Private environments to which none of these names is invited."""
        hidden = self.private()
        if not hidden or not names:
            return hidden
        query = sa.select(guests.c.env_id).join(owners, owners.c.id == guests.c.owner_id)
        rows = self._database.rows(query.where(owners.c.name.in_(list(names))))
        return hidden - {row["env_id"] for row in rows}
