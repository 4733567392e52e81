"""Seasons of an environment: start, freeze, finals, end. Guarantees: a season ends as a whole, its boards kept, its
open matches and submissions called off and its secrets revealed, or not at all; the next one starts empty. Finals come
after the freeze and decide the final order. Those of a ladder are matches on seeds that did not exist before it; those
of a verified environment are evaluations on seeds from a second secret, to which the season was committed at its start
(`harena.arena.seasons.finals`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from harena.arena.db.jobs import Queue
from harena.arena.db.ladder.roster import RosterAgent
from harena.arena.db.ladder.standings import BoardStanding
from harena.arena.db.ladder.tournaments import TournamentRecord
from harena.arena.db.models import (
    BoardKind,
    Conflict,
    EnvironmentKind,
    Event,
    FinalState,
    MatchState,
    SubmissionKind,
    TournamentState,
)
from harena.arena.db.results.finalists import Finalist
from harena.arena.db.seasons import SeasonRecord
from harena.arena.db.store import Store
from harena.arena.ladder import ratings
from harena.arena.ladder.fold import Fold
from harena.arena.ladder.matches import MatchService
from harena.arena.ladder.standings import Standings, ladder_lines
from harena.arena.ladder.tournaments import TournamentService
from harena.arena.seasons import finals
from harena.arena.submissions import evaluate

ENDED = "the season has ended"
TOP = 8
"""Agents in a ladder's finals."""


