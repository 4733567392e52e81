"""Results checked by doing them again. Guarantees: a match's replay is re-run move by move and compared with what the
database says; an evaluation is played again on the same hidden seeds. Changes nothing. What it cannot show is in
`harena.match.replay.replay`: that a seat really crashed or ran out of time.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from harena.arena.db.files import ObjectStore
from harena.arena.db.ladder.matches import MatchRecord
from harena.arena.db.models import EnvironmentKind, MatchState, State, SubmissionKind
from harena.arena.db.records import EvaluationRecord, SubmissionRecord
from harena.arena.db.results.finalists import Finalist
from harena.arena.db.store import Store
from harena.arena.ladder.matches import play_spec
from harena.arena.settings import EnvironmentSettings
from harena.arena.submissions import evaluate
from harena.arena.submissions.service import Submissions
from harena.errors import BackendUnavailable, HarenaError
from harena.match.replay import format as replay_format
from harena.match.replay.replay import Replay
from harena.match.result import AgentCode, MatchStatus, VoidCause
from harena.match.run.runner import Runner
from harena.statistics import bootstrap

MATCHES_OF_AGENT = 10
"""How many of the latest matches of a ladder agent are checked."""


class Agreement(enum.StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    """Somebody has to look: what is stored does not follow from what was played."""
    UNLIKE = "unlike"
    """Played again, the agents played otherwise, as agents that throw dice do. The recorded game stands."""
    UNCHECKED = "unchecked"
    """There is nothing that could be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    what: str
    """match or submission"""
    id: str
    verdict: Agreement
    detail: str

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "id": self.id, "verdict": self.verdict.value, "detail": self.detail}


