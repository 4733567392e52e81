"""Keeps the ladders going: makes matches, folds their results into ratings, fits the boards, benches who keeps failing.

Guarantees: no more matches are open than can be played at once, and two while submissions wait: one that is played and
the next; ratings follow the order of the matches, whoever ended first, and survive any restart; a board is fitted at
most twice a second. One thread of one process does it: `pairing`, `ratings` and `fold` decide, this acts. Of several
processes on one database one leads; another takes over within TICK_S when it ends or loses its connection.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from harena.arena.db.database import log_failure
from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.events import EventNotice
from harena.arena.db.jobs import Queue
from harena.arena.db.ladder.matches import MatchRecord
from harena.arena.db.ladder.roster import RosterAgent
from harena.arena.db.models import Conflict, EnvironmentKind, MatchKind
from harena.arena.db.seasons import SeasonRecord
from harena.arena.db.store import Store
from harena.arena.events.bus import Hub
from harena.arena.ladder import pairing, roster
from harena.arena.ladder.fold import Fold, played
from harena.arena.ladder.matches import MatchService
from harena.arena.ladder.standings import Standings
from harena.arena.queue.kinds import EVALUATIONS
from harena.arena.settings import EnvironmentSettings
from harena.errors import HarenaError
from harena.match import registry
from harena.match.result import SeatStatus

AT_HAND = 2
"""Matches while owners wait for evaluations: one is played; without a second, its slot would be gone when it ends."""
TICK_S = 1.0
"""Between two looks without news: for upkeep, and for what other processes wrote."""
REFIT_S = 0.5
REFIT_SHARE = 0.2
"""Largest share of the time that fitting boards may take, however long the log is."""
RECENT = 500
"""Matches that pairing looks back on."""
_TOPICS = ("matches:", "submission:", "tournament:", "board:")
_OWN = ("scheduled", "board")
"""Kinds of events that tell the matchmaker nothing it did not do itself."""
_log = logging.getLogger("harena.arena")


class Matchmaker:
    def __init__(
        self,
        store: Store,
        queue: Queue,
        hub: Hub,
        matches: MatchService,
        standings: Standings,
        *,
        also: Sequence[Callable[[], object]] = (),
        rng: random.Random | None = None,
    ) -> None:
        """`also` is called whenever matches may have ended."""
        self._store = store
        self._queue = queue
        self._matches = matches
        self._standings = standings
        self._also = also
        self._rng = rng or random.Random()
        self._ladders: dict[int, _Ladder] = {}
        self._bell = threading.Event()
        self._news = True
        """True if the set of players has changed, not only their matches."""
        self._ending = False
        self._thread: threading.Thread | None = None
        self._swept_at = -TICK_S
        self._leadership = store.database.leadership
        self.leads = False
        """Whether this process is the one that makes matches."""
        self._hub = hub
        self._stop_listening: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._stop_listening = self._hub.add_listener(self._heard)
        self._thread = threading.Thread(target=self._run, name="harena-matchmaker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Makes no more matches. Again does nothing."""
        self._stop_listening()
        self._ending = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join()

    def settle(self) -> None:
        """Brings ratings and boards up to date with what has ended. After `stop`, and after the last match."""
        if self._thread is None or not self._take_lead():
            return
        for ladder in self._live_ladders():
            ladder.refit_at = 0.0
            self._settle(ladder, news=True)

    def wake(self) -> None:
        """Somebody has changed something here."""
        self._news = True
        self._bell.set()

    def step(self) -> None:
        """One look at everything: what the thread does again and again."""
        self._sweep()
        for act in self._also:
            act()
        news, self._news = self._news, False
        ladders = [ladder for ladder in self._live_ladders() if self._settle(ladder, news=news)]
        self._rng.shuffle(ladders)  # none is always the first to be served
        most = AT_HAND if self._queue.waiting(EVALUATIONS) else max(AT_HAND, self._matches.at_once)
        free = most - len(self._store.matches.open())
        waiting = deque(ladders)
        while free > 0 and waiting:
            ladder = waiting.popleft()
            if ladder.make_one():
                free -= 1
                waiting.append(ladder)

    # ---- the thread ----

    def _heard(self, notice: EventNotice) -> None:
        if notice.topic.startswith(_TOPICS) and notice.kind not in _OWN:
            self._news = self._news or not notice.topic.startswith("matches:")
            self._bell.set()

    def _run(self) -> None:
        while not self._ending:
            self._bell.clear()
            try:
                if self._take_lead():
                    self.step()
            except Exception as error:
                log_failure(_log, "the matchmaker failed and will try again", error)
                time.sleep(TICK_S)
            self._bell.wait(self._pause_s())

    def _take_lead(self) -> bool:
        leads = self._leadership.lead()
        if leads and not self.leads:  # another may have led since
            self._ladders.clear()
            self._news = True
        if leads != self.leads:
            _log.info("this process %s", "makes the matches from now on" if leads else "does not make the matches")
        self.leads = leads
        return leads

    def _pause_s(self) -> float:
        due = [ladder.refit_at - time.monotonic() for ladder in self._ladders.values() if ladder.stale]
        return max(0.0, min([TICK_S, *due]))

    def _sweep(self) -> None:
        if time.monotonic() - self._swept_at >= TICK_S:
            self._swept_at = time.monotonic()
            self._matches.sweep()

    def _live_ladders(self) -> list[_Ladder]:
        ladders: dict[int, _Ladder] = {}
        for environment in self._store.environments.all(enabled_only=False):
            if environment.kind is not EnvironmentKind.LADDER:
                continue
            season = self._store.seasons.live(environment.env_id)
            if season is None:
                continue
            known = self._ladders.get(season.id)
            if known is None or known.environment != environment:
                known = self._open(environment, season)
            if known is not None:
                ladders[season.id] = known
        self._ladders = ladders
        return list(ladders.values())

    def _open(self, environment: EnvironmentRecord, season: SeasonRecord) -> _Ladder | None:
        try:
            return _Ladder(self._store, self._matches, self._standings, environment, season, self._rng)
        except HarenaError as error:
            log_failure(_log, f"the ladder of {environment.env_id} cannot be played", error)
            return None

    def _settle(self, ladder: _Ladder, *, news: bool) -> bool:
        try:
            ladder.settle(news=news)
        except Exception as error:
            self._ladders.pop(ladder.season_id, None)
            log_failure(_log, f"the ladder of {ladder.environment.env_id} could not be brought up to date", error)
            return False
        return True


