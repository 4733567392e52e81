"""Submissions from upload to result: taken in, kept, queued, evaluated, cancelled, evaluated again.

Guarantees: what is refused leaves nothing behind; a submission is in the queue as soon as it is in the database, and
its result is written in one transaction with the end of its job. An agent's own fault is its result; the platform's is
tried again and in the end gives the quota back. Of a verified agent its owner gets the log, returns and replays of a
practice on public seeds; of the hidden episodes a score, or the kind of fault, and nothing else. Does not ask who may
do it: whoever calls has asked that. One file, however long: these guarantees hold across all of its steps.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.files import FileMissing, ObjectStore
from harena.arena.db.jobs import Queue, QueuedJob, QueuePlace, share_of
from harena.arena.db.models import (
    ACTIVE,
    PRIVATE_LABEL,
    Access,
    Busy,
    Conflict,
    EnvironmentKind,
    Event,
    NotFound,
    State,
    StoreError,
    SubmissionKind,
    transition,
)
from harena.arena.db.records import EvaluationOutcome, SubmissionRecord
from harena.arena.db.results.draws import Draw
from harena.arena.db.store import Store
from harena.arena.ladder import roster
from harena.arena.queue.kinds import ENTER, EVALUATE, EVALUATIONS, SCRIPT
from harena.arena.queue.workers import Commit, TryAgain
from harena.arena.settings import EnvironmentSettings, Settings
from harena.arena.submissions import draws, evaluate, intake, script
from harena.arena.submissions.evaluate import EvaluationStatus
from harena.arena.submissions.intake import Intake, IntakeError, Upload
from harena.arena.submissions.script import ScriptCode
from harena.arena.work.orders import (
    Answer,
    BadWorkerAnswer,
    EntryOrder,
    EvaluationOrder,
    Order,
    PlayedEntry,
    PlayedEvaluation,
    PlayedMatch,
    PlayedScript,
    ScriptOrder,
)
from harena.errors import SpecError
from harena.match.agent import image, validate
from harena.match.agent import load as agents
from harena.match.result import AgentCode, Clock, SeatStatus

PART_OF_QUEUE = 4
"""One share may have a quarter of the places in the queue: the others find room."""
MAX_LOG = 64 * 1024
"""Bytes of a log that are kept."""
MAX_MAIN = 200
MAX_SHOWN = 100
PULLS_AT_ONCE = 2
IMAGE_FILE = "docker_image"
"""What the main file of an agent that is an image is called."""
HIDDEN_FAULT = (
    "{} in a hidden episode. Its practice went well. What it saw and printed there stays hidden until the season ends: "
    "try it on more seeds of your own. The same code keeps this result"
)
"""Where and how would tell an owner what the hidden episodes are like, bit by bit."""
WHAT_AN_AGENT_IS = (
    "agents play each other here, and this has none: define `class Agent` with `act(self, observation)`, "
    "or `def act(observation)`"
)
RAN_AS_SCRIPT = "No `class Agent` or `act()` found, so it ran as a script, and that printed no score."
FAILED_AS_AGENT = "run as a script, because as an agent it failed: {}"
MAX_KEPT_REASON = 2000
GIVEN_UP = (
    "the platform could not evaluate it, and your quota was given back: have it evaluated again later, "
    "or ask the host about job {}"
)
"""What went wrong may name folders and machines: it is the host's."""
_log = logging.getLogger("harena.arena")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Tells counters that an evaluation began, or how it ended. Users read the state of the submission instead."""

    step: Literal["started", "ranked", "failed"]
    env_id: str
    kind: SubmissionKind
    fault: str = ""
    """A seat's status, "script" or "platform"; of those that failed."""
    wall_s: float = 0.0