class Seasons:
    def __init__(
        self, store: Store, queue: Queue, standings: Standings, matches: MatchService, tournaments: TournamentService
    ) -> None:
        self._store = store
        self._queue = queue
        self._standings = standings
        self._matches = matches
        self._tournaments = tournaments

    def start(self, env_id: str, name: str) -> SeasonRecord:
        """Raises Conflict while another one runs there."""
        with self._store.begin():
            season = self._store.seasons.start(env_id, name)
            self._tell(season, "started")
            return season

    def freeze(self, season_id: int, frozen: bool = True) -> SeasonRecord:
        """Takes no new submissions; matches go on."""
        with self._store.begin():
            season = self._store.seasons.freeze(season_id, frozen=frozen)
            self._tell(season, "frozen" if frozen else "open")
            return season

    def finals(self, season_id: int, *, top: int | None = None, games: int = 2) -> TournamentRecord:
        """Start a ladder's finals: a round robin of the best (TOP of them by default), each meeting with both seats on
        the same seeds. They can be started again only when the ones before were cancelled."""
        with self._store.begin():
            season = self._frozen(season_id)
            if (
                self._store.tournaments.finals_of(season_id, TournamentState.RUNNING, TournamentState.FINISHED)
                is not None
            ):
                raise Conflict("the season has its finals already: cancel them to have others")
            there = self._standings.count(season.env_id, season_id=season_id)
            most = max(2, min(top or TOP, there))
            return self._tournaments.create(
                season.env_id, f"{season.name:.180} finals", top=most, games=games, finals=True
            )

    def evaluate_finalists(self, season_id: int, *, top: int | None = None) -> list[Finalist]:
        """The finals of a verified environment: queues the finalists of every owner, or of the `top` owners."""
        with self._store.begin():
            season = self._frozen(season_id)
            if self._store.environments.get(season.env_id).kind is not EnvironmentKind.VERIFIED:
                raise Conflict(f"{season.env_id} is not verified: its finals are not evaluations")
            if self._store.seasons.final_secret(season_id) is None:
                raise Conflict("the season has no second secret")
            started = finals.start(self._store, self._queue, season, top=top)
            self._tell(season, "finals")
            return started

    def end(self, season_id: int, *, without_finals: bool = False) -> SeasonRecord:
        """Keeps the boards, empties the live ones and reveals the secrets. A verified season with scores ends after its
        finals, unless the host wants none: then the public board stands."""
        with self._store.begin():
            season = self._store.seasons.get(season_id)
            if season.ended_at is not None:
                raise Conflict(ENDED)
            if self._store.tournaments.finals_of(season_id, TournamentState.RUNNING) is not None:
                raise Conflict("the finals are being played: wait for them, or cancel them")
            decided = self._decided(season, without_finals)
            self._call_off(season)
            if self._store.environments.get(season.env_id).kind is EnvironmentKind.LADDER:
                self._settle_ladder(season)
            for kind in SubmissionKind:
                self._standings.archive(
                    season.env_id, season_id, kind, decided if kind is SubmissionKind.VERIFIED else ()
                )
            ended = self._store.seasons.end(season_id)
            self._tell(ended, "ended")
            return ended

    def reveal(self, season_id: int) -> bytes | None:
        """The secret that the hidden seeds came from: None before the end."""
        return self._store.seasons.revealed_secret(season_id)

    def commitment(self, season_id: int) -> str:
        """To the secret, from the start on: shows in the end that it was not changed."""
        return evaluate.commitment(self._store.seasons.secret(season_id))

    # ---- parts ----

    def _frozen(self, season_id: int) -> SeasonRecord:
        season = self._store.seasons.get(season_id)
        if season.ended_at is not None:
            raise Conflict(ENDED)
        if not season.frozen:
            raise Conflict("finals come after the freeze: freeze the season first")
        return season

    def _decided(self, season: SeasonRecord, without_finals: bool) -> Sequence[Finalist]:
        """The results of a verified season's finals; none where there is nothing to decide, or the host wants none."""
        if self._store.environments.get(season.env_id).kind is not EnvironmentKind.VERIFIED:
            return ()
        if without_finals:
            finals.cancel(self._store, self._queue, season.id)
            return ()
        through = self._store.finalists.progress(season.id)
        if through is None:
            if self._store.boards.size(season.env_id):
                raise Conflict("its finals have not been played: freeze it and start them, or end it without finals")
            return ()
        done, total = through
        if done < total:
            raise Conflict(f"the finals are being played, {done} of {total} are through: wait, or end without finals")
        return [one for one in self._store.finalists.every(season.id) if one.state is FinalState.DONE]

    def _call_off(self, season: SeasonRecord) -> None:
        """What has no result yet will have none: it would come too late for the boards."""
        for one in self._tournaments.list(season_id=season.id, limit=1000):
            if one.state is TournamentState.RUNNING:
                self._tournaments.cancel(one.id)
        while still_open := self._store.matches.where(season_id=season.id, state=MatchState.SCHEDULED, limit=1000):
            self._matches.cancel(still_open, ENDED)
        for submission_id, job_id in self._store.submissions.active(season.id):
            if job_id is not None:
                self._queue.cancel(job_id, reason=ENDED)
            self._store.submissions.move(
                submission_id, Event.CANCEL, reason=f"{ENDED}: submit it again in the next one"
            )
            self._store.quotas.refund(submission_id)

    def _settle_ladder(self, season: SeasonRecord) -> None:
        fold = Fold(self._store, season.env_id, season.id)
        fold.advance()
        played = self._store.tournaments.finals_of(season.id, TournamentState.FINISHED)
        lines = final_lines(fold, self._store.roster.live(season.id), played)
        self._standings.replace(season.env_id, season.id, BoardKind.LADDER, lines)

    def _tell(self, season: SeasonRecord, what: str) -> None:
        body = {"season_id": season.id, "name": season.name, "what": what}
        self._store.events.publish(f"board:{season.env_id}", "season", body)


def final_lines(fold: Fold, agents: Sequence[RosterAgent], finals: TournamentRecord | None) -> list[BoardStanding]:
    """The board of a ladder that has ended: finalists first, as they came out of the finals; then the others, as they
    stand on the ladder."""
    lines = ladder_lines(fold, agents)
    if finals is None:
        return lines
    ranks: dict[str, int] = {finals.participants[row["agent"]]: row["rank"] for row in finals.result["standings"]}
    first = sorted((line for line in lines if line.submission_id in ranks), key=lambda line: ranks[line.submission_id])
    rest = [line for line in lines if line.submission_id not in ranks]
    others = {agent.submission_id for agent in agents} - ranks.keys()
    among = {entry.agent: entry.rank for entry in ratings.refit(fold.log, listed=others).entries}
    placed = [
        *(dataclasses.replace(line, rank=ranks[line.submission_id]) for line in first),
        *(dataclasses.replace(line, rank=len(first) + among[line.submission_id]) for line in rest),
    ]
    return [dataclasses.replace(line, place=place) for place, line in enumerate(placed, 1)]