class _Ladder:
    """State of one ladder in one season."""

    def __init__(
        self,
        store: Store,
        matches: MatchService,
        standings: Standings,
        environment: EnvironmentRecord,
        season: SeasonRecord,
        rng: random.Random,
    ) -> None:
        self.environment, self.season_id = environment, season.id
        self._store = store
        self._matches = matches
        self._standings = standings
        self._rng = rng
        self._settings = EnvironmentSettings.parse(environment.settings)
        self._rules = pairing.PairingRules(
            seats=registry.make(environment.env_id).seats,
            provisional_games=self._settings.provisional_games,
            owners_meet=self._settings.owners_meet,
        )
        self._fold = Fold(store, environment.env_id, season.id)
        self._agents: list[RosterAgent] = []
        self._benched: set[str] = set()
        self._circles: dict[str, str] = {}
        self._made_at = 0.0
        self._recent: deque[tuple[str, ...]] = deque(maxlen=RECENT)
        self._last_at: dict[str, float] = {}
        self._ended: Counter[str] = Counter()
        self._open: dict[str, MatchRecord] = {}
        self.stale = True
        """Whether the board is behind."""
        self.refit_at = 0.0
        self._looked_at = -math.inf
        self._remember()

    def settle(self, *, news: bool) -> None:
        """Takes in what has happened since. `news`: agents may have come, gone or been benched."""
        env_id = self.environment.env_id
        now_open = {match.id: match for match in self._store.matches.open(env_id=env_id)}
        for match in self._open.keys() - now_open.keys():
            self._count(self._open[match])
        self._open = now_open
        folded = self._fold.advance()
        news = self._bench(folded) or news
        self.stale = self.stale or bool(folded)
        if news or time.monotonic() - self._looked_at >= TICK_S:
            self._look()
        self._refit()

    def make_one(self) -> bool:
        """Whether a match was made."""
        now = self._store.clock()
        if not self.environment.enabled:
            return False
        needy = None if now - self._made_at >= self._settings.upkeep_s else self._needy()
        candidates = [self._candidate(agent) for agent in self._agents]
        running = [_table(match) for match in self._open.values()]
        chosen = pairing.choose(
            candidates, list(self._recent), running, rng=self._rng, now=now, rules=self._rules, needy=needy
        )
        if chosen is None:
            return False
        try:
            match = self._matches.create(
                self.environment.env_id, chosen.agents, kind=MatchKind.LADDER, season_id=self.season_id
            )
        except Conflict:  # its season was ended in this moment
            return False
        self._open[match.id] = match
        self._note(match)
        return True

    # ---- parts ----

    def _remember(self) -> None:
        """Restore the state from the match log after a restart."""
        env_id = self.environment.env_id
        latest = self._store.matches.where(env_id=env_id, season_id=self.season_id, kind=MatchKind.LADDER, limit=RECENT)
        for match in reversed(latest):
            self._note(match)
        self._ended = Counter(self._store.matches.ended(env_id, season_id=self.season_id))
        self._open = {match.id: match for match in self._store.matches.open(env_id=env_id)}

    def _note(self, match: MatchRecord) -> None:
        self._recent.append(_table(match))
        self._made_at = match.created_at
        for agent in _table(match):
            self._last_at[agent] = match.created_at

    def _count(self, match: MatchRecord) -> None:
        if match.kind is MatchKind.LADDER and match.season_id == self.season_id:
            self._ended.update(_table(match))

    def _needy(self) -> set[str]:
        """Who has not played enough yet. Others play them, and each other only for upkeep."""
        target = self._settings.games_target
        return {agent.submission_id for agent in self._agents if self._ended[agent.submission_id] < target}

    def _candidate(self, agent: RosterAgent) -> pairing.Candidate:
        key = agent.submission_id
        return pairing.Candidate(
            agent=key,
            rating=played(self._fold.rating(agent), self._ended[key]),
            owner=self._circles.get(agent.owner, agent.owner),
            lineage=agent.lineage,
            waiting_since=self._last_at.get(key, agent.created_at),
            benched=key in self._benched,
        )

    def _look(self) -> None:
        """Who plays here."""
        self._looked_at = time.monotonic()
        agents = roster.playing(self._store.roster.live(self.season_id), self._settings.agents_per_owner)
        benched = self._store.roster.all_benched(env_id=self.environment.env_id)
        self._circles = self._store.teams.circles()
        self._benched = {bench.submission_id for bench in benched}
        self.stale = self.stale or agents != self._agents
        self._agents = agents

    def _bench(self, folded: Sequence[MatchRecord]) -> bool:
        """Whether somebody was benched."""
        failed = {seat.submission_id for match in folded for seat in match.seats if seat.status != SeatStatus.OK.value}
        some = False
        for agent in sorted(failed):
            reason = pairing.bench_rule(self._store.roster.behaviour(agent, pairing.FAULT_WINDOW))
            if reason is not None and self._store.roster.benched(agent) is None:
                _log.info("agent %s is benched: %s", agent, reason)
                self._store.roster.bench(agent, reason)
                some = True
        return some

    def _refit(self) -> None:
        started = time.monotonic()
        if not self.stale or started < self.refit_at:
            return
        self._standings.refit(self._fold)
        self.stale = False
        took_s = time.monotonic() - started
        self.refit_at = started + max(REFIT_S, took_s / REFIT_SHARE)


def _table(match: MatchRecord) -> tuple[str, ...]:
    return tuple(seat.submission_id for seat in match.seats)
