"""Matches of the arena, from making to result. Guarantees: a match and the job that plays it are made in one
transaction, and so are its result and the end of that job; a match whose job is gone is void and does not stay open,
since ratings wait for it; nothing public holds what belongs to an agent's owner: what it printed, and why it failed.
Does not decide who plays: `matchmaker`, `tournaments` and `challenges` do.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from harena.arena.db.events import EventNotice
from harena.arena.db.files import ObjectStore
from harena.arena.db.jobs import Queue, QueuedJob, share_of
from harena.arena.db.ladder.matches import MatchRecord, Seated
from harena.arena.db.models import Conflict, MatchKind, MatchState
from harena.arena.db.store import Store
from harena.arena.events.bus import Hub
from harena.arena.queue import kinds
from harena.arena.queue.workers import Commit
from harena.arena.settings import EnvironmentSettings
from harena.arena.submissions.evaluate import EvaluationCancelled
from harena.arena.submissions.service import Submissions, expect
from harena.arena.work.orders import Answer, BadWorkerAnswer, MatchOrder, Order, PlayedMatch
from harena.errors import SpecError
from harena.match.replay import format as replay_format
from harena.match.result import AgentCode, MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus
from harena.match.run.runner import Runner

JOB = kinds.MATCH.name
FINISHED = "finished"
"""The kind of the event of a match that has ended, however it ended."""
_STATES = {MatchStatus.FINISHED: MatchState.FINISHED, MatchStatus.TIMEOUT: MatchState.TIMEOUT}


class MatchService:
    def __init__(
        self, store: Store, queue: Queue, files: ObjectStore, hub: Hub, runner: Runner | None, submissions: Submissions
    ) -> None:
        self.observers: list[Callable[[MatchRecord], object]] = []
        """Told of each match that ends here, for counters. Must not raise."""
        self._store = store
        self._queue = queue
        self._files = files
        self._hub = hub
        self._runner = runner
        self._submissions = submissions
        hub.add_listener(self._heard)

    @property
    def at_once(self) -> int:
        """Return how many matches can be played at once: here, or elsewhere as far as is seen."""
        here = self._runner.workers if self._runner is not None else 1
        return max(here, self._queue.at_work(JOB) + 1)

    def create(
        self,
        env_id: str,
        participants: Sequence[str],
        *,
        kind: MatchKind,
        season_id: int | None,
        seed: int | None = None,
        tournament_id: str | None = None,
        pairing: int | None = None,
    ) -> MatchRecord:
        """Submissions by seat. Without a seed, one that nobody can guess. Raises Conflict when the season has ended."""
        seed = secrets.randbits(63) if seed is None else seed
        with self._store.begin():
            if season_id is not None and self._store.seasons.get(season_id).ended_at is not None:
                raise Conflict("the season has ended")
            match = self._store.matches.create(
                env_id,
                participants,
                seed=seed,
                kind=kind,
                season_id=season_id,
                tournament_id=tournament_id,
                pairing=pairing,
            )
            self._queue.enqueue(
                JOB, {"match_id": match.id}, key=_key(match.id), share=self._share(match), env_id=env_id
            )
            self._tell(match, "scheduled")
            return match

    def order(self, job: QueuedJob) -> Order | Commit:
        """How the match of a job is to be played."""
        match = self._store.matches.get(job.payload["match_id"])
        if match.state is not MatchState.SCHEDULED:
            return lambda: None
        if job.attempts > 1 or job.deaths:
            self._hub.end_frames(match.id)  # what the attempt before has shown
        return MatchOrder(spec=play_spec(self._store, self._submissions, match))

    def settle(self, job: QueuedJob, played: Answer) -> Commit:
        """What follows from how it was played."""
        match, result = self._store.matches.get(job.payload["match_id"]), expect(played, PlayedMatch).result
        if (result.match_id, result.environment, result.seed) != (match.id, match.env_id, match.seed):
            raise BadWorkerAnswer("the result of another match")
        if len(result.seats) != len(match.seats) or (result.winner or 0) not in range(len(match.seats)):
            raise BadWorkerAnswer("a result with other seats than the match")
        end = self._end(result)
        return lambda: self._finish(match.id, **end)

    def on_frame(self, job: QueuedJob) -> Callable[[dict[str, Any]], object]:
        """Shows what a running match tells to those who watch it."""
        match_id = job.payload["match_id"]
        return lambda event: self._hub.frame(match_id, public(event))

    def void(self, match_id: str, reason: str) -> None:
        """The platform could not play it. Nothing happens to one that has ended."""
        self._finish(match_id, state=MatchState.VOID, reason=reason)

    def give_up(self, job: QueuedJob) -> None:
        """The platform gave the match's job up. Inside the transaction that did."""
        self.void(job.payload["match_id"], f"the platform could not play it: {job.reason}")

    def cancel(self, open_: Sequence[MatchRecord], reason: str) -> None:
        """Cancel matches and their jobs. A worker that is playing one of them drops it."""
        with self._store.begin():
            for match in open_:
                job = self._queue.find(_key(match.id))
                if job is not None:
                    self._queue.cancel(job.id, reason=reason)
                self._finish(match.id, state=MatchState.CANCELLED, reason=reason)

    def sweep(self) -> None:
        """Voids open matches that no job will play, because somebody cancelled it."""
        with self._store.begin():
            for match_id in self._store.matches.stray(_key("")):
                self.void(match_id, "its job was called off")

    # ---- parts ----

    def _share(self, match: MatchRecord) -> str:
        """Ladders, tournaments and owners who challenge take turns: none of them can keep the others waiting."""
        if match.kind is MatchKind.CHALLENGE:
            challenger = match.seats[match.pairing or 0].submission_id
            return share_of(self._store.submissions.get(challenger).owner)[0]
        if match.kind is MatchKind.TOURNAMENT:
            return f"tournament:{match.tournament_id}"
        return f"ladder:{match.season_id}"

    def _end(self, result: MatchResult) -> dict[str, Any]:
        """What is to be stored of a result; its files are stored here."""
        fault = _platform_fault(result)
        if fault:
            return {"state": MatchState.VOID, "reason": fault}
        replay = result.replay and self._files.put(public_replay(result.replay))
        seats = [(seat.agent, seat.status.value) for seat in result.seats]
        return {
            "state": _STATES[result.status],
            "winner": result.winner,
            "reason": public_reason(result.reason, seats) or result.error,
            "steps": result.steps,
            "wall_s": result.wall_s,
            "replay_digest": replay or None,
            "seats": [self._seated(seat) for seat in result.seats],
        }

    def _seated(self, seat: SeatResult) -> Seated:
        log = seat.log.encode("utf-8", "replace")
        return Seated(
            score=seat.score,
            status=seat.status.value,
            reason=seat.reason,
            cpu_s=seat.cpu_s,
            log_digest=self._files.put(log) if log else None,
        )

    def _finish(self, match_id: str, **end: Any) -> None:
        with self._store.begin():
            if self._store.matches.get(match_id).state is MatchState.SCHEDULED:
                ended = self._store.matches.finish(match_id, **end)
                self._tell(ended, FINISHED)
                for observer in self.observers:
                    observer(ended)

    def _tell(self, match: MatchRecord, kind: str) -> None:
        body = {
            "id": match.id,
            "number": match.number,
            "env_id": match.env_id,
            "state": match.state.value,
            "kind": match.kind.value,
            "winner": match.winner,
            "tournament_id": match.tournament_id,
            "submissions": [seat.submission_id for seat in match.seats],
        }
        for topic in (f"matches:{match.env_id}", f"match:{match.id}"):
            self._store.events.publish(topic, kind, body)

    def _heard(self, notice: EventNotice) -> None:
        if notice.kind == FINISHED and notice.topic.startswith("match:"):
            self._hub.end_frames(notice.body["id"])


