"""Environments that the arena offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import Database, columns
from harena.arena.db.models import Access, EnvironmentKind, NotFound, environments, name_text


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRecord:
    env_id: str
    kind: EnvironmentKind
    settings: dict[str, Any]
    enabled: bool
    created_at: float
    updated_at: float
    access: Access = Access.PUBLIC


class EnvironmentRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def put(
        self,
        env_id: str,
        kind: EnvironmentKind,
        *,
        settings: dict[str, Any] | None = None,
        enabled: bool = True,
        access: Access | None = None,
    ) -> EnvironmentRecord:
        """Adds it, or changes it as a whole; only `access` stays as it is where it is not given."""
        now = self._database.clock()
        values: dict[str, Any] = {"kind": EnvironmentKind(kind), "settings": settings or {}, "enabled": enabled}
        values["updated_at"] = now
        if access is not None:
            values["access"] = Access(access)
        insert = self._database.insert(environments).values(
            env_id=name_text(env_id, "an environment's id"), created_at=now, **values
        )
        with self._database.begin() as connection:
            connection.execute(insert.on_conflict_do_update(index_elements=["env_id"], set_=values))
            return self.get(env_id)

    def get(self, env_id: str) -> EnvironmentRecord:
        row = self._database.row(_ENVIRONMENTS.where(environments.c.env_id == env_id))
        if row is None:
            raise NotFound(f"no environment {env_id!r:.80} here")
        return EnvironmentRecord(**row)

    def all(self, *, enabled_only: bool = True) -> list[EnvironmentRecord]:
        query = _ENVIRONMENTS.order_by(environments.c.env_id)
        return [EnvironmentRecord(**row) for row in self._database.rows(query) if row["enabled"] or not enabled_only]


_ENVIRONMENTS = sa.select(*columns(environments, EnvironmentRecord))
