"""The ratings of one season, as a fold over its match log. Guarantees: strictly in the order in which matches were
created; each match moves ratings once, also when the process dies in between; taken up from what is stored or made
again from nothing, it gives the same to the last bit. Does not decide who plays.

A new version starts from the rating of the last version of its lineage that has played, less sure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harena.arena.db.ladder.matches import MatchRecord, RatedResult
from harena.arena.db.ladder.ratings import StoredRating
from harena.arena.db.store import Store
from harena.arena.ladder import ratings
from harena.arena.ladder.ratings import RatedOutcome, Rating, RatingModel
from harena.arena.ladder.roster import RosterAgent
from harena.arena.settings import EnvironmentSettings

BATCH = 500
"""Matches that one transaction folds: others wait for it meanwhile."""
TAKE_UP = 10_000
"""Matches that are read at a time where nothing is written."""


@dataclass(slots=True)
class GameTally:
    """Counts the rated games of one agent."""

    wins: int = 0
    draws: int = 0
    losses: int = 0


class Fold:
    """Folds the matches of one season into ratings. Must be used by one thread at a time."""

    def __init__(self, store: Store, env_id: str, season_id: int) -> None:
        """Takes it up where the database says it is."""
        self.env_id, self.season_id = env_id, season_id
        self._store = store
        self.model_name = EnvironmentSettings.parse(store.environments.get(env_id).settings).model
        self.model: RatingModel = ratings.SYSTEMS[self.model_name]()
        self._forget()
        with store.begin():
            if self._of_another_model():
                store.ratings.replace(env_id, [], season_id=season_id)
            self._take_up()

    def rating(self, agent: RosterAgent) -> Rating:
        """Also of one who has not played."""
        if agent.submission_id in self.ratings:
            return self.ratings[agent.submission_id]
        earlier = [version for version in self._played[agent.lineage] if version < agent.version]
        if not earlier:
            return self.model.start
        return self.model.inherit(self.ratings[self._played[agent.lineage][max(earlier)]])

    def advance(self) -> list[MatchRecord]:
        """Folds what has come to be settled, and stores it. Returns these matches."""
        folded: list[MatchRecord] = []
        while True:
            with self._store.begin():
                if self._store.ratings.rated_up_to(self.env_id, season_id=self.season_id) != self.number:
                    self._forget()
                    self._take_up()
                matches = self._store.matches.log(self.env_id, season_id=self.season_id, after=self.number, limit=BATCH)
                results = [result_of(match) for match in matches]
                self._meet(results)
                after = {result.number: self.apply(result) for result in results}
                self._store.ratings.record(
                    {number: {key: (one.mu, one.sigma) for key, one in of.items()} for number, of in after.items()}
                )
            folded += matches
            if len(matches) < BATCH:
                return folded

    def apply(self, result: RatedResult) -> dict[str, Rating]:
        """The ratings after a match, which must be the next of the log."""
        outcome = self._note(result)
        before = [self.rating(self._agents[agent]) for agent in outcome.agents]
        after = dict(zip(outcome.agents, self.model.update(before, outcome.ranks), strict=True))
        self._enter(after)
        return after

    # ---- parts ----

    def _forget(self) -> None:
        self.number = 0
        """Number of the last match that is included."""
        self.ratings: dict[str, Rating] = {}
        self.log: list[RatedOutcome] = []
        self.tallies: defaultdict[str, GameTally] = defaultdict(GameTally)
        self._agents: dict[str, RosterAgent] = {}
        self._played: defaultdict[str, dict[int, str]] = defaultdict(dict)

    def _meet(self, results: Sequence[RatedResult]) -> None:
        unknown = {agent for result in results for agent in result.agents} - self._agents.keys()
        if unknown:
            self._agents |= self._store.roster.agents(unknown)

    def _results(self, up_to: int) -> Iterator[RatedResult]:
        """Yield results from the start of the log."""
        while results := self._store.matches.results(
            self.env_id, season_id=self.season_id, after=self.number, up_to=up_to, limit=TAKE_UP
        ):
            self._meet(results)
            yield from results

    def _take_up(self) -> None:
        for result in self._results(self._store.ratings.rated_up_to(self.env_id, season_id=self.season_id)):
            self._note(result)
        stored = self._store.ratings.latest(self.env_id, season_id=self.season_id)
        games = {agent: tally.wins + tally.draws + tally.losses for agent, tally in self.tallies.items()}
        self._enter({key: Rating(mu=one.mu, sigma=one.sigma, games=games[key]) for key, one in stored.items()})

    def _enter(self, ratings: dict[str, Rating]) -> None:
        self.ratings |= ratings
        for agent in map(self._agents.__getitem__, ratings):
            self._played[agent.lineage][agent.version] = agent.submission_id

    def _note(self, result: RatedResult) -> RatedOutcome:
        ranks = ratings.ranks_of(result.scores, winner=result.winner)
        outcome = RatedOutcome(number=result.number, agents=result.agents, ranks=ranks)
        self.number = result.number
        self.log.append(outcome)
        for agent, rank in zip(outcome.agents, outcome.ranks, strict=True):
            tally = self.tallies[agent]
            if rank > 1:
                tally.losses += 1
            elif outcome.ranks.count(1) > 1:
                tally.draws += 1
            else:
                tally.wins += 1
        return outcome

    def _of_another_model(self) -> bool:
        """The host has changed it since the latest ratings were stored."""
        stored = self._store.ratings.latest(self.env_id, season_id=self.season_id).values()
        return not all(self.model.made(rating.mu, rating.sigma) for rating in stored)


class FromNothing(Fold):
    """The same fold without a look at stored ratings, and without storing any."""

    def _of_another_model(self) -> bool:
        return False

    def _take_up(self) -> None:
        self.history: list[StoredRating] = []
        """Ratings after each match, in the order of the matches and then of the submission ids."""
        for result in self._results(self._store.matches.settled_up_to(self.env_id, season_id=self.season_id)):
            after = self.apply(result)
            self.history += [
                StoredRating(
                    match_number=result.number,
                    submission_id=key,
                    mu=after[key].mu,
                    sigma=after[key].sigma,
                    created_at=result.at,
                )
                for key in sorted(after)
            ]


def result_of(match: MatchRecord) -> RatedResult:
    return RatedResult(
        number=match.number,
        winner=match.winner,
        at=match.finished_at or 0.0,
        agents=tuple(seat.submission_id for seat in match.seats),
        scores=tuple(seat.score or 0.0 for seat in match.seats),
    )


def played(rating: Rating, games: int) -> Rating:
    """The same, as pairing shall see it: with matches that gave no result counted too."""
    return replace(rating, games=games)
