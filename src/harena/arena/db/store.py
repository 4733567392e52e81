"""The arena's database: one connection, and one repository for each thing that is kept in it.

    store = Store("sqlite:////data/arena.db")
    with store.begin():                          # all of it or nothing
        store.submissions.rank(...)
        store.events.publish(...)

All SQL is in the repositories.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

import sqlalchemy as sa

from harena.arena.db.accounts.guests import GuestRepository
from harena.arena.db.accounts.keys import KeyRepository
from harena.arena.db.accounts.owners import OwnerRepository
from harena.arena.db.accounts.quotas import QuotaRepository
from harena.arena.db.accounts.teams import TeamRepository
from harena.arena.db.database import Database
from harena.arena.db.environments import EnvironmentRepository
from harena.arena.db.events import EventRepository
from harena.arena.db.exports import ExportRepository
from harena.arena.db.jobs import Queue
from harena.arena.db.ladder.matches import MatchRepository
from harena.arena.db.ladder.ratings import RatingRepository
from harena.arena.db.ladder.roster import RosterRepository
from harena.arena.db.ladder.standings import StandingRepository
from harena.arena.db.ladder.tournaments import TournamentRepository
from harena.arena.db.notices import NoticeRepository
from harena.arena.db.results.boards import BoardRepository
from harena.arena.db.results.draws import DrawRepository
from harena.arena.db.results.finalists import FinalistRepository
from harena.arena.db.results.submissions import SubmissionRepository
from harena.arena.db.retention import RetentionRepository
from harena.arena.db.seasons import SeasonRepository


class Store:
    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        synchronous: Literal["normal", "full"] = "normal",
    ) -> None:
        """Opens the database that the URL names, as `Database` does."""
        self.database = database = Database(url, clock=clock, synchronous=synchronous)
        self.events = EventRepository(database)
        self.owners = OwnerRepository(database)
        self.keys = KeyRepository(database, self.owners)
        self.teams = TeamRepository(database, self.owners)
        self.guests = GuestRepository(database, self.owners)
        self.environments = EnvironmentRepository(database)
        self.seasons = SeasonRepository(database, self.environments)
        self.matches = MatchRepository(database, self.environments, self.seasons)
        self.ratings = RatingRepository(database, self.matches)
        self.boards = BoardRepository(database, self.owners, self.seasons, self.events)
        self.quotas = QuotaRepository(database, self.owners)
        self.submissions = SubmissionRepository(
            database,
            owners=self.owners,
            environments=self.environments,
            seasons=self.seasons,
            boards=self.boards,
            quotas=self.quotas,
            events=self.events,
        )
        self.roster = RosterRepository(database, self.submissions, self.events)
        self.standings = StandingRepository(database)
        self.tournaments = TournamentRepository(database)
        self.draws = DrawRepository(database)
        self.finalists = FinalistRepository(database)
        self.notices = NoticeRepository(database, self.owners)
        self.exports = ExportRepository(database)
        self.retention = RetentionRepository(database)
        self.jobs = Queue(database)

    def clock(self) -> float:
        return self.database.clock()

    def begin(self) -> AbstractContextManager[sa.Connection]:
        """A write transaction over all repositories; see `Database.begin`."""
        return self.database.begin()

    def hold(self) -> None:
        """Raises DatabaseInUse while a matchmaker leads; see `Database.hold`."""
        self.database.hold()

    def close(self) -> None:
        self.database.close()
