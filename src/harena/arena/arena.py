"""The arena in one process: database, files, workers, ladders, tournaments; no network. Guarantees: one process serves
a data folder; `stop` leaves no process, box or thread behind and gives back what it could not finish; a new start
carries on where the last one was, however that ended.

    with Arena(Settings.from_env("data")) as arena:
        arena.put_environment("connect_four")
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harena.arena.db.environments import Environment
from harena.arena.db.files import FileStore
from harena.arena.db.jobs import QueuedJob
from harena.arena.db.models import EnvironmentKind, NotFound
from harena.arena.db.store import Store
from harena.arena.events.bus import Hub
from harena.arena.ladder.challenges import Challenges
from harena.arena.ladder.matches import MatchService
from harena.arena.ladder.matchmaker import Matchmaker
from harena.arena.ladder.standings import Standings
from harena.arena.ladder.tournaments import TournamentService
from harena.arena.lock import FolderLock
from harena.arena.queue.desk import Desk
from harena.arena.queue.kinds import BY_NAME, KINDS
from harena.arena.queue.workers import JobWorkers, Lane
from harena.arena.seasons.service import Seasons
from harena.arena.settings import EnvironmentSettings, Settings
from harena.arena.submissions.service import Submissions
from harena.errors import SpecError
from harena.match import registry
from harena.match.run.runner import Runner

FIRST_SEASON = "season 1"
GRACE_S = 10.0
"""What runs may take so long to end when the arena stops."""


class Arena:
    def __init__(self, settings: Settings) -> None:
        """Raises FolderInUse or DatabaseInUse when another process serves the folder or the database."""
        self.settings = settings
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
        opened.callback(FolderLock(settings.data).release)
        self.store = Store(settings.database_url)
        opened.callback(self.store.close)
        self.store.hold()
        self.queue = self.store.jobs
        self.files = FileStore(settings.files)
        self.hub = Hub(self.store)
        opened.callback(self.hub.close)
        self.runner = opened.enter_context(Runner(settings.workers))
        self.submissions = Submissions(self.store, self.queue, self.files, settings, runner=self.runner)
        self.desk = Desk(self.queue, self.runner)
        self.matches = MatchService(self.store, self.queue, self.files, self.hub, self.runner, self.submissions)
        self.standings = Standings(self.store)
        self.tournaments = TournamentService(self.store, self.standings, self.matches)
        self.challenges = Challenges(self.store, self.matches)
        self.seasons = Seasons(self.store, self.queue, self.standings, self.matches, self.tournaments)
        self.matchmaker = Matchmaker(
            self.store, self.queue, self.hub, self.matches, self.standings, also=[self.tournaments.advance]
        )
        self.workers = JobWorkers(
            self.store,
            self.queue,
            handlers={kind.name: kind.handler(self) for kind in KINDS},
            lanes=[
                Lane(
                    kinds=tuple(kind.name for kind in KINDS if kind.slots is None),
                    slots=self.runner.workers,
                    first=next(kind.name for kind in KINDS if kind.first),
                    firm=frozenset(kind.name for kind in KINDS if kind.firm),
                )
            ],
            slots={kind.name: kind.slots(self) for kind in KINDS if kind.slots is not None},
            on_dead=self._dead,
            on_requeued=self.submissions.requeued,
            alone=self._guarded(),
        )

    def start(self) -> None:
        """Gives back what a process that died had begun, and goes on."""
        try:
            self.hub.start()
            self.workers.start()
            self.matchmaker.start()
        except BaseException:
            self.stop(0.0)
            raise

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Again does nothing. A stopped arena is not started again: make another."""
        if self._stopped:
            return
        self._stopped = True
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
    ) -> Environment:
        """Adds or changes one; starts its first season. What is not given stays as it is; a new one is a ladder when
        its game has several seats. Raises UnknownGame, SpecError."""
        full = _full_id(env_id, kind)
        with self.store.begin():
            before = self._environment(full)
            if settings is None:
                settings = before.settings if before else {}
            EnvironmentSettings.parse(settings).check_texts()
            chosen = kind or (before.kind if before else None) or _kind_of(full)
            _check_kind(full, chosen)
            made = self.store.environments.put(full, chosen, settings=dict(settings), enabled=enabled)
            if not self.store.seasons.all(full):
                self.seasons.start(full, FIRST_SEASON)
        self.matchmaker.wake()
        return made

    def _guarded(self) -> bool:
        """Whether nobody else can serve the database: it has a lock of its own, or lies in the folder that has one."""
        url = self.store.database.engine.url
        return url.get_backend_name() != "sqlite" or Path(url.database or "").absolute().parent == self.settings.data

    def _environment(self, env_id: str) -> Environment | None:
        with contextlib.suppress(NotFound):
            return self.store.environments.get(env_id)
        return None

    def _dead(self, job: QueuedJob) -> None:
        """Inside the transaction that gave it up."""
        kind = BY_NAME.get(job.kind)
        if kind is not None:  # a newer Harena may have left jobs that this one does not know
            kind.given_up(self)(job)


def _full_id(env_id: str, kind: EnvironmentKind | None) -> str:
    try:
        return registry.resolve(env_id)
    except registry.UnknownGame:
        if kind is not EnvironmentKind.SCRIPT_ONLY:
            raise
        return env_id  # a script makes it of its own packages


def _kind_of(env_id: str) -> EnvironmentKind:
    return EnvironmentKind.LADDER if registry.make(env_id).seats > 1 else EnvironmentKind.VERIFIED


def _check_kind(env_id: str, kind: EnvironmentKind) -> None:
    if kind is EnvironmentKind.SCRIPT_ONLY:
        return
    seats = registry.make(env_id).seats
    if (seats > 1) is not (kind is EnvironmentKind.LADDER):
        fit = EnvironmentKind.LADDER if seats > 1 else EnvironmentKind.VERIFIED
        raise SpecError(f"{env_id} has {seats} seat{'s' if seats > 1 else ''}: it can be {fit} or script-only")