class Submissions:
    def __init__(
        self,
        store: Store,
        queue: Queue,
        files: ObjectStore,
        settings: Settings,
    ) -> None:
        self._store = store
        self._queue = queue
        self._files = files
        self._settings = settings
        self._pulls = threading.BoundedSemaphore(PULLS_AT_ONCE)
        self.observers: list[Callable[[Evaluated], object]] = []

    # ---- taking in ----

    def submit(
        self,
        uploads: Sequence[Upload],
        *,
        docker_image: str = "",
        owner: str,
        env_id: str,
        algorithm: str = "Custom",
        main_file: str = "",
        wanted: str = "",
        submission_id: str | None = None,
        client_id: str | None = None,
        anonymous: bool = False,
        address: str = "",
        sender: str | None = None,
    ) -> SubmissionRecord:
        """Queued, in the share of the owner, or without a key of the address that it came from. `docker_image`, an
        image of a repository that the host allows, takes the place of uploads. `wanted`, "agent" or "script", says
        what it is; without it the code does. `sender` sends it for the owner, which is a team.

        Raises IntakeError, QuotaExceeded, Busy, Conflict, NotFound, SpecError: then nothing is stored."""
        environment = self._open_environment(env_id)
        share = share_of(owner, address=address if anonymous else None, client_id=client_id)
        self._check_room(share[0])
        self._store.quotas.check(owner, self._settings.quota)
        if docker_image:
            taken = self._take_image(docker_image)
        else:
            limits = self._settings.archive_limits
            taken = intake.take_in(uploads, main_file=main_file, wanted=wanted, limits=limits)
        code = _fitting(taken, environment.kind)
        kind = SubmissionKind.VERIFIED if isinstance(code, AgentCode) else SubmissionKind.SELF_REPORTED
        data = intake.pack(code)
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
                    submission_id=submission_id,
                    client_id=client_id,
                    anonymous=anonymous,
                    kind=kind,
                    warnings=taken.warnings,
                    quota=self._settings.quota,
                    sender=sender,
                )
                self._store.submissions.check(made.id, kind)
                self._store.submissions.move(made.id, Event.QUEUE)
                queued = self._enqueue(made.id, environment, kind, share, wanted)
        except BaseException:
            # Not deleted: somebody else may hand in the same at this moment.
            with contextlib.suppress(StoreError):
                if not self._store.submissions.code_is_used(digest):
                    self._files.retire(digest)
            raise
        if not self._files.has(digest):  # somebody else handed in the same and was refused
            self._files.put(data)
        return queued

    def _take_image(self, reference: str) -> Intake:
        if not self._pulls.acquire(blocking=False):
            raise Busy(f"{PULLS_AT_ONCE} images are being fetched: come back in a few minutes")
        try:
            return intake.take_image(reference, self._settings.pull_policy)
        except image.PullFailed as error:
            _log.warning("docker_image: %s", error)
            raise IntakeError(
                "docker_image: it could not be fetched from its registry; check its name and tag, or try again later"
            ) from None
        finally:
            self._pulls.release()

    def _open_environment(self, env_id: str) -> EnvironmentRecord:
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

    def _check_agents(self, environment: EnvironmentRecord, owner: str, algorithm: str) -> None:
        if environment.kind is _LADDER:
            most = EnvironmentSettings.parse(environment.settings).agents_per_owner
            roster.check_room(self._store, owner, environment.env_id, algorithm, most)

    def _share(self, submission: SubmissionRecord) -> tuple[str, str]:
        """That of its last job."""
        if submission.job_id is not None:
            with contextlib.suppress(NotFound):
                job = self._queue.get(submission.job_id)
                if job.share:
                    return job.share, job.part
        return share_of(submission.owner)

    def _enqueue(
        self,
        submission_id: str,
        environment: EnvironmentRecord,
        kind: SubmissionKind,
        share: tuple[str, str],
        wanted: str = "",
        **more: Any,
    ) -> SubmissionRecord:
        job = SCRIPT if kind is SubmissionKind.SELF_REPORTED else ENTER if environment.kind is _LADDER else EVALUATE
        payload = {"submission_id": submission_id, **({"wanted": wanted} if wanted else {}), **more}
        job_id = self._queue.enqueue(job.name, payload, share=share[0], part=share[1], env_id=environment.env_id)
        self._tell_queue()
        return self._store.submissions.set_job(submission_id, job_id)

    def _tell_queue(self) -> None:
        self._store.events.publish("queue", "queue", {"waiting": self._queue.waiting(EVALUATIONS)})

    # ---- what can be done with one ----

    def cancel(self, submission_id: str) -> SubmissionRecord:
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

    def delete(self, submission_id: str) -> SubmissionRecord:
        """Off the board and out of lists; one under way is cancelled first. Matches that it played stay."""
        with self._store.begin():
            if self._there(submission_id).state in ACTIVE:
                self.cancel(submission_id)
            return self._store.submissions.delete(submission_id)

    def reevaluate(self, submission_id: str) -> SubmissionRecord:
        """Queued again, and counted as a submission is. Its old score stands until there is a new one."""
        with self._store.begin():
            before = self._there(submission_id)
            if before.state in ACTIVE:
                raise Conflict(f"the submission is {before.state}: it is evaluated already, or will be")
            self._check_season(before)
            environment = self._store.environments.get(before.env_id)
            if environment.kind is _LADDER and before.kind is SubmissionKind.SELF_REPORTED:
                raise Conflict(f"{before.env_id} is a ladder now: {WHAT_AN_AGENT_IS}")
            share = self._share(before)
            self._check_room(share[0])
            self._check_agents(environment, before.owner, before.algorithm)
            transition(before.state, Event.REEVALUATE)
            self._store.submissions.charge_again(submission_id, self._settings.quota)
            if self._store.submissions.move(submission_id, Event.REEVALUATE).state is State.RECEIVED:
                self._store.submissions.check(submission_id, before.kind)
                self._store.submissions.move(submission_id, Event.QUEUE)
            return self._enqueue(submission_id, environment, before.kind, share, self._wanted(before))

    def _wanted(self, submission: SubmissionRecord) -> str:
        """What its sender said that it is."""
        with contextlib.suppress(NotFound):
            if submission.job_id is not None:
                return str(self._queue.get(submission.job_id).payload.get("wanted", ""))
        return ""

    def came_from(self, submission: SubmissionRecord, address: str) -> bool:
        """Whether it was sent from that address, with neither a key nor a client id."""
        return (
            submission.anonymous
            and submission.client_id is None
            and self._share(submission) == share_of(submission.owner, address=address)
        )

    def _check_season(self, submission: SubmissionRecord) -> None:
        season = self._store.seasons.live(submission.env_id)
        if season is None or season.id != submission.season_id:
            raise Conflict("its season has ended: submit it again")
        if season.frozen and submission.state is State.RANKED:
            raise Conflict(f"the season {season.name!r:.80} is frozen: what is on its board stands")

    def _there(self, submission_id: str) -> SubmissionRecord:
        found = self._store.submissions.get(submission_id)
        if found.deleted_at is not None:
            raise NotFound(f"the submission {submission_id} was deleted")
        return found

    # ---- what is kept of one ----

    def place(self, submission: SubmissionRecord) -> QueuePlace:
        """Return its place in the queue. A submission that has finished is at the head."""
        if submission.state in ACTIVE and submission.job_id is not None:
            with contextlib.suppress(NotFound):
                return self._queue.place(submission.job_id)
        return QueuePlace(position=0, eta_s=0.0)

    def log(self, submission: SubmissionRecord) -> str:
        """Return the log, which only its owner may see. For a verified agent it is the log of its practice."""
        return "" if submission.log_digest is None else self.kept_log(submission.log_digest)

    def kept_log(self, digest: str) -> str:
        return self._files.get(digest, max_bytes=MAX_LOG).decode("utf-8", "replace")

    def code(self, submission: SubmissionRecord) -> AgentCode | ScriptCode:
        """Load the code for the platform, under a name that everybody may see. An image that was removed is pulled
        again, before anything is played."""
        code = self._stored_code(submission)
        if isinstance(code, AgentCode):
            image.ensure(code, self._settings.pull_policy)
        return code

    def _stored_code(self, submission: SubmissionRecord) -> AgentCode | ScriptCode:
        name = f"{submission.owner} {submission.algorithm} v{submission.version}"
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)
        return intake.unpack(self._files.get(submission.digest), name=shown[-MAX_SHOWN:])

    def code_zip(self, submission: SubmissionRecord) -> bytes:
        """Its files as a zip; of an image its name and digest. For its owner only."""
        code = self._stored_code(submission)
        if isinstance(code, AgentCode) and code.image:
            return intake.zip_of({IMAGE_FILE: f"{code.image}\n".encode()})
        return intake.zip_of(code.files)

    # ---- jobs: what is to be done, and what follows from it ----

    def order_evaluation(self, job: QueuedJob) -> Order | Commit:
        """An agent on public practice episodes, then on the hidden episodes of its season."""
        return self._ordered(job, self._order_evaluation)

    def _order_evaluation(self, submission: SubmissionRecord) -> EvaluationOrder:
        code, settings = self._agent(submission), self._play_settings(submission)
        hidden = None
        if self._known_draw(submission, settings) is None:
            secret = self._store.seasons.secret(_season_id(submission))
            hidden = evaluate.hidden_episodes(secret, code, submission.env_id, settings.episodes)
        return EvaluationOrder(
            code=code,
            environment=submission.env_id,
            name=submission.id,
            clock=settings.clock,
            memory_mb=settings.memory_mb,
            processes=settings.processes,
            conditions=draws.conditions(settings),
            practice_episodes=settings.practice_episodes,
            hidden=hidden,
        )

    def settle_evaluation(self, job: QueuedJob, played: Answer) -> Commit:
        answer = expect(played, PlayedEvaluation)
        submission = self._store.submissions.get(job.payload["submission_id"])
        settings = self._same_rules(submission, answer)
        if answer.practice is None:
            raise BadWorkerAnswer("an evaluation without its practice")
        practice = self._checked(submission, answer.practice, evaluate.PRACTICE, settings.practice_episodes)
        report = self._practice_report(practice)
        log_digest = self._keep_log(practice.log)
        failed = practice.status is EvaluationStatus.FAILED
        if failed and not job.payload.get("wanted") and _may_print_score(self._agent(submission)):
            commit = self._tries_script(submission, practice.reason, log_digest)
            return self._with_practice(submission, report, commit)
        if failed:
            commit = self._fails(submission, practice.reason, practice.fault.value, log_digest, practice.wall_s)
            return self._with_practice(submission, report, commit)
        draw = self._drawn(submission, settings, answer.hidden)

        def commit_draw() -> None:
            kept = self._store.draws.keep(draw)
            if kept.fault is not None or kept.score is None:
                fault = kept.fault or SeatStatus.CRASH.value
                self._fails(submission, HIDDEN_FAULT.format(fault), fault, log_digest, answer.wall_s)()
            else:
                self._ranks(submission, _outcome(kept), log_digest, answer.wall_s)()

        return self._with_practice(submission, report, commit_draw)

    def _known_draw(self, submission: SubmissionRecord, settings: EnvironmentSettings) -> Draw | None:
        return self._store.draws.find(_season_id(submission), submission.digest, draws.conditions(settings))

    def _drawn(
        self, submission: SubmissionRecord, settings: EnvironmentSettings, played: evaluate.EvaluationRun | None
    ) -> Draw:
        """What the code got on the hidden episodes: before, or now."""
        known = self._known_draw(submission, settings)
        if known is not None:
            return known
        if played is None:
            raise TryAgain("the result on hidden episodes is not known any more")
        season_id = _season_id(submission)
        season = evaluate.commitment(self._store.seasons.secret(season_id))
        done = self._checked(submission, played, season, settings.episodes)
        score, low, high = _published(done)
        return Draw(
            season_id=season_id,
            code=submission.digest,
            conditions=draws.conditions(settings),
            fault=done.fault.value if done.status is EvaluationStatus.FAILED else None,
            score=score,
            low=low,
            high=high,
            episodes=len(done.returns),
            metrics=self._hidden(done),
        )

    def order_final(self, job: QueuedJob) -> Order | Commit:
        """A finalist on the episodes of the season's second secret."""
        submission = self._store.submissions.get(job.payload["submission_id"])
        secret = self._final_secret(submission)
        if secret is None:
            return _nothing
        code, settings = self._agent(submission), self._play_settings(submission)
        return EvaluationOrder(
            code=code,
            environment=submission.env_id,
            name=f"{submission.id}-final",
            clock=settings.clock,
            memory_mb=settings.memory_mb,
            processes=settings.processes,
            conditions=draws.conditions(settings),
            hidden=evaluate.hidden_episodes(secret, code, submission.env_id, settings.final_episodes),
            hidden_clock=settings.final_clock,
        )

    def settle_final(self, job: QueuedJob, played: Answer) -> Commit:
        answer = expect(played, PlayedEvaluation)
        submission = self._store.submissions.get(job.payload["submission_id"])
        settings, secret = self._same_rules(submission, answer), self._final_secret(submission)
        if secret is None:
            return _nothing
        if answer.hidden is None:
            raise BadWorkerAnswer("a final without its episodes")
        episodes = settings.final_episodes
        done = self._checked(submission, answer.hidden, evaluate.commitment(secret), episodes)
        score, low, high = _published(done)
        metrics = self._hidden(done)

        def commit() -> None:
            self._store.finalists.keep(
                _season_id(submission),
                submission.id,
                score=score,
                low=low,
                high=high,
                episodes=episodes,
                metrics=metrics,
                job_id=job.id,
            )

        return commit

    def _final_secret(self, submission: SubmissionRecord) -> bytes | None:
        """None: the season has ended, or has no finals."""
        season_id = _season_id(submission)
        if self._store.seasons.get(season_id).ended_at is not None:
            return None
        return self._store.seasons.final_secret(season_id)

    def order_script(self, job: QueuedJob) -> Order | Commit:
        """A script, whose score is self-reported."""
        return self._ordered(job, lambda of: ScriptOrder(code=intake.as_script(self._code(of)), environment=of.env_id))

    def settle_script(self, job: QueuedJob, played: Answer) -> Commit:
        run = expect(played, PlayedScript).run
        submission = self._store.submissions.get(job.payload["submission_id"])
        as_agent = job.payload.get("as_agent")
        if (run.status is EvaluationStatus.FAILED or run.score is None) and as_agent is not None:
            return self._fails_as_agent(submission, as_agent, job.payload.get("agent_log"), run.wall_s)
        log_digest = self._keep_log(run.log)
        if run.status is EvaluationStatus.FAILED or run.score is None:
            verified = self._store.environments.get(submission.env_id).kind is EnvironmentKind.VERIFIED
            untold = run.silent and verified and not job.payload.get("wanted")
            reason = f"{RAN_AS_SCRIPT} {script.HOW[0].upper()}{script.HOW[1:]}" if untold else run.reason
            return self._fails(submission, reason, "script", log_digest, run.wall_s)
        if not abs(run.score) <= script.MAX_SCORE:
            raise BadWorkerAnswer(f"a score of {run.score:g}")
        used = {"cpu_s": round(run.cpu_s, 6), "wall_s": round(run.wall_s, 6), "peak_mb": round(run.peak_mb, 3)}
        metrics = {**used, "metrics": run.metrics, **({"returns": list(run.returns)} if run.returns else {})}
        outcome = EvaluationOutcome(score=run.score, episodes=len(run.returns), metrics=metrics)
        warnings = run.warnings if as_agent is None else (*run.warnings, FAILED_AS_AGENT.format(as_agent))
        return self._ranks(submission, outcome, log_digest, run.wall_s, warnings)

    def order_entry(self, job: QueuedJob) -> Order | Commit:
        """An agent that wants on a ladder: it must get through a short game against itself."""
        return self._ordered(job, self._order_entry)

    def _order_entry(self, submission: SubmissionRecord) -> EntryOrder:
        settings = self._play_settings(submission)
        return EntryOrder(
            code=self._agent(submission),
            environment=submission.env_id,
            clock=_smoke(settings.clock),
            memory_mb=settings.memory_mb,
            limits=self._settings.archive_limits,
        )

    def settle_entry(self, job: QueuedJob, played: Answer) -> Commit:
        answer = expect(played, PlayedEntry)
        submission = self._store.submissions.get(job.payload["submission_id"])
        seats = answer.result.seats if answer.result is not None else ()
        log_digest = self._keep_log(seats[0].log if seats else "")
        wall_s = answer.result.wall_s if answer.result is not None else 0.0
        if not answer.valid:
            faults = [seat.status for seat in seats if seat.status is not SeatStatus.OK]
            fault = (faults[0] if faults else SeatStatus.LOAD).value
            return self._fails(submission, "\n".join(answer.errors), fault, log_digest, wall_s)

        def commit() -> None:
            self._store.submissions.enter(submission.id, log_digest=log_digest, warnings=answer.warnings)
            self._ended(submission, "ranked", wall_s=wall_s)

        return commit

    def _same_rules(self, submission: SubmissionRecord, answer: PlayedEvaluation) -> EnvironmentSettings:
        settings = self._play_settings(submission)
        if answer.conditions != draws.conditions(settings):
            raise TryAgain("the environment was changed while it was played")
        return settings

    def _checked(
        self, submission: SubmissionRecord, run: evaluate.EvaluationRun, season: str, episodes: int
    ) -> evaluate.EvaluationRun:
        try:
            return evaluate.checked(run, environment=submission.env_id, season=season, episodes=episodes)
        except SpecError as error:
            raise BadWorkerAnswer(str(error)) from None

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

    def _with_practice(self, submission: SubmissionRecord, report: dict[str, Any], commit: Commit) -> Commit:
        def both() -> None:
            self._store.draws.keep_practice(submission.id, report)
            commit()

        return both

    def _tries_script(self, submission: SubmissionRecord, reason: str, log_digest: str | None) -> Commit:
        """As an agent it failed. Scripts often define `class Agent` or `act` for themselves: it is run as a script,
        and only where that gives no score either, it fails as an agent."""

        def commit() -> None:
            self._store.submissions.set_kind(submission.id, SubmissionKind.SELF_REPORTED)
            self._store.submissions.move(submission.id, Event.RELEASE, reason="as an agent it failed; run as a script")
            environment = self._store.environments.get(submission.env_id)
            more: dict[str, Any] = {"as_agent": reason[:MAX_KEPT_REASON], "agent_log": log_digest}
            self._enqueue(submission.id, environment, SubmissionKind.SELF_REPORTED, self._share(submission), **more)

        return commit

    def _fails_as_agent(
        self, submission: SubmissionRecord, reason: str, log_digest: str | None, wall_s: float
    ) -> Commit:
        fail = self._fails(submission, reason, "script", log_digest, wall_s)

        def commit() -> None:
            self._store.submissions.set_kind(submission.id, SubmissionKind.VERIFIED)
            fail()

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
        self._store.finalists.give_up(job.payload["season_id"], job.payload["submission_id"], job.id)

    def requeued(self, job: QueuedJob) -> None:
        """Another worker will take it. Inside the transaction that gave it back."""
        if job.kind in EVALUATIONS:
            submission = self._store.submissions.get(job.payload["submission_id"])
            if submission.state is State.RUNNING and submission.job_id == job.id:
                self._store.submissions.move(submission.id, Event.RELEASE, reason="it will be tried again")

    # ---- parts of a job ----

    def _ordered(self, job: QueuedJob, order: Callable[[SubmissionRecord], Order]) -> Order | Commit:
        submission = self._begin(job)
        if submission is None:
            return _nothing
        if self._store.seasons.get(_season_id(submission)).ended_at is not None:
            late = "the season ended before it was evaluated, and your quota was given back: submit it again"
            return lambda: self._store.submissions.fail(submission.id, late, platform=True)
        return order(submission)

    def _begin(self, job: QueuedJob) -> SubmissionRecord | None:
        """Running. None: nothing is to be done any more."""
        with self._store.begin():
            self._queue.check(job)  # raises LeaseLost: whoever has the job decides
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
        self._observe(Evaluated(step="started", env_id=self._shown(found.env_id), kind=found.kind))
        return found

    def _play_settings(self, submission: SubmissionRecord) -> EnvironmentSettings:
        return EnvironmentSettings.parse(self._store.environments.get(submission.env_id).settings)

    def _code(self, submission: SubmissionRecord) -> AgentCode | ScriptCode:
        try:
            return self._stored_code(submission)
        except FileMissing as error:  # it may be on its way
            raise TryAgain(f"the code is missing: {error}") from error

    def _agent(self, submission: SubmissionRecord) -> AgentCode:
        code = self._code(submission)
        if isinstance(code, ScriptCode):
            raise IntakeError(f"{submission.env_id} wants an agent: {WHAT_AN_AGENT_IS}")
        return code

    def _keep_log(self, log: str) -> str | None:
        return self._files.put(log.encode("utf-8", "replace")[-MAX_LOG:]) if log else None

    def _ranks(
        self,
        submission: SubmissionRecord,
        outcome: EvaluationOutcome,
        log_digest: str | None,
        wall_s: float,
        warnings: Sequence[str] = (),
    ) -> Commit:
        def commit() -> None:
            self._store.submissions.rank(submission.id, outcome, log_digest=log_digest, warnings=warnings)
            self._ended(submission, "ranked", wall_s=wall_s)

        return commit

    def _fails(
        self, submission: SubmissionRecord, reason: str, fault: str, log_digest: str | None, wall_s: float
    ) -> Commit:
        def commit() -> None:
            self._store.submissions.fail(submission.id, reason, platform=False, log_digest=log_digest)
            self._ended(submission, "failed", fault=fault, wall_s=wall_s)

        return commit

    def _ended(self, of: SubmissionRecord, step: Literal["ranked", "failed"], **more: Any) -> None:
        self._tell_queue()
        self._observe(Evaluated(step=step, env_id=self._shown(of.env_id), kind=of.kind, **more))

    def _shown(self, env_id: str) -> str:
        """The name in counters, which more people read than those who may know of a private environment."""
        private = self._store.environments.get(env_id).access is Access.PRIVATE
        return PRIVATE_LABEL if private else env_id

    def _observe(self, what: Evaluated) -> None:
        for observer in self.observers:
            try:
                observer(what)
            except Exception:
                _log.exception("an observer of evaluations failed")


