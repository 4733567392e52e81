"""Submissions from upload to result: taken in, kept, queued, evaluated, cancelled, evaluated again.

Guarantees: what is refused leaves nothing behind; a submission is in the queue as soon as it is in the database, and
its result is written in one transaction with the end of its job. An agent's own fault is its result; the platform's is
tried again and in the end gives the quota back. Of a verified agent its owner gets the log, returns and replays of a
practice on public seeds; of the hidden episodes a score, or the kind of fault, and nothing else. Does not ask who may
do it: whoever calls has asked that.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harena.arena.db.environments import Environment
from harena.arena.db.files import FileMissing, FileStore
from harena.arena.db.jobs import Queue, QueuedJob, QueuePlace, share_of
from harena.arena.db.models import (
    ACTIVE,
    Busy,
    Conflict,
    EnvironmentKind,
    Event,
    Kind,
    NotFound,
    State,
    transition,
)
from harena.arena.db.records import EvaluationOutcome, Submission
from harena.arena.db.store import Store
from harena.arena.ladder import roster
from harena.arena.queue.kinds import ENTER, EVALUATE, EVALUATIONS, SCRIPT
from harena.arena.queue.workers import Commit, TryAgain
from harena.arena.seasons import finals
from harena.arena.settings import EnvironmentSettings, Settings
from harena.arena.submissions import draws, evaluate, intake, package, script
from harena.arena.submissions.draws import Draw
from harena.arena.submissions.evaluate import EvaluationStatus
from harena.arena.submissions.intake import Intake, IntakeError, Upload
from harena.arena.submissions.script import ScriptCode
from harena.errors import BackendUnavailable
from harena.match.agent import load as agents
from harena.match.agent import validate
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, SeatStatus
from harena.match.run.protocol import wait
from harena.match.run.runner import Runner
from harena.sandbox.box import Sandbox

PART_OF_QUEUE = 4
"""One share may have a quarter of the places in the queue: the others find room."""
MAX_LOG = 64 * 1024
"""Bytes of a log that are kept."""
MAX_MAIN = 200
MAX_SHOWN = 100
POLL_S = 0.05
RELEASE_S, RELEASE_FACTOR = 0.25, math.sqrt(2)
"""Results on hidden episodes are published so long after the start of their job, or a power of the factor later."""
HIDDEN_FAULT = (
    "{} in a hidden episode. Its practice went well. What it saw and printed there stays hidden until the season ends: "
    "try it on more seeds of your own. The same code keeps this result"
)
"""Where and how would tell an owner what the hidden episodes are like, bit by bit."""
WHAT_AN_AGENT_IS = (
    "agents play each other here, and this has none: define `class Agent` with `act(self, observation)`, "
    "or `def act(observation)`"
)
GIVEN_UP = (
    "the platform could not evaluate it, and your quota was given back: have it evaluated again later, "
    "or ask the host about job {}"
)
"""What went wrong may name folders and machines: it is the host's."""
_log = logging.getLogger("harena.arena")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """For counters: an evaluation began, or how it ended. Not for users: the state of the submission is."""

    step: Literal["started", "ranked", "failed"]
    env_id: str
    kind: Kind
    fault: str = ""
    """A seat's status, "script" or "platform"; of those that failed."""
    wall_s: float = 0.0


