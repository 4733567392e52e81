"""A ladder without boxes: agents that only have names, and matches that end as the test says."""

from __future__ import annotations

import contextlib
import random

from harena.arena.db.files import FileStore
from harena.arena.db.ladder.matches import Seated
from harena.arena.db.models import EnvironmentKind, Event, MatchKind, MatchState, SubmissionKind
from harena.arena.db.records import DefaultQuota
from harena.arena.db.store import Store
from harena.arena.events.bus import Hub
from harena.arena.ladder.challenges import Challenges
from harena.arena.ladder.matches import MatchService
from harena.arena.ladder.matchmaker import Matchmaker
from harena.arena.ladder.standings import Standings
from harena.arena.ladder.tournaments import TournamentService
from harena.arena.seasons.service import Seasons
from harena.arena.settings import Settings
from harena.arena.submissions.service import Submissions
from support.entries import Clock, prepared_sqlite

GAME = "tictactoe-v1"
NO_LIMIT = DefaultQuota(per_day=None, at_once=None)


class Bench:
    """All parts of an arena but the workers, over one folder."""

    def __init__(self, folder, runner, *, url=None, clock=None, settings=None, seed=0):
        self.clock = clock or Clock()
        self.settings = Settings(
            data=folder, database_url=url or prepared_sqlite(folder), secret_key=b"k" * 32, quota=NO_LIMIT
        )
        self.store = Store(self.settings.database_url, clock=self.clock)
        self.queue = self.store.jobs
        self.files = FileStore(self.settings.files)
        self.hub = Hub(self.store)
        self.submissions = Submissions(self.store, self.queue, self.files, self.settings)
        self.matches = MatchService(self.store, self.queue, self.files, self.hub, runner, self.submissions)
        self.standings = Standings(self.store)
        self.tournaments = TournamentService(self.store, self.standings, self.matches)
        self.challenges = Challenges(self.store, self.matches)
        self.seasons = Seasons(self.store, self.queue, self.standings, self.matches, self.tournaments)
        if not self.store.environments.all():
            self.store.environments.put(GAME, EnvironmentKind.LADDER, settings=settings or {})
            self.store.seasons.start(GAME, "season 1")
        self.rng = random.Random(seed)
        self.matchmaker = self.new_matchmaker()

    def new_matchmaker(self):
        return Matchmaker(
            self.store,
            self.queue,
            self.hub,
            self.matches,
            self.standings,
            also=[self.tournaments.advance],
            rng=self.rng,
        )

    @property
    def season(self):
        season = self.store.seasons.live(GAME)
        assert season is not None
        return season

    def enter(self, owner, algorithm="agent", **more):
        """A ranked agent; its id."""
        self.clock.now += 1
        made = self.store.submissions.add(
            owner, GAME, algorithm=algorithm, digest="0" * 64, main_file="agent.py", quota=NO_LIMIT, **more
        )
        self.store.submissions.check(made.id, SubmissionKind.VERIFIED)
        self.store.submissions.move(made.id, Event.QUEUE)
        self.store.submissions.move(made.id, Event.START)
        return self.store.submissions.enter(made.id).id

    def match(self, *agents, kind=MatchKind.LADDER):
        return self.matches.create(GAME, agents, kind=kind, season_id=self.season.id)

    def end(self, match, scores=(1.0, 0.0), statuses=None, state=MatchState.FINISHED):
        """Ends a match as its job would."""
        if state not in (MatchState.FINISHED, MatchState.TIMEOUT):
            self.matches.cancel([match], "") if state is MatchState.CANCELLED else self.matches.void(match.id, "")
            return self.store.matches.get(match.id)
        came = [
            Seated(score=score, status=status)
            for score, status in zip(scores, statuses or ["ok"] * len(scores), strict=True)
        ]
        best = max(scores)
        winner = scores.index(best) if list(scores).count(best) == 1 and state is MatchState.FINISHED else None
        with self.store.begin():
            job = self.queue.find(f"match:{match.id}")
            if job is not None:
                self.queue.cancel(job.id)
            self.matches._finish(match.id, state=state, seats=came, winner=winner)
        return self.store.matches.get(match.id)

    def end_all(self, strength):
        """Ends what is open: the stronger wins, equals draw."""
        ended = self.store.matches.open()
        for match in ended:
            self.end(match, [float(strength(seat.submission_id)) for seat in match.seats])
        return ended

    def close(self):
        self.hub.close()
        self.store.close()


@contextlib.contextmanager
def bench(folder, runner, **more):
    made = Bench(folder, runner, **more)
    try:
        yield made
    finally:
        made.close()