_LADDER = EnvironmentKind.LADDER


Kind = TypeVar("Kind", PlayedEvaluation, PlayedEntry, PlayedScript, PlayedMatch)


def expect(played: Answer, kind: type[Kind]) -> Kind:
    """The answer, if it is of the kind that its job asks for."""
    if not isinstance(played, kind):
        raise BadWorkerAnswer(f"an answer of another kind of job: {type(played).__name__}")
    return played


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


def _may_print_score(code: AgentCode) -> bool:
    """Whether it could be a script as well: what prints a score names it."""
    return not code.speaks_lines and not code.image and b"score" in code.files.get(code.entry, b"")


def _main_file(code: AgentCode | ScriptCode) -> str:
    if isinstance(code, AgentCode) and code.image:
        return IMAGE_FILE
    main = code.main if isinstance(code, ScriptCode) else code.entry
    return (main or agents.MANIFEST)[-MAX_MAIN:]


def _season_id(submission: SubmissionRecord) -> int:
    if submission.season_id is None:
        raise Conflict(f"the submission {submission.id} is of no season")
    return submission.season_id


def _smoke(clock: Clock) -> Clock:
    """Return the clock of a real match, with an early end of the whole game."""
    match_s = min(clock.match_s, validate.SMOKE_CLOCK.match_s)
    return Clock(start_s=clock.start_s, move_s=clock.move_s, bank_s=clock.bank_s, match_s=match_s)


def _nothing() -> None:
    """The submission went away, or another job has it."""
