"""Tournaments as they are stored: their settings, and what is known of their result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import Database
from harena.arena.db.models import NotFound, TournamentState, tournaments
from harena.arena.db.records import page


@dataclass(frozen=True, slots=True, kw_only=True)
class TournamentRecord:
    """A tournament without its seed, which nobody needs to know before the games are over."""

    id: str
    env_id: str
    season_id: int | None
    name: str
    format: str
    finals: bool
    """It decides its season."""
    participants: tuple[str, ...]
    """Submissions; what the result calls an agent is an index of these."""
    games: int
    """Games per meeting."""
    rounds: int
    """Rounds of a Swiss tournament."""
    state: TournamentState
    result: dict[str, Any]
    """rounds, standings and notes, as far as they are known."""
    created_at: float
    finished_at: float | None


class TournamentRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, **values: Any) -> TournamentRecord:
        with self._database.begin() as connection:
            values |= {"result": empty_result(), "created_at": self._database.clock()}
            connection.execute(tournaments.insert().values(values))
            return self.get(values["id"])

    def change(self, tournament_id: str, **values: Any) -> TournamentRecord:
        with self._database.begin() as connection:
            connection.execute(tournaments.update().where(tournaments.c.id == tournament_id).values(values))
            return self.get(tournament_id)

    def get(self, tournament_id: str) -> TournamentRecord:
        row = self._database.row(sa.select(tournaments).where(tournaments.c.id == tournament_id))
        if row is None:
            raise NotFound(f"no tournament {tournament_id!r:.60}")
        return _tournament(row)

    def where(
        self,
        *,
        env_id: str | None = None,
        season_id: int | None = None,
        limit: int = 50,
        hidden: Collection[str] = (),
    ) -> list[TournamentRecord]:
        """Newest first, without those of `hidden` environments."""
        query = sa.select(tournaments).order_by(tournaments.c.created_at.desc(), tournaments.c.id)
        if env_id is not None:
            query = query.where(tournaments.c.env_id == env_id)
        if season_id is not None:
            query = query.where(tournaments.c.season_id == season_id)
        if hidden:
            query = query.where(tournaments.c.env_id.not_in(sorted(hidden)))
        return [_tournament(row) for row in self._database.rows(query.limit(page(limit)))]

    def running(self) -> dict[str, Mapping[str, Any]]:
        """Return running tournaments by id, with the settings, which have the seed."""
        query = sa.select(tournaments).where(tournaments.c.state == TournamentState.RUNNING)
        return {row["id"]: {str(name): value for name, value in row.items()} for row in self._database.rows(query)}

    def finals_of(self, season_id: int, *states: TournamentState) -> TournamentRecord | None:
        """The finals of a season, if they are in one of these states."""
        query = sa.select(tournaments).where(
            tournaments.c.season_id == season_id, tournaments.c.finals.is_(True), tournaments.c.state.in_(states)
        )
        row = self._database.row(query.order_by(tournaments.c.created_at.desc()))
        return _tournament(row) if row else None


def empty_result() -> dict[str, Any]:
    return {"rounds": [], "standings": [], "notes": []}


def _tournament(row: sa.RowMapping) -> TournamentRecord:
    settings = row["settings"]
    fields = {
        name: row[name]
        for name in ("id", "env_id", "season_id", "name", "format", "finals", "state", "created_at", "finished_at")
    }
    return TournamentRecord(
        **fields,
        participants=tuple(settings["participants"]),
        games=settings["games"],
        rounds=settings["rounds"],
        result=row["result"] or empty_result(),
    )
