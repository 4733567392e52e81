"""Seasons of an environment: start, freeze, finals, end. Guarantees: a season ends as a whole, its boards kept, its
open matches and submissions called off and its secret revealed, or not at all; the next one starts empty. Finals are
played after the freeze, on seeds that did not exist before it, and decide the final order of the ladder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sqlalchemy as sa

from harena.arena import evaluate, ratings, roster
from harena.arena.accounts import Season
from harena.arena.fold import Fold
from harena.arena.jobs import Queue
from harena.arena.matches import Matches
from harena.arena.models import (
    ACTIVE,
    Board,
    Conflict,
    EnvironmentKind,
    Event,
    Kind,
    MatchState,
    TournamentState,
    submissions,
)
from harena.arena.standings import Standing, Standings, ladder_lines
from harena.arena.store import Store
from harena.arena.tournaments import Tournament, Tournaments, finals_of

ENDED = "the season has ended"


class Seasons:
    def __init__(
        self, store: Store, queue: Queue, standings: Standings, matches: Matches, tournaments: Tournaments
    ) -> None:  # fmt: skip
        self._store = store
        self._queue = queue
        self._standings = standings
        self._matches = matches
        self._tournaments = tournaments

    def start(self, env_id: str, name: str) -> Season:
        """Raises Conflict while another one runs there."""
        with self._store.begin():
            season = self._store.start_season(env_id, name)
            self._tell(season, "started")
            return season

    def freeze(self, season_id: int, frozen: bool = True) -> Season:
        """Takes no new submissions; matches go on."""
        with self._store.begin():
            season = self._store.freeze_season(season_id, frozen=frozen)
            self._tell(season, "frozen" if frozen else "open")
            return season

    def finals(self, season_id: int, *, top: int = 8, games: int = 2) -> Tournament:
        """A round robin of the best, each meeting with both seats on the same seeds. Again only when the one before was
        cancelled."""
        with self._store.begin():
            season = self._store.season(season_id)
            if season.ended_at is not None:
                raise Conflict(ENDED)
            if not season.frozen:
                raise Conflict("finals come after the freeze: freeze the season first")
            if finals_of(self._store, season_id, TournamentState.RUNNING, TournamentState.FINISHED) is not None:
                raise Conflict("the season has its finals already: cancel them to have others")
            there = self._standings.count(season.env_id, season_id=season_id)
            return self._tournaments.create(
                season.env_id, f"{season.name:.180} finals", top=max(2, min(top, there)), games=games, finals=True
            )  # fmt: skip

    def end(self, season_id: int) -> Season:
        """Keeps the boards, empties the live ones and reveals the secret."""
        with self._store.begin():
            season = self._store.season(season_id)
            if season.ended_at is not None:
                raise Conflict(ENDED)
            if finals_of(self._store, season_id, TournamentState.RUNNING) is not None:
                raise Conflict("the finals are being played: wait for them, or cancel them")
            self._call_off(season)
            if self._store.environment(season.env_id).kind is EnvironmentKind.LADDER:
                self._settle_ladder(season)
            for kind in Kind:
                self._standings.archive(season.env_id, season_id, kind)
            ended = self._store.end_season(season_id)
            self._tell(ended, "ended")
            return ended

    def reveal(self, season_id: int) -> bytes | None:
        """The secret that the hidden seeds came from: None before the end."""
        return self._store.revealed_secret(season_id)

    def commitment(self, season_id: int) -> str:
        """To the secret, from the start on: shows in the end that it was not changed."""
        return evaluate.commitment(self._store.season_secret(season_id))

    # ---- parts ----

    def _call_off(self, season: Season) -> None:
        """What has no result yet will have none: it would come too late for the boards."""
        for one in self._tournaments.list(season_id=season.id, limit=1000):
            if one.state is TournamentState.RUNNING:
                self._tournaments.cancel(one.id)
        while still_open := self._store.matches_where(season_id=season.id, state=MatchState.SCHEDULED, limit=1000):
            self._matches.cancel(still_open, ENDED)
        active = sa.select(submissions.c.id, submissions.c.job_id).where(
            submissions.c.season_id == season.id, submissions.c.state.in_(sorted(ACTIVE))
        )  # fmt: skip
        for row in self._store.rows(active):
            if row["job_id"] is not None:
                self._queue.cancel(row["job_id"], reason=ENDED)
            self._store.move(row["id"], Event.CANCEL, reason=f"{ENDED}: submit it again in the next one")
            self._store.refund(row["id"])

    def _settle_ladder(self, season: Season) -> None:
        fold = Fold(self._store, season.env_id, season.id)
        fold.advance()
        finals = finals_of(self._store, season.id, TournamentState.FINISHED)
        lines = final_lines(fold, roster.live(self._store, season.id), finals)
        self._standings.replace(season.env_id, season.id, Board.LADDER, lines)

    def _tell(self, season: Season, what: str) -> None:
        body = {"season_id": season.id, "name": season.name, "what": what}
        self._store.publish(f"board:{season.env_id}", "season", body)


def final_lines(fold: Fold, agents: Sequence[roster.Agent], finals: Tournament | None) -> list[Standing]:
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
