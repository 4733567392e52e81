"""Challenges: an agent against an opponent of its owner's choice. Guarantees: they move no rating; an owner has a
bounded number of them open, so that nobody else waits long. Who may challenge for whom is the caller's to check.
"""

from __future__ import annotations

from harena.arena.db.ladder.matches import MatchRecord
from harena.arena.db.models import EnvironmentKind, MatchKind, QuotaExceeded, State
from harena.arena.db.records import SubmissionRecord
from harena.arena.db.store import Store
from harena.arena.ladder.matches import MatchService
from harena.errors import SpecError
from harena.match import registry

MAX_GAMES = 10
MAX_OPEN = 20
"""Challenge games of one owner that have not ended."""


class Challenges:
    def __init__(self, store: Store, matches: MatchService) -> None:
        self._store = store
        self._matches = matches

    def challenge(self, submission_id: str, opponent_id: str, games: int = 1) -> list[MatchRecord]:
        """The two change seats from game to game; at larger tables they sit alternately. Every game has a seed of its
        own."""
        if not 1 <= games <= MAX_GAMES:
            raise SpecError(f"games={games}: a challenge has 1 to {MAX_GAMES}")
        with self._store.begin():
            mine, other = self._agent(submission_id), self._agent(opponent_id)
            if mine.env_id != other.env_id:
                raise SpecError(f"the opponent plays {other.env_id}, not {mine.env_id}")
            self._check_quota(mine, games)
            season = self._store.seasons.live(mine.env_id)
            seats = registry.make(mine.env_id).seats
            return [
                self._matches.create(
                    mine.env_id,
                    [(mine, other)[(game + seat) % 2].id for seat in range(seats)],
                    kind=MatchKind.CHALLENGE,
                    season_id=season.id if season else None,
                    pairing=game % 2,
                )
                for game in range(games)
            ]

    def _agent(self, submission_id: str) -> SubmissionRecord:
        submission = self._store.submissions.get(submission_id)
        if self._store.environments.get(submission.env_id).kind is not EnvironmentKind.LADDER:
            raise SpecError(f"{submission.env_id} has no opponents: challenges are for games of several seats")
        if submission.state is not State.RANKED or submission.deleted_at is not None:
            raise SpecError(f"submission {submission_id} is not on the ladder: only agents that are can play")
        return submission

    def _check_quota(self, mine: SubmissionRecord, games: int) -> None:
        still_open = self._store.matches.open_challenges(mine.owner_id)
        if still_open + games > MAX_OPEN:
            raise QuotaExceeded(
                f"{still_open} challenge games of yours are open and at most {MAX_OPEN} may be: wait for some to end"
            )