class Submissions:
    def __init__(
        self,
        store: Store,
        queue: Queue,
        files: FileStore,
        settings: Settings,
        *,
        runner: Runner | None = None,
        lease: Callable[[], Sandbox] = script.new_box,
    ) -> None:
        """`runner`: where agents play; without one this process only takes submissions in. `lease` gives a box of
        `script.box_spec` for a script."""
        self._store = store
        self._queue = queue
        self._files = files
        self._settings = settings
        self._runner = runner
        self._lease = lease
        self.observers: list[Callable[[Evaluated], object]] = []

    # ---- taking in ----

    def submit(
        self,
        uploads: Sequence[Upload],
        *,
        owner: str,
        env_id: str,
        algorithm: str = "Custom",
        main_file: str = "",
        client_id: str | None = None,
        anonymous: bool = False,
        address: str = "",
    ) -> Submission:
        """Queued, in the share of the owner, or without a key of the address that it came from.

        Raises IntakeError, QuotaExceeded, Busy, Conflict, NotFound, SpecError: then nothing is stored."""
        environment = self._open_environment(env_id)
        share = share_of(owner, address=address if anonymous else None, client_id=client_id)
        self._check_room(share[0])
        self._store.quotas.check(owner, self._settings.quota)
        taken = intake.take_in(uploads, main_file=main_file, limits=self._settings.archive_limits)
        code = _fitting(taken, environment.kind)
        kind = Kind.VERIFIED if isinstance(code, AgentCode) else Kind.SELF_REPORTED
        data = package.pack(code)
        digest = self._files.put(data)
        try:
            with self._store.begin():
                if self._open_environment(env_id).kind is not environment.kind:
                    raise Conflict(f"{env_id} was changed just now: try again")
                self._check_room(share[0])
                self._check_agents(environment, owner, algorithm)
                made = self._store.submissions.add(
                    owner,
                    env_id,
                    algorithm=algorithm,
                    digest=digest,
                    main_file=_main_file(code),
                    client_id=client_id,
                    anonymous=anonymous,
                    kind=kind,
                    warnings=taken.warnings,
                    quota=self._settings.quota,
                )
                self._store.submissions.check(made.id, kind)
                self._store.submissions.move(made.id, Event.QUEUE)
                queued = self._enqueue(made.id, environment.kind, kind, share)
        except BaseException:
            if not self._store.submissions.code_is_used(digest):
                self._files.delete(digest)
            raise
        if not self._files.has(digest):  # somebody else handed in the same, was refused and cleaned up
            self._files.put(data)
        return queued

    def _open_environment(self, env_id: str) -> Environment:
        environment, season = self._store.environments.get(env_id), self._store.seasons.live(env_id)
        if not environment.enabled:
            raise Conflict(f"{env_id} takes no submissions now: its host has switched it off")
        if season is None:
            raise Conflict(f"no season runs in {env_id}: wait until its host starts one")
        if season.frozen:
            raise Conflict(f"the season {season.name!r:.80} is frozen: it takes no more submissions")
        return environment

    def _check_room(self, share: str) -> None:
        most = self._settings.max_queued
        if self._queue.waiting(EVALUATIONS) >= most:
            raise Busy(f"{most} submissions wait already: come back in a few minutes")
        part = max(1, most // PART_OF_QUEUE)
        if self._queue.waiting(EVALUATIONS, share=share) >= part:
            raise Busy(f"{part} submissions of yours, or from your address, wait already: come back in a few minutes")

    def _check_agents(self, environment: Environment, owner: str, algorithm: str) -> None:
        if environment.kind is _LADDER:
            most = EnvironmentSettings.parse(environment.settings).agents_per_owner
            roster.check_room(self._store, owner, environment.env_id, algorithm, most)

    def _share(self, submission: Submission) -> tuple[str, str]:
        """That of its last job."""
        if submission.job_id is not None:
            with contextlib.suppress(NotFound):
                job = self._queue.get(submission.job_id)
                if job.share:
                    return job.share, job.part
        return share_of(submission.owner)

    def _enqueue(
        self, submission_id: str, environment: EnvironmentKind, kind: Kind, share: tuple[str, str]
    ) -> Submission:
        job = SCRIPT if kind is Kind.SELF_REPORTED else ENTER if environment is _LADDER else EVALUATE
        job_id = self._queue.enqueue(job.name, {"submission_id": submission_id}, share=share[0], part=share[1])
        self._tell_queue()
        return self._store.submissions.set_job(submission_id, job_id)

    def _tell_queue(self) -> None:
        self._store.events.publish("queue", "queue", {"waiting": self._queue.waiting(EVALUATIONS)})

    # ---- what can be done with one ----

    def cancel(self, submission_id: str) -> Submission:
        """What waits is cancelled at once; what runs is told within a second. Raises Conflict when it is over."""
        with self._store.begin():
            before = self._there(submission_id)
            if before.state not in ACTIVE:
                raise Conflict(f"the submission is {before.state}: there is nothing to cancel")
            if before.job_id is not None:
                self._queue.cancel(before.job_id)
            cancelled = self._store.submissions.move(submission_id, Event.CANCEL, reason="it was cancelled")
            self._tell_queue()
            return cancelled

    def delete(self, submission_id: str) -> Submission:
        """Off the board and out of lists; one under way is cancelled first. Matches that it played stay."""
        with self._store.begin():
            if self._there(submission_id).state in ACTIVE:
                self.cancel(submission_id)
            return self._store.submissions.delete(submission_id)

    def reevaluate(self, submission_id: str) -> Submission:
        """Queued again, and counted as a submission is. Its old score stands until there is a new one."""
        with self._store.begin():
            before = self._there(submission_id)
            if before.state in ACTIVE:
                raise Conflict(f"the submission is {before.state}: it is evaluated already, or will be")
            self._check_season(before)
            environment = self._store.environments.get(before.env_id)
            if environment.kind is _LADDER and before.kind is Kind.SELF_REPORTED:
                raise Conflict(f"{before.env_id} is a ladder now: {WHAT_AN_AGENT_IS}")
            share = self._share(before)
            self._check_room(share[0])
            self._check_agents(environment, before.owner, before.algorithm)
            transition(before.state, Event.REEVALUATE)
            self._store.submissions.charge_again(submission_id, self._settings.quota)
            if self._store.submissions.move(submission_id, Event.REEVALUATE).state is State.RECEIVED:
                self._store.submissions.check(submission_id, before.kind)
                self._store.submissions.move(submission_id, Event.QUEUE)
            return self._enqueue(submission_id, environment.kind, before.kind, share)

    def _check_season(self, submission: Submission) -> None:
        season = self._store.seasons.live(submission.env_id)
        if season is None or season.id != submission.season_id:
            raise Conflict("its season has ended: submit it again")
        if season.frozen and submission.state is State.RANKED:
            raise Conflict(f"the season {season.name!r:.80} is frozen: what is on its board stands")

    def _there(self, submission_id: str) -> Submission:
        found = self._store.submissions.get(submission_id)
        if found.deleted_at is not None:
            raise NotFound(f"the submission {submission_id} was deleted")
        return found

    # ---- what is kept of one ----

    def place(self, submission: Submission) -> QueuePlace:
        """In the queue; at its head when it is over."""
        if submission.state in ACTIVE and submission.job_id is not None:
            with contextlib.suppress(NotFound):
                return self._queue.place(submission.job_id)
        return QueuePlace(position=0, eta_s=0.0)

    def log(self, submission: Submission) -> str:
        """For its owner only. A verified agent's is that of its practice."""
        return "" if submission.log_digest is None else self.kept_log(submission.log_digest)

    def kept_log(self, digest: str) -> str:
        return self._files.get(digest, max_bytes=MAX_LOG).decode("utf-8", "replace")

    def code(self, submission: Submission) -> AgentCode | ScriptCode:
        """For the platform, by a name that everybody may see."""
        name = f"{submission.owner} {submission.algorithm} v{submission.version}"
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)
        return package.unpack(self._files.get(submission.digest), name=shown[-MAX_SHOWN:])

    def code_zip(self, submission: Submission) -> bytes:
        """Its files as a zip. For its owner only."""
        return package.zip_of(self.code(submission).files)

    # ---- jobs ----

    def evaluate(self, job: QueuedJob, cancelled: Callable[[], bool]) -> Commit:
        """An agent on public practice episodes, then on the hidden episodes of its season."""
        return self._run(job, lambda submission: self._evaluate(submission, cancelled))

    def script(self, job: QueuedJob, cancelled: Callable[[], bool]) -> Commit:
        """A script, whose score is its own word."""
        return self._run(job, lambda submission: self._script(submission, cancelled))

    def enter(self, job: QueuedJob, cancelled: Callable[[], bool]) -> Commit:
        """An agent that wants on a ladder: it must get through a short game against itself."""
        return self._run(job, lambda submission: self._enter(submission, cancelled))

    def _evaluate(self, submission: Submission, cancelled: Callable[[], bool]) -> Commit:
        """Practice first, for the owner's eyes; who cannot get through that is not drawn."""
        began = time.monotonic()
        code, settings = self._agent(submission), self._play_settings(submission)
        practice = evaluate.practice(
            code,
            submission.env_id,
            table=self._table(),
            episodes=settings.practice_episodes,
            clock=settings.clock,
            memory_mb=settings.memory_mb,
            processes=settings.processes,
            name=submission.id,
            cancelled=cancelled,
        )
        report = self._practice_report(practice)
        log_digest = self._keep_log(practice.log)
        if practice.status is EvaluationStatus.FAILED:
            commit = self._fails(submission, practice.reason, practice.fault.value, log_digest, practice.wall_s)
            return self._with_practice(submission, report, commit)
        draw = self._drawn(submission, code, settings, cancelled)
        wall_s = _hold(began, cancelled)

        def commit_draw() -> None:
            kept = draws.keep(self._store, draw)
            if kept.fault is not None or kept.score is None:
                fault = kept.fault or SeatStatus.CRASH.value
                self._fails(submission, HIDDEN_FAULT.format(fault), fault, log_digest, wall_s)()
            else:
                self._ranks(submission, _outcome(kept), log_digest, wall_s)()

        return self._with_practice(submission, report, commit_draw)

    def _drawn(
        self, submission: Submission, code: AgentCode, settings: EnvironmentSettings, cancelled: Callable[[], bool]
    ) -> Draw:
        """What the code got on the hidden episodes: before, or now."""
        season_id, conditions = _season_id(submission), draws.conditions(settings)
        known = draws.find(self._store, season_id, submission.digest, conditions)
        if known is not None:
            return known
        done = evaluate.evaluate(
            code,
            submission.env_id,
            secret=self._store.seasons.secret(season_id),
            table=self._table(),
            episodes=settings.episodes,
            clock=settings.clock,
            memory_mb=settings.memory_mb,
            processes=settings.processes,
            name=submission.id,
            cancelled=cancelled,
        )
        score, low, high = _published(done)
        return Draw(
            season_id=season_id,
            code=submission.digest,
            conditions=conditions,
            fault=done.fault.value if done.status is EvaluationStatus.FAILED else None,
            score=score,
            low=low,
            high=high,
            episodes=len(done.returns),
            metrics=self._hidden(done),
        )

    def final(self, job: QueuedJob, cancelled: Callable[[], bool]) -> Commit:
        """A finalist on the episodes of the season's second secret."""
        submission = self._store.submissions.get(job.payload["submission_id"])
        season_id = _season_id(submission)
        secret = self._store.seasons.final_secret(season_id)
        if self._store.seasons.get(season_id).ended_at is not None or secret is None:
            return _nothing
        code, settings = self._agent(submission), self._play_settings(submission)
        episodes = settings.final_episodes
        done = evaluate.evaluate(
            code,
            submission.env_id,
            secret=secret,
            table=self._table(),
            episodes=episodes,
            clock=settings.final_clock,
            memory_mb=settings.memory_mb,
            processes=settings.processes,
            name=f"{submission.id}-final",
            cancelled=cancelled,
        )
        score, low, high = _published(done)
        metrics = self._hidden(done)

        def commit() -> None:
            finals.keep(
                self._store,
                season_id,
                submission.id,
                score=score,
                low=low,
                high=high,
                episodes=episodes,
                metrics=metrics,
                job_id=job.id,
            )

        return commit

    def _hidden(self, done: evaluate.EvaluationRun) -> dict[str, Any]:
        """All that is known of an evaluation on hidden seeds, for when the season has ended."""
        replays = [
            {"episode": one.episode, "roles": list(one.roles), "digest": self._files.put(one.replay)}
            for one in done.replays
        ]
        return done.as_json() | {"replays": replays, "log": self._keep_log(done.log)}

    def _practice_report(self, done: evaluate.EvaluationRun) -> dict[str, Any]:
        seeds = evaluate.practice_seeds(done.environment, len(done.replays))
        episodes = [
            {
                "episode": one.episode,
                "seed": str(seeds[one.episode]),
                "score": one.score,
                "steps": one.steps,
                "fault": "" if one.fault is SeatStatus.OK else one.fault.value,
                "replay": self._files.put(one.replay) if one.replay else None,
                "log": self._keep_log(one.log),
            }
            for one in done.replays
        ]
        return {"episodes": episodes, "score": done.score, "cpu_s": round(done.cpu_s, 6)}

    def _with_practice(self, submission: Submission, report: dict[str, Any], commit: Commit) -> Commit:
        def both() -> None:
            draws.keep_practice(self._store, submission.id, report)
            commit()

        return both

    def _script(self, submission: Submission, cancelled: Callable[[], bool]) -> Commit:
        code = intake.as_script(self._code(submission))
        run = script.run(code, submission.env_id, lease=self._lease, cancelled=cancelled)
        log_digest = self._keep_log(run.log)
        if run.status is EvaluationStatus.FAILED or run.score is None:
            return self._fails(submission, run.reason, "script", log_digest, run.wall_s)
        used = {"cpu_s": round(run.cpu_s, 6), "wall_s": round(run.wall_s, 6), "peak_mb": round(run.peak_mb, 3)}
        outcome = EvaluationOutcome(score=run.score, metrics={**used, "metrics": run.metrics})
        return self._ranks(submission, outcome, log_digest, run.wall_s, run.warnings)

    def _enter(self, submission: Submission, cancelled: Callable[[], bool]) -> Commit:
        settings = self._play_settings(submission)
        played: list[MatchResult] = []

        def play(spec: MatchSpec) -> MatchResult:
            played.append(self._played(spec, cancelled))
            return played[0]

        seen = validate.validate(
            self._agent(submission),
            submission.env_id,
            play=play,
            clock=_smoke(settings.clock),
            limits=self._settings.archive_limits,
            memory_mb=settings.memory_mb,
        )
        log_digest = self._keep_log(played[0].seats[0].log if played else "")
        wall_s = played[0].wall_s if played else 0.0
        if not seen.valid:
            faults = [seat.status for seat in played[0].seats if seat.status is not SeatStatus.OK] if played else []
            fault = (faults[0] if faults else SeatStatus.LOAD).value
            return self._fails(submission, "\n".join(seen.errors), fault, log_digest, wall_s)

        def commit() -> None:
            self._store.submissions.enter(submission.id, log_digest=log_digest, warnings=seen.warnings)
            self._ended(submission, "ranked", wall_s=wall_s)

        return commit

    def dead(self, job: QueuedJob) -> None:
        """The platform gave the evaluation up. Inside the transaction that did."""
        submission = self._store.submissions.get(job.payload["submission_id"])
        if submission.state in ACTIVE and submission.job_id == job.id:
            _log.error("submission %s failed by the platform's fault: %s", submission.id, job.reason)
            self._store.submissions.fail(submission.id, GIVEN_UP.format(job.id), platform=True)
            self._ended(submission, "failed", fault="platform")

    def final_given_up(self, job: QueuedJob) -> None:
        """The platform gave a finalist's evaluation up. Inside the transaction that did."""
        finals.give_up(self._store, job.payload["season_id"], job.payload["submission_id"], job.id)

    def requeued(self, job: QueuedJob) -> None:
        """Another worker will take it. Inside the transaction that gave it back."""
        if job.kind in EVALUATIONS:
            submission = self._store.submissions.get(job.payload["submission_id"])
            if submission.state is State.RUNNING and submission.job_id == job.id:
                self._store.submissions.move(submission.id, Event.RELEASE, reason="it will be tried again")

    # ---- parts of a job ----

    def _run(self, job: QueuedJob, work: Callable[[Submission], Commit]) -> Commit:
        submission = self._begin(job)
        if submission is None:
            return _nothing
        if self._store.seasons.get(_season_id(submission)).ended_at is not None:
            late = "the season ended before it was evaluated, and your quota was given back: submit it again"
            return lambda: self._store.submissions.fail(submission.id, late, platform=True)
        return work(submission)

    def _begin(self, job: QueuedJob) -> Submission | None:
        """Running. None: nothing is to be done any more."""
        with self._store.begin():
            self._queue.heartbeat(job)  # raises LeaseLost: whoever has the job decides
            found = self._store.submissions.get(job.payload["submission_id"])
            if found.job_id != job.id or found.deleted_at is not None:
                return None
            if found.state is State.FAILED:  # somebody has revived its job
                self._store.submissions.move(found.id, Event.REEVALUATE)
                self._store.submissions.check(found.id, found.kind)
                found = self._store.submissions.move(found.id, Event.QUEUE)
            if found.state is State.QUEUED:
                found = self._store.submissions.move(found.id, Event.START)
            if found.state is not State.RUNNING:
                return None
        self._observe(Evaluated(step="started", env_id=found.env_id, kind=found.kind))
        return found

    def _play_settings(self, submission: Submission) -> EnvironmentSettings:
        return EnvironmentSettings.parse(self._store.environments.get(submission.env_id).settings)

    def _code(self, submission: Submission) -> AgentCode | ScriptCode:
        try:
            return self.code(submission)
        except FileMissing as error:  # it may be on its way
            raise TryAgain(f"the code is missing: {error}") from error

    def _agent(self, submission: Submission) -> AgentCode:
        code = self._code(submission)
        if isinstance(code, ScriptCode):
            raise IntakeError(f"{submission.env_id} wants an agent: {WHAT_AN_AGENT_IS}")
        return code

    def _table(self) -> Runner:
        if self._runner is None:
            raise BackendUnavailable("this process has no runner to play on")
        return self._runner

    def _played(self, spec: MatchSpec, cancelled: Callable[[], bool]) -> MatchResult:
        return wait(self._table().submit(spec), cancelled)[0]

    def _keep_log(self, log: str) -> str | None:
        return self._files.put(log.encode("utf-8", "replace")[-MAX_LOG:]) if log else None

    def _ranks(
        self,
        submission: Submission,
        outcome: EvaluationOutcome,
        log_digest: str | None,
        wall_s: float,
        warnings: Sequence[str] = (),
    ) -> Commit:
        def commit() -> None:
            self._store.submissions.rank(submission.id, outcome, log_digest=log_digest, warnings=warnings)
            self._ended(submission, "ranked", wall_s=wall_s)

        return commit

    def _fails(self, submission: Submission, reason: str, fault: str, log_digest: str | None, wall_s: float) -> Commit:
        def commit() -> None:
            self._store.submissions.fail(submission.id, reason, platform=False, log_digest=log_digest)
            self._ended(submission, "failed", fault=fault, wall_s=wall_s)

        return commit

    def _ended(self, of: Submission, step: Literal["ranked", "failed"], **more: Any) -> None:
        self._tell_queue()
        self._observe(Evaluated(step=step, env_id=of.env_id, kind=of.kind, **more))

    def _observe(self, what: Evaluated) -> None:
        for observer in self.observers:
            try:
                observer(what)
            except Exception:
                _log.exception("an observer of evaluations failed")


