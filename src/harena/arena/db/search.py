"""Search over what a viewer may see: owners, agents, matches. Reads only, and stops at a few hits of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import Database
from harena.arena.db.models import MatchKind, MatchState, State, matches, owners, seats, submissions
from harena.arena.db.queries import Viewer, own

_NUMBER = re.compile(r"#?([0-9]{1,15})", re.ASCII)
_ID = re.compile(r"[0-9a-f]{4,32}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHit:
    owner: str
    algorithm: str
    env_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionHit:
    id: str
    owner: str
    algorithm: str
    version: int
    env_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchHit:
    id: str
    number: int
    env_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingRecord:
    """How often two agents of a ladder have met, and how it ended for `one`."""

    one: str
    other: str
    wins: int
    draws: int
    losses: int


class SearchRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def owners(self, viewer: Viewer, text: str, limit: int) -> list[str]:
        """Names of owners with a submission that the viewer may see."""
        shown = sa.exists().where(submissions.c.owner_id == owners.c.id, *_shown(viewer))
        query = sa.select(owners.c.name).where(owners.c.name.icontains(text, autoescape=True), shown)
        return [row["name"] for row in self._database.rows(query.order_by(owners.c.name).limit(limit))]

    def agents(self, viewer: Viewer, text: str, limit: int) -> list[AgentHit]:
        """By their own name or their owner's."""
        query = sa.select(owners.c.name.label("owner"), submissions.c.algorithm, submissions.c.env_id)
        query = query.join(owners, owners.c.id == submissions.c.owner_id).distinct().where(*_shown(viewer))
        names = (submissions.c.algorithm, owners.c.name)
        query = query.where(sa.or_(*(name.icontains(text, autoescape=True) for name in names)))
        return [AgentHit(**row) for row in self._database.rows(query.limit(limit))]

    def submissions(self, viewer: Viewer, text: str, limit: int) -> list[SubmissionHit]:
        """By the beginning of an id."""
        if not _ID.fullmatch(text):
            return []
        names = ("id", "algorithm", "version", "env_id")
        query = sa.select(*(submissions.c[name] for name in names), owners.c.name.label("owner"))
        query = query.join(owners, owners.c.id == submissions.c.owner_id).where(*_shown(viewer))
        query = query.where(submissions.c.id >= text, submissions.c.id < text + "g").limit(limit)
        return [SubmissionHit(**row) for row in self._database.rows(query)]

    def matches(self, viewer: Viewer, text: str, limit: int) -> list[MatchHit]:
        """By number, or the beginning of an id."""
        number, which = _NUMBER.fullmatch(text), list[sa.ColumnElement[bool]]()
        if number:
            which.append(matches.c.number == int(number[1]))
        if _ID.fullmatch(text):
            which.append((matches.c.id >= text) & (matches.c.id < text + "g"))
        if not which:
            return []
        query = sa.select(matches.c.id, matches.c.number, matches.c.env_id).where(sa.or_(*which))
        query = query.where(matches.c.env_id.not_in(sorted(viewer.hidden))) if viewer.hidden else query
        return [MatchHit(**row) for row in self._database.rows(query.limit(limit))]

    def meetings(self, season_id: int, submission_ids: list[str]) -> list[MeetingRecord]:
        """Finished ladder matches among these agents in a season, for each ordered pair that has met."""
        mine, other = seats.alias(), seats.alias()
        ours, theirs = matches.c.winner == mine.c.seat, matches.c.winner == other.c.seat
        my_score, other_score = sa.func.coalesce(mine.c.score, 0.0), sa.func.coalesce(other.c.score, 0.0)

        def total(score: sa.ColumnElement[bool], *, won: int, lost: int, name: str) -> sa.Label[Any]:
            return sa.func.sum(sa.case((ours, won), (theirs, lost), (score, 1), else_=0)).label(name)

        query = (
            sa.select(
                mine.c.submission_id.label("one"),
                other.c.submission_id.label("other"),
                total(my_score > other_score, won=1, lost=0, name="wins"),
                total(my_score == other_score, won=0, lost=0, name="draws"),
                total(my_score < other_score, won=0, lost=1, name="losses"),
            )
            .join(matches, matches.c.number == mine.c.match_number)
            .join(other, (other.c.match_number == mine.c.match_number) & (other.c.seat != mine.c.seat))
            .where(matches.c.season_id == season_id, matches.c.state == MatchState.FINISHED)
            .where(matches.c.kind == MatchKind.LADDER)
            .where(mine.c.submission_id.in_(submission_ids), other.c.submission_id.in_(submission_ids))
            .group_by(mine.c.submission_id, other.c.submission_id)
        )
        return [MeetingRecord(**row) for row in self._database.rows(query)]


def _shown(viewer: Viewer) -> list[sa.ColumnElement[bool]]:
    shown: list[sa.ColumnElement[bool]] = [submissions.c.deleted_at.is_(None)]
    if not viewer.everything:
        shown.append(sa.or_(submissions.c.state == State.RANKED, *own(viewer)))
    if viewer.hidden:
        shown.append(submissions.c.env_id.not_in(sorted(viewer.hidden)))
    return shown
