"""Seasons and their secrets. Guarantees: at most one season runs in an environment; its secret, from which hidden
seeds are derived, is given to the platform while the season runs and to everybody after it has ended.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import Database, columns
from harena.arena.db.environments import EnvironmentRepository
from harena.arena.db.models import Conflict, NotFound, name_text, seasons
from harena.arena.db.records import MAX_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class SeasonRecord:
    """A season without its secret, which `secret` and `revealed_secret` return."""

    id: int
    env_id: str
    name: str
    frozen: bool
    """Takes no new submissions; matches go on."""
    started_at: float
    ended_at: float | None


class SeasonRepository:
    def __init__(self, database: Database, environments: EnvironmentRepository) -> None:
        self._database = database
        self._environments = environments

    def start(
        self, env_id: str, name: str, *, secret: bytes | None = None, final_secret: bytes | None = None
    ) -> SeasonRecord:
        """At most one runs in an environment. Give secrets only to repeat a season."""
        values = {
            "env_id": env_id,
            "name": name_text(name, "a season's name"),
            "secret": secret or secrets.token_bytes(32),
            "final_secret": final_secret or secrets.token_bytes(32),
            "frozen": False,
            "started_at": self._database.clock(),
        }
        with self._database.begin() as connection:
            self._environments.get(env_id)
            if self.live(env_id) is not None:
                raise Conflict(f"a season runs in {env_id} already: end it first")
            season_id = connection.execute(seasons.insert().values(values).returning(seasons.c.id)).scalar_one()
            return self.get(season_id)

    def freeze(self, season_id: int, *, frozen: bool = True) -> SeasonRecord:
        return self._change_season(season_id, frozen=frozen)

    def end(self, season_id: int) -> SeasonRecord:
        return self._change_season(season_id, frozen=True, ended_at=self._database.clock())

    def get(self, season_id: int) -> SeasonRecord:
        row = self._database.row(_SEASONS.where(seasons.c.id == season_id))
        if row is None:
            raise NotFound(f"no season {season_id}")
        return SeasonRecord(**row)

    def live(self, env_id: str) -> SeasonRecord | None:
        row = self._database.row(_SEASONS.where(seasons.c.env_id == env_id, seasons.c.ended_at.is_(None)))
        return SeasonRecord(**row) if row else None

    def all(self, env_id: str | None = None) -> list[SeasonRecord]:
        """Newest first, of one environment or of all."""
        query = _SEASONS if env_id is None else _SEASONS.where(seasons.c.env_id == env_id)
        return [SeasonRecord(**row) for row in self._database.rows(query.order_by(seasons.c.id.desc()).limit(MAX_PAGE))]

    def secret(self, season_id: int) -> bytes:
        """Return the secret, for the platform only: it determines the hidden seeds."""
        row = self._database.row(sa.select(seasons.c.secret).where(seasons.c.id == season_id))
        if row is None:
            raise NotFound(f"no season {season_id}")
        return row["secret"]

    def final_secret(self, season_id: int) -> bytes | None:
        """Return the secret that determines the seeds of the finals, for the platform only. None if the season
        ended before there were finals."""
        row = self._database.row(sa.select(seasons.c.final_secret).where(seasons.c.id == season_id))
        if row is None:
            raise NotFound(f"no season {season_id}")
        return row["final_secret"]

    def revealed_secret(self, season_id: int) -> bytes | None:
        """Return the secret for everybody to see. None until the season has ended."""
        return self.secret(season_id) if self.get(season_id).ended_at is not None else None

    def _change_season(self, season_id: int, **values: Any) -> SeasonRecord:
        running = (seasons.c.id == season_id) & seasons.c.ended_at.is_(None)
        with self._database.begin() as connection:
            if connection.execute(seasons.update().where(running).values(values)).rowcount == 0:
                raise Conflict(f"season {self.get(season_id).name!r:.80} has ended")
            return self.get(season_id)


_SEASONS = sa.select(*columns(seasons, SeasonRecord))
