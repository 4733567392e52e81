"""The arena of one process: database, files, workers, ladders, tournaments; no network. Guarantees: one process serves
a data folder with an SQLite file, any number serve a PostgreSQL database, and one of them makes the matches; `stop`
leaves no process, box or thread behind and gives back what it could not finish; a new start carries on where the last
one was, however that ended.

    with Arena(Settings.from_env("data")) as arena:
        arena.put_environment("connect_four")
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harena.arena import hosting
from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.jobs import QueuedJob
from harena.arena.db.models import Access, EnvironmentKind
from harena.arena.db.store import Store
from harena.arena.events.bus import Hub
from harena.arena.ladder.challenges import Challenges
from harena.arena.ladder.matches import MatchService
from harena.arena.ladder.matchmaker import Matchmaker
from harena.arena.ladder.standings import Standings
from harena.arena.ladder.tournaments import TournamentService
from harena.arena.lock import FolderLock
from harena.arena.notices.service import Notices
from harena.arena.queue.desk import Desk
from harena.arena.queue.kinds import BY_NAME, KINDS
from harena.arena.queue.workers import JobWorkers, WorkerLane
from harena.arena.redis.bell import RedisBell
from harena.arena.redis.boards import RankedBoards
from harena.arena.redis.link import RedisLink
from harena.arena.seasons.service import Seasons
from harena.arena.settings import Settings
from harena.arena.storage.collect import Janitor
from harena.arena.storage.location import open_files
from harena.arena.submissions.service import Submissions
from harena.arena.work import handlers
from harena.arena.work.perform import Bench
from harena.match.run.runner import Runner

GRACE_S = 10.0
"""What runs may take so long to end when the arena stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What this process does of what an arena does."""

    workers: bool = True
    """Does jobs. Without it, others on the same database or over HTTP do them."""
    on_call: bool = False
    """Its workers do jobs only when something else calls them."""
    matchmaker: bool = True
    """Makes matches and keeps ratings and boards, unless another process does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    """What processes share in Redis."""

    link: RedisLink
    bell: RedisBell
    boards: RankedBoards


class Arena:
    def __init__(self, settings: Settings, roles: Roles | None = None) -> None:
        """Raises FolderInUse when another process serves the folder."""
        self.settings = settings
        self.roles = roles or Roles()
        self._stopped = False
        self._opened = contextlib.ExitStack()
        try:
            self._open()
        except BaseException:
            self._opened.close()
            raise

    def _open(self) -> None:
        settings, opened = self.settings, self._opened
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened.callback(FolderLock(settings.data, shared=not settings.embedded).release)
        self.store = Store(settings.database_url)
        opened.callback(self.store.close)
        self._alone = self.store.database.join()
        hosting.trust_stored(self.store)
        self.queue = self.store.jobs
        self.files = open_files(settings.files)
        self.hub = Hub(self.store)
        opened.callback(self.hub.close)
        self.redis = self._open_redis() if settings.redis_url else None
        self.runner = opened.enter_context(Runner(settings.workers)) if self.roles.workers else None
        self.bench = None if self.runner is None else Bench(runner=self.runner, pulls=settings.pull_policy)
        self.submissions = Submissions(self.store, self.queue, self.files, settings)
        self.desk = Desk(self.queue, self.runner) if self.runner is not None else None
        self.matches = MatchService(self.store, self.queue, self.files, self.hub, self.runner, self.submissions)
        self.standings = Standings(self.store)
        self.tournaments = TournamentService(self.store, self.standings, self.matches)
        self.challenges = Challenges(self.store, self.matches)
        self.seasons = Seasons(self.store, self.queue, self.standings, self.matches, self.tournaments)
        self.matchmaker = Matchmaker(
            self.store, self.queue, self.hub, self.matches, self.standings, also=[self.tournaments.advance]
        )
        self.notices = Notices(self.store, settings)
        self.janitor = Janitor(self.store, self.files, settings.retention, leads=lambda: self.matchmaker.leads)
        self.workers = JobWorkers(
            self.store,
            self.queue,
            handlers={kind.name: handlers.handler(self, kind) for kind in KINDS if self.roles.workers},
            lanes=self._lanes(),
            slots={kind.name: kind.slots(self) for kind in KINDS if kind.slots is not None and self.roles.workers},
            on_dead=self._dead,
            on_requeued=self.submissions.requeued,
            alone=self._alone and self._guarded(),
            on_call=self.roles.on_call,
        )
        if self.desk is not None:
            self.desk.place = self.workers.name

    def _open_redis(self) -> SharedState:
        link = RedisLink(self.settings.redis_url, self.settings.secret_key)
        self._opened.callback(link.close)
        shared = SharedState(
            link=link, bell=RedisBell(link, self.store.database), boards=RankedBoards(link, self.store, self.hub)
        )
        self._opened.callback(shared.boards.close)
        self._opened.callback(shared.bell.close)
        return shared

    def _lanes(self) -> list[WorkerLane]:
        if self.runner is None:
            return []
        return [
            WorkerLane(
                kinds=tuple(kind.name for kind in KINDS if kind.slots is None),
                slots=self.runner.workers,
                first=next(kind.name for kind in KINDS if kind.first),
                firm=frozenset(kind.name for kind in KINDS if kind.firm),
            )
        ]

    def start(self) -> None:
        """Gives back what a process that died had begun, and goes on."""
        try:
            self.hub.start()
            self.workers.start()
            self.store.database.settle()
            if self.redis is not None:
                self.redis.bell.start()
            if self.roles.matchmaker:
                self.matchmaker.start()
                self.janitor.start()
            self.notices.start()
        except BaseException:
            self.stop(0.0)
            raise

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Again does nothing. A stopped arena is not started again: make another."""
        if self._stopped:
            return
        self._stopped = True
        self.janitor.stop()
        self.notices.stop()
        self.matchmaker.stop()
        self.workers.stop(grace_s)
        self.matchmaker.settle()
        self._opened.close()

    def __enter__(self) -> Arena:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def put_environment(
        self,
        env_id: str,
        *,
        kind: EnvironmentKind | None = None,
        settings: Mapping[str, Any] | None = None,
        enabled: bool = True,
        access: Access | None = None,
    ) -> EnvironmentRecord:
        """Adds or changes one; starts its first season. What is not given stays as it is; a new one is a ladder when
        its game has several seats. Raises UnknownGame, SpecError."""
        made = hosting.put_environment(
            self.store,
            env_id,
            kind=kind,
            settings=settings,
            enabled=enabled,
            access=access,
            start_season=self.seasons.start,
        )
        self.matchmaker.wake()
        return made

    def _guarded(self) -> bool:
        """Whether the database counts those that serve it, or lies in the folder that this process has locked."""
        url = self.store.database.engine.url
        return url.get_backend_name() != "sqlite" or Path(url.database or "").absolute().parent == self.settings.data

    def _dead(self, job: QueuedJob) -> None:
        """Inside the transaction that gave it up."""
        kind = BY_NAME.get(job.kind)
        if kind is not None:  # a newer Harena may have left jobs that this one does not know
            kind.given_up(self)(job)