def play_spec(store: Store, submissions: Submissions, match: MatchRecord) -> MatchSpec:
    """How it is played, now or again."""
    settings = EnvironmentSettings.parse(store.environments.get(match.env_id).settings)
    agents: list[AgentCode] = []
    for seat in match.seats:
        code = submissions.code(store.submissions.get(seat.submission_id))
        if not isinstance(code, AgentCode):
            raise SpecError(f"submission {seat.submission_id} is a script, which cannot play matches")
        agents.append(code)
    return MatchSpec(
        environment=match.env_id,
        agents=tuple(agents),
        seed=match.seed,
        match_id=match.id,
        clock=settings.clock,
        memory_mb=settings.memory_mb,
        processes=settings.processes,
        stalling_loses=True,
    )


def public(event: dict[str, Any]) -> dict[str, Any]:
    """What everybody may see of what a running match tells."""
    if event.get("type") != "finished":
        return event
    result = event["result"]
    shown = {name: result[name] for name in ("status", "winner", "scores", "steps")}
    shown["seats"] = [{"status": seat["status"]} for seat in result["seats"]]
    shown["reason"] = public_reason(result["reason"], [(seat["agent"], seat["status"]) for seat in result["seats"]])
    return {**event, "result": shown}


def public_reason(reason: str, seats: Sequence[tuple[str, str]]) -> str:
    """Why a match ended, by the agents' names and statuses. Why an agent failed may quote what its code says or
    printed: that is for its owner."""
    failed = [f"{agent}: {status}" for agent, status in seats if status != SeatStatus.OK.value]
    return ", ".join(failed) or reason


def public_replay(replay: bytes) -> bytes:
    """The same game, without the words for the owners."""
    record = replay_format.decode(replay)
    statuses = [status for status, _ in record.seats]
    reason = public_reason(record.reason, list(zip(record.agents, statuses, strict=True)))
    seats = tuple((status, "") for status in statuses)
    images = tuple(image.rpartition("@")[2] for image in record.images)  # a name would say where to get its code
    return replay_format.encode(dataclasses.replace(record, reason=reason, seats=seats, images=images))


def _platform_fault(result: MatchResult) -> str:
    if result.status is MatchStatus.CANCELLED:
        raise EvaluationCancelled(result.error)
    if result.status is MatchStatus.VOID:
        return result.error or "no result"
    if not all(map(math.isfinite, result.scores)):
        return f"{result.environment} gave scores that are no numbers"
    return ""


def _key(match_id: str) -> str:
    return f"match:{match_id}"