_LADDER = EnvironmentKind.LADDER


def release_s(elapsed_s: float) -> float:
    """When a result is published that was known after `elapsed_s`: at one of a few moments. An agent that thinks longer
    where it sees something would tell its owner by the time that it takes."""
    steps = math.ceil(math.log(max(elapsed_s, RELEASE_S) / RELEASE_S, RELEASE_FACTOR) - 1e-9)
    return RELEASE_S * RELEASE_FACTOR**steps


def _hold(began: float, cancelled: Callable[[], bool]) -> float:
    """Waits for that moment; the seconds from the beginning to it."""
    total_s = release_s(time.monotonic() - began)
    while (left_s := began + total_s - time.monotonic()) > 0 and not cancelled():
        time.sleep(min(left_s, POLL_S))
    return total_s


def _published(done: evaluate.EvaluationRun) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if done.score is None else evaluate.published(done.score, done.interval)


def _outcome(draw: Draw) -> EvaluationOutcome:
    return EvaluationOutcome(
        score=draw.score or 0.0, low=draw.low, high=draw.high, episodes=draw.episodes, metrics=draw.metrics
    )


def _fitting(taken: Intake, environment: EnvironmentKind) -> AgentCode | ScriptCode:
    """What is run of it in such an environment."""
    if environment is EnvironmentKind.SCRIPT_ONLY:
        return intake.as_script(taken.code)
    if environment is _LADDER and isinstance(taken.code, ScriptCode):
        raise IntakeError(WHAT_AN_AGENT_IS)
    return taken.code


def _main_file(code: AgentCode | ScriptCode) -> str:
    main = code.main if isinstance(code, ScriptCode) else code.entry
    return (main or agents.MANIFEST)[-MAX_MAIN:]


def _season_id(submission: Submission) -> int:
    if submission.season_id is None:
        raise Conflict(f"the submission {submission.id} is of no season")
    return submission.season_id


def _smoke(clock: Clock) -> Clock:
    """As in real matches, but the game as a whole is stopped early."""
    match_s = min(clock.match_s, validate.SMOKE_CLOCK.match_s)
    return Clock(start_s=clock.start_s, move_s=clock.move_s, bank_s=clock.bank_s, match_s=match_s)


def _nothing() -> None:
    """The submission went away, or another job has it."""
