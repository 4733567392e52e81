"""Finals of a verified season: finalists are evaluated again, on seeds from the season's second secret.

Guarantees: nobody gets feedback from the finals before the season ends, and each finalist plays them once; so whatever
the public board taught an owner about its own episodes counts for nothing here. Every finalist is a line of the final
board: none is picked by its final score. Does not play: `submissions.final` does.
"""

from __future__ import annotations

from harena.arena.db.jobs import Queue
from harena.arena.db.models import Conflict, FinalState, SubmissionKind
from harena.arena.db.records import SubmissionRecord
from harena.arena.db.results.finalists import Finalist
from harena.arena.db.seasons import SeasonRecord
from harena.arena.db.store import Store
from harena.arena.queue import kinds
from harena.arena.settings import EnvironmentSettings

JOB = kinds.FINAL.name
STARTED = "the season's finals have begun: finalists can no longer be chosen"


def choose(store: Store, submission: SubmissionRecord, *, chosen: bool = True) -> None:
    """Raises Conflict when it cannot be a finalist, when enough were chosen, or when it is too late."""
    with store.begin():
        season_id = _live_season(store, submission)
        if store.finalists.begun(season_id):
            raise Conflict(STARTED)
        if not chosen:
            store.finalists.drop(season_id, submission.id)
            return
        if submission.kind is not SubmissionKind.VERIFIED or submission.score is None:
            raise Conflict("only a submission with a verified score can be a finalist")
        most = _settings(store, submission.env_id).finalists
        others = [one for one in store.finalists.of_owner(season_id, submission.owner_id) if one != submission.id]
        if len(others) >= most:
            raise Conflict(f"{most} finalists are chosen already: take one back first")
        store.finalists.choose(season_id, [submission.id], submission.owner_id)


def start(store: Store, queue: Queue, season: SeasonRecord, *, top: int | None = None) -> list[Finalist]:
    """Queues the finalists: of every owner, or of the `top` owners of the public board. Again only for those that the
    platform failed at."""
    with store.begin():
        if store.finalists.begun(season.id):
            again = [one.submission_id for one in store.finalists.every(season.id) if one.state is FinalState.VOID]
            if not again:
                raise Conflict("the season has its finals already")
        else:
            if waiting := store.finalists.waiting(season.id):
                raise Conflict(f"{waiting} submissions of the season are still to be evaluated: wait for them")
            again = _selected(store, season, top)
            if not again:
                raise Conflict("nobody has a verified score: there is nothing to play finals for")
        for submission_id in again:
            job_id = queue.enqueue(JOB, {"submission_id": submission_id, "season_id": season.id}, env_id=season.env_id)
            store.finalists.queue(season.id, submission_id, job_id)
        store.finalists.drop(season.id)
        return store.finalists.every(season.id)


def cancel(store: Store, queue: Queue, season_id: int) -> None:
    """Cancel the finals of a season that ends without them."""
    with store.begin():
        for one in store.finalists.every(season_id):
            if one.state is FinalState.QUEUED and one.job_id is not None:
                queue.cancel(one.job_id, reason="the season has ended")
                store.finalists.give_up(season_id, one.submission_id, one.job_id)


def _selected(store: Store, season: SeasonRecord, top: int | None) -> list[str]:
    """What the owners chose, and of those who chose nothing their best on the public board."""
    most = _settings(store, season.env_id).finalists
    selected: list[str] = []
    for owner_id in store.finalists.owners(season.env_id, top):
        chosen = store.finalists.of_owner(season.id, owner_id)[:most]
        if not chosen:
            chosen = store.finalists.best(season.id, owner_id, most)
            store.finalists.choose(season.id, chosen, owner_id, chosen=False)
        selected += chosen
    return selected


def _live_season(store: Store, submission: SubmissionRecord) -> int:
    season = store.seasons.live(submission.env_id)
    if season is None or season.id != submission.season_id:
        raise Conflict("its season has ended")
    return season.id


def _settings(store: Store, env_id: str) -> EnvironmentSettings:
    return EnvironmentSettings.parse(store.environments.get(env_id).settings)