class ResultVerifier:
    def __init__(
        self, store: Store, files: ObjectStore, submissions: Submissions, *, runner: Runner | None = None
    ) -> None:
        """If there is no runner, replays can be checked but nothing can be played again."""
        self._store = store
        self._files = files
        self._submissions = submissions
        self._runner = runner

    def verify_match(self, match_id: str, *, replay: bool = False) -> list[Finding]:
        """Check a match. If `replay` is set, the agents also play it again, on the same seed."""
        match = self._store.matches.get(match_id)
        if match.state not in (MatchState.FINISHED, MatchState.TIMEOUT) or match.replay_digest is None:
            return [_of_match(match, Agreement.UNCHECKED, f"the match is {match.state} and has no replay")]
        try:
            data = self._files.get(match.replay_digest)
            found = [_compare(match, Replay.load(data))]
        except HarenaError as error:
            return [_of_match(match, Agreement.DIFFERS, f"its replay cannot be read: {error}")]
        if replay:
            found.append(self._play_again(match, data))
        return found

    def verify_submission(self, submission_id: str) -> list[Finding]:
        submission = self._store.submissions.get(submission_id)
        if self._store.environments.get(submission.env_id).kind is EnvironmentKind.LADDER:
            return self._verify_agent(submission)
        if submission.kind is SubmissionKind.SELF_REPORTED:
            return [_of(submission, Agreement.UNCHECKED, "a self-reported score: it is the script's own word")]
        every = self._store.submissions.evaluations(submission_id)
        if not every or submission.season_id is None:
            return [_of(submission, Agreement.UNCHECKED, "it was never evaluated")]
        found = [self._evaluate_again(submission, every[-1])]
        final = self._store.finalists.find(submission_id)
        if final is not None and final.score is not None:
            found.append(self._final_again(submission, final))
        return found

    def sample(self, n: int, *, replay: bool = False) -> list[Finding]:
        """Check `n` randomly chosen results, both matches and evaluations."""
        chosen = self._store.submissions.some(-(-n // 2))
        found = [finding for submission_id in chosen for finding in self.verify_submission(submission_id)]
        for match_id in self._store.matches.some(n - len(chosen)):
            found += self.verify_match(match_id, replay=replay)
        return found

    # ---- parts ----

    def _verify_agent(self, submission: SubmissionRecord) -> list[Finding]:
        played = self._store.matches.where(
            submission_id=submission.id, state=MatchState.FINISHED, limit=MATCHES_OF_AGENT
        )
        if not played:
            return [_of(submission, Agreement.UNCHECKED, "it has played no match")]
        return [finding for match in played for finding in self.verify_match(match.id)]

    def _play_again(self, match: MatchRecord, data: bytes) -> Finding:
        result = self._table().submit(play_spec(self._store, self._submissions, match)).result()
        if result.status is MatchStatus.VOID and result.cause is not VoidCause.GAME:
            return _of_match(match, Agreement.UNCHECKED, f"it could not be played again: {result.error}")
        if not result.replay:
            return _of_match(
                match, Agreement.UNLIKE, f"played again, it ended as {result.status.value}: {result.error}"
            )
        before, again = _moves(data), _moves(result.replay)
        if before == again and result.winner == match.winner:
            return _of_match(match, Agreement.SAME, f"played again, the agents made the same {len(before)} steps")
        step = next((at for at, pair in enumerate(zip(before, again, strict=False), 1) if pair[0] != pair[1]), None)
        where = f"from step {step} on" if step else f"{len(again)} steps, not {len(before)}"
        detail = f"played again, the agents moved otherwise ({where}): one throws dice, or depends on time"
        return _of_match(match, Agreement.UNLIKE, detail)

    def _evaluate_again(self, submission: SubmissionRecord, stored: EvaluationRecord) -> Finding:
        wrong = self._contradiction(submission, stored)
        if wrong:
            return _of(submission, Agreement.DIFFERS, wrong)
        code = self._submissions.code(submission)
        if not isinstance(code, AgentCode):
            return _of(submission, Agreement.DIFFERS, "the stored code is a script, and scripts are never verified")
        settings = EnvironmentSettings.parse(self._store.environments.get(submission.env_id).settings)
        again = evaluate.evaluate(
            code,
            submission.env_id,
            secret=self._store.seasons.secret(submission.season_id or 0),
            table=self._table(),
            episodes=stored.episodes,
            clock=settings.clock,
            memory_mb=settings.memory_mb,
            processes=settings.processes,
            name=submission.id,
        )
        if again.digest() == stored.metrics.get("digest"):
            return _of(submission, Agreement.SAME, f"evaluated again: {stored.episodes} episodes with the same returns")
        now = f"a score of {again.score:g}" if again.score is not None else f"a failure ({again.reason:.200})"
        detail = f"evaluated again: {now}, not {stored.score:g}: it throws dice or depends on time; its replays fit"
        return _of(submission, Agreement.UNLIKE, detail)

    def _final_again(self, submission: SubmissionRecord, stored: Finalist) -> Finding:
        """Evaluate it again as in its season's finals."""
        code = self._submissions.code(submission)
        secret = self._store.seasons.final_secret(stored.season_id)
        metrics = stored.metrics or {}
        if secret is None or not isinstance(code, AgentCode):
            return _of(submission, Agreement.DIFFERS, "the stored final result has no second secret, or is a script's")
        if stored.score not in _scores_of(metrics.get("returns") or [math.nan]):
            return _of(submission, Agreement.DIFFERS, "the stored final score is not the mean of its returns")
        settings = EnvironmentSettings.parse(self._store.environments.get(submission.env_id).settings)
        again = evaluate.evaluate(
            code,
            submission.env_id,
            secret=secret,
            table=self._table(),
            episodes=stored.episodes,
            clock=settings.final_clock,
            memory_mb=settings.memory_mb,
            processes=settings.processes,
            name=submission.id,
        )
        if again.digest() == metrics.get("digest"):
            return _of(submission, Agreement.SAME, f"finals again: {stored.episodes} episodes with the same returns")
        return _of(submission, Agreement.UNLIKE, "finals again: other returns: it throws dice or depends on time")

    def _contradiction(self, submission: SubmissionRecord, stored: EvaluationRecord) -> str:
        """What is stored of an evaluation must fit together, whatever the agent would do now: its score, its returns,
        and the replays of the episodes that were recorded. Empty: it does."""
        returns: list[float] = stored.metrics.get("returns") or []
        if not returns or len(returns) != stored.episodes or stored.score not in _scores_of(returns):
            return "the stored score is not the mean of the stored returns"
        if submission.state is State.RANKED and submission.score != stored.score:
            return "the score on the board is not that of its latest evaluation"
        recorded: list[dict[str, Any]] = stored.metrics.get("replays") or []
        if {one["episode"]: tuple(one["roles"]) for one in recorded} != evaluate.picks(returns):
            return "the recorded episodes are not the first, the best and the worst of the stored returns"
        secret = self._store.seasons.secret(submission.season_id or 0)
        hidden = evaluate.seeds(secret, stored.metrics["environment"], stored.episodes)
        for one in recorded:
            episode: int = one["episode"]
            try:
                replay = Replay.load(self._files.get(one["digest"]))
            except HarenaError as error:
                return f"the replay of episode {episode + 1} cannot be read: {error}"
            checked = replay.verify()
            if not checked.ok or (replay.seed, replay.scores) != (hidden[episode], (returns[episode],)):
                return f"the replay of episode {episode + 1} does not give its return: {checked}"
        return ""

    def _table(self) -> Runner:
        if self._runner is None:
            raise BackendUnavailable("there is no runner to play on")
        return self._runner


def _scores_of(returns: list[float]) -> tuple[float, float]:
    """Return the score as it is published, and as older versions stored it."""
    mean = fmean(returns)
    interval = bootstrap(sorted(returns), seed=evaluate.BOOTSTRAP_SEED)
    return evaluate.published(mean, interval)[0], mean


def _compare(match: MatchRecord, replay: Replay) -> Finding:
    checked = replay.verify()
    if not checked.ok:
        return _of_match(match, Agreement.DIFFERS, str(checked))
    scores = tuple(seat.score for seat in match.seats)
    for what, recorded, stored in (
        ("seed", replay.seed, match.seed),
        ("game", replay.environment, match.env_id),
        ("match", replay.match_id, match.id),
        ("winner", replay.winner, match.winner),
        ("scores", replay.scores, scores),
    ):
        if recorded != stored:
            detail = f"the replay has the {what} {recorded!r:.100}, the database {stored!r:.100}"
            return _of_match(match, Agreement.DIFFERS, detail)
    return _of_match(match, Agreement.SAME, str(checked))


def _moves(replay: bytes) -> list[dict[int, bytes]]:
    return [actions for actions, _ in replay_format.decode(replay).moves()]


def _of_match(match: MatchRecord, verdict: Agreement, detail: str) -> Finding:
    return Finding(what="match", id=match.id, verdict=verdict, detail=detail)


def _of(submission: SubmissionRecord, verdict: Agreement, detail: str) -> Finding:
    return Finding(what="submission", id=submission.id, verdict=verdict, detail=detail)
