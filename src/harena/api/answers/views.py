"""What of a row the world sees, as the classes of `harena.schema`. Pure: the caller has decided who may see what.

Private to a submission's owner and the host: reason, warnings, main file, log, code, and the reasons and logs of its
seats. Nobody is ever shown a client id, a key's digest, a running season's secrets, or anything of the episodes that
follow from them but a score with its interval.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from harena import schema
from harena.arena.db.accounts.keys import KeyRecord
from harena.arena.db.accounts.teams import MembershipRecord
from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.events import EventNotice
from harena.arena.db.jobs import QueuedJob, QueuePlace
from harena.arena.db.ladder.matches import MatchRecord
from harena.arena.db.ladder.ratings import StoredRating
from harena.arena.db.ladder.roster import BenchRecord
from harena.arena.db.ladder.standings import BoardStanding
from harena.arena.db.ladder.tournaments import TournamentRecord
from harena.arena.db.models import ACTIVE, EnvironmentKind, MatchState, State, SubmissionKind, unmarked
from harena.arena.db.notices import HookRecord
from harena.arena.db.queries import OwnerLine
from harena.arena.db.records import BoardRecord, EvaluationRecord, SubmissionRecord
from harena.arena.db.results.finalists import Finalist
from harena.arena.db.seasons import SeasonRecord
from harena.arena.ladder.ratings import points as board_points
from harena.arena.ladder.standings import OpponentRecord
from harena.arena.settings import EnvironmentSettings
from harena.arena.submissions import draws, evaluate, script
from harena.match.game import GameInfo

PRIVATE = frozenset({"reason", "warnings", "main_file", "client_id", "log", "secret", "seed", "token"})
"""Fields of an event that are never shown, whoever wrote it."""
LIMITS = ("start_s", "move_s", "bank_s", "match_s", "memory_mb", "processes")
EPISODES = ("episodes", "practice_episodes", "final_episodes", "finalists")
SCRIPT_LIMITS = {"run_s": "wall_s", "memory_mb": "memory_mb", "processes": "processes"}
"""What a script's board shows, and the limits of `script.LIMITS` behind it: a host cannot change these."""
MAX_POINTS = 1000
PENDING = {State.RECEIVED: "pending", State.CHECKED: "pending", State.QUEUED: "pending", State.RUNNING: "processing"}


T = TypeVar("T")


def fill(kind: type[T], of: object = None, /, **given: Any) -> T:
    """An answer whose fields are the ones given, and else those of `of` with the same name. What is for the owner only
    must be given."""
    for name, is_time in _fields(kind):
        if name not in given:
            value = getattr(of, name)
            given[name] = moment(value) if is_time else value.value if isinstance(value, enum.Enum) else value
    return kind(**given)


@functools.cache
def _fields(kind: type[Any]) -> list[tuple[str, bool]]:
    hints = typing.get_type_hints(kind)
    times = (schema.Time, schema.Time | None)
    return [(part.name, hints[part.name] in times) for part in dataclasses.fields(kind) if not schema.is_optional(part)]


def moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def time_text(at: float | None) -> str | None:
    return schema.as_json(moment(at))


# Environments and seasons


def environment(
    env: EnvironmentRecord,
    settings: EnvironmentSettings,
    info: GameInfo | None,
    counts: tuple[int, int],
    live: schema.Season | None,
) -> schema.Environment:
    return fill(
        schema.Environment,
        env,
        title=settings.title or env.env_id,
        summary=settings.summary or (info.summary if info else ""),
        seats=info.seats if info else 1,
        entries=counts[0],
        submissions=counts[1],
        season=live,
    )


def environment_details(
    overview: schema.Environment,
    settings: EnvironmentSettings,
    info: GameInfo | None,
    packages: Sequence[str],
    seasons: Sequence[schema.Season],
) -> schema.EnvironmentDetails:
    return schema.EnvironmentDetails(
        **same(overview),
        rules=settings.rules,
        sample_agent=settings.sample_agent,
        observation=dict(info.observation) if info else None,
        action=dict(info.action) if info else None,
        limits=limits_of(overview.kind, settings),
        packages=tuple(packages),
        seasons=tuple(seasons),
    )


def limits_of(kind: str, settings: EnvironmentSettings) -> dict[str, Any]:
    """Limits that apply to an environment of this kind: episodes are played on verified boards only."""
    if kind == EnvironmentKind.SCRIPT_ONLY.value:
        return {name: getattr(script.LIMITS, limit) for name, limit in SCRIPT_LIMITS.items()}
    names = (*EPISODES, *LIMITS) if kind == EnvironmentKind.VERIFIED.value else LIMITS
    return {name: getattr(settings, name) for name in names}


def environment_with_settings(
    overview: schema.Environment, settings: Mapping[str, Any]
) -> schema.EnvironmentWithSettings:
    return schema.EnvironmentWithSettings(**same(overview), settings=settings)


def same(of: Any) -> dict[str, Any]:
    """The fields of an answer, for one that says more."""
    return {part.name: getattr(of, part.name) for part in dataclasses.fields(of)}


def season(
    of: SeasonRecord, *, secret: bytes, final_secret: bytes | None, finals: tuple[int, int] | None = None
) -> schema.Season:
    """`finals`: how many finalists of a verified season are through, and how many there are."""
    return fill(
        schema.Season,
        of,
        commitment=evaluate.commitment(secret),
        final_commitment=None if final_secret is None else evaluate.commitment(final_secret),
        secret=secret.hex() if of.ended_at is not None else None,
        final_secret=final_secret.hex() if of.ended_at is not None and final_secret is not None else None,
        finals=None if finals is None else schema.FinalsProgress(done=finals[0], total=finals[1]),
    )


# Boards


def score_entry(
    entry: BoardRecord, rank: int, *, version: int, anonymous: bool, tries: int | None
) -> schema.BoardEntry:
    """One line of a board of scores. `tries`: programs of its owner that were evaluated, where their best counts."""
    discounted = None if tries is None else draws.discounted(entry.score, entry.low, entry.high, tries)
    return fill(
        schema.BoardEntry,
        entry,
        rank=rank,
        version=version,
        games=None,
        wins=None,
        draws=None,
        losses=None,
        provisional=False,
        benched=False,
        spark=(),
        anonymous=anonymous,
        tries=tries,
        discounted=None if discounted is None else float(f"{discounted:.6g}"),
        final=False,
        public_score=None,
    )


def standing(line: BoardStanding, spark: Sequence[float]) -> schema.BoardEntry:
    """Build an entry of a ladder's board, or of the board of a season that has ended."""
    results = {} if line.board.value == "ladder" else dict.fromkeys(("games", "wins", "draws", "losses"))
    rounded = tuple(round(value, 3) for value in spark)
    return fill(schema.BoardEntry, line, **results, spark=rounded, tries=None, discounted=None)


def contract_entry(entry: schema.BoardEntry, env_id: str, kind: str) -> schema.ContractEntry:
    return fill(
        schema.ContractEntry,
        entry,
        id=entry.submission_id,
        user_id=unmarked(entry.owner),
        env_id=env_id,
        kind=kind,
        created_at=entry.at,
    )


# Submissions


def submission(
    of: SubmissionRecord,
    *,
    mine: bool,
    sees: bool,
    place: QueuePlace | None = None,
    waits_for: str | None = None,
    latest: EvaluationRecord | None = None,
    line: schema.BoardEntry | None = None,
    bench: BenchRecord | None = None,
    finalist: Finalist | None = None,
    ended: bool = False,
) -> schema.Submission:
    """`ended`: its season has, so that what happened in hidden episodes may be shown."""
    hidden = of.kind is SubmissionKind.VERIFIED and not ended
    place = place if of.state in ACTIVE else None
    private: dict[str, Any] = {}
    if sees:
        private = {
            "reason": of.reason,
            "warnings": tuple(text for text in of.warnings.split("\n") if text),
            "main_file": of.main_file,
            "has_log": of.log_digest is not None,
            "finalist": finalist is not None and (finalist.chosen or ended),
        }
    return fill(
        schema.Submission,
        of,
        mine=mine,
        position=place.position if place else None,
        waits_for=waits_for,
        eta_s=round(place.eta_s, 2) if place and place.eta_s is not None else None,
        evaluation=None if latest is None else evaluation(latest, hidden=hidden),
        standing=line,
        final_result=final_result(finalist) if finalist is not None and ended else None,
        benched=None if bench is None else (bench.reason if sees else True),
        **private,
    )


def evaluation(of: EvaluationRecord, *, hidden: bool) -> schema.Evaluation:
    """Build the answer for an evaluation. While it is `hidden`, nothing about single episodes or their duration is
    shown."""
    data: Mapping[str, Any] = {} if hidden else of.metrics
    return schema.Evaluation(
        hidden=hidden,
        episodes=of.episodes,
        iqm=data.get("iqm"),
        median=data.get("median"),
        returns=data.get("returns", ()),
        steps=data.get("steps", ()),
        cpu_s=data.get("cpu_s"),
        wall_s=data.get("wall_s"),
        metrics=data.get("metrics") or {},
    )


def final_result(of: Finalist) -> schema.FinalResult | None:
    """Once the season has ended."""
    if of.score is None:
        return None
    data = of.metrics or {}
    return fill(schema.FinalResult, of, returns=data.get("returns", ()), steps=data.get("steps", ()))


def practice(report: Mapping[str, Any], path: str) -> schema.Practice:
    """Episodes on public seeds, for the owner."""
    return schema.Practice(
        score=report["score"],
        episodes=tuple(
            schema.PracticeEpisode(
                episode=one["episode"],
                seed=one["seed"],
                score=one["score"],
                steps=one["steps"],
                fault=one["fault"],
                has_log=one["log"] is not None,
                url=None if one["replay"] is None else f"{path}/{one['episode']}",
            )
            for one in report["episodes"]
        ),
    )


def contract_status(state: State) -> str:
    """pending, processing, completed or failed."""
    return PENDING.get(state) or ("completed" if state is State.RANKED else "failed")


def contract_result(of: SubmissionRecord, error: str | None, log: str | None) -> schema.ContractResult:
    status = contract_status(of.state)
    return fill(schema.ContractResult, of, status=status, error=error, log=log, user_id=unmarked(of.owner))


def contract_environment(of: schema.Environment) -> schema.ContractEnvironment:
    return fill(schema.ContractEnvironment, of, id=of.env_id, name=of.title)


def ratings(history: Sequence[StoredRating]) -> list[schema.RatingPoint]:
    """On the board's scale; of a long history every so many, counted from the latest."""
    step = -(-len(history) // MAX_POINTS) or 1
    points: list[schema.RatingPoint] = []
    for point in history[::-1][::step][::-1]:
        rating, sigma = (round(value, 2) for value in board_points(point.mu, point.sigma))
        at = moment(point.created_at)
        points.append(fill(schema.RatingPoint, match=point.match_number, at=at, rating=rating, sigma=sigma))
    return points


def opponent(of: OpponentRecord) -> schema.Opponent:
    return fill(schema.Opponent, of)


# Matches


def match(of: MatchRecord, known: Mapping[str, SubmissionRecord], seen: frozenset[str]) -> schema.Match:
    """`seen`: submissions whose private parts the caller may see."""
    seats: list[schema.MatchSeat] = []
    for number, seat in enumerate(of.seats):
        private: dict[str, Any] = {}
        if seat.submission_id in seen:
            private = {"reason": seat.reason or "", "has_log": seat.log_digest is not None}
        names = same(participant(seat.submission_id, known))
        seats.append(fill(schema.MatchSeat, seat, seat=number, **names, **private))
    has_replay = of.replay_digest is not None and of.state is not MatchState.SCHEDULED
    return fill(schema.Match, of, has_replay=has_replay, seats=tuple(seats))


def participant(submission_id: str, known: Mapping[str, SubmissionRecord]) -> schema.Participant:
    found = known.get(submission_id)
    if found is None:
        return schema.Participant(submission_id=submission_id, version=0)
    return fill(schema.Participant, found, submission_id=submission_id)


def tournament(
    of: TournamentRecord, known: Mapping[str, SubmissionRecord], *, brief: bool = False
) -> schema.Tournament:
    """`brief`, for lists: without its rounds, which may be thousands of matches."""
    return fill(
        schema.Tournament,
        of,
        participants=tuple(participant(one, known) for one in of.participants),
        rounds=() if brief else of.result["rounds"],
        standings=of.result["standings"],
        notes=of.result.get("notes", ()),
    )


# The rest


def membership(of: MembershipRecord) -> schema.Membership:
    return fill(schema.Membership, of, joined=of.joined_at is not None)


def hook(of: HookRecord) -> schema.Hook:
    return fill(schema.Hook, of, confirmed=of.confirmed_at is not None, disabled=of.disabled_at is not None)


def key(of: KeyRecord) -> schema.Key:
    return fill(schema.Key, of, scopes=scopes(of))


def scopes(of: KeyRecord) -> tuple[str, ...]:
    return tuple(sorted(scope.value for scope in of.scopes))


def job(of: QueuedJob) -> schema.JobStatus:
    return fill(schema.JobStatus, of)


def benched(of: BenchRecord, agent: SubmissionRecord) -> schema.BenchedAgent:
    return fill(schema.BenchedAgent, agent, submission_id=agent.id, reason=of.reason, benched_at=moment(of.benched_at))


def owner(of: OwnerLine) -> schema.OwnerSummary:
    return fill(schema.OwnerSummary, of, owner=of.name)


def audit(entry: Mapping[str, Any]) -> schema.AuditEntry:
    """A line of the log, which only hosts see."""
    texts = {name: str(entry.get(name, "")) for name in ("at", "who", "what", "body", "address", "request_id")}
    return schema.AuditEntry(**texts, status=entry.get("status"))


def notice(of: EventNotice) -> dict[str, Any]:
    """A `Notice`, without the id."""
    return {"topic": of.topic, "kind": of.kind, "body": {k: v for k, v in of.body.items() if k not in PRIVATE}}


def default_board(kind: EnvironmentKind) -> str:
    return {"verified": "verified", "ladder": "ladder", "script-only": "self-reported"}[kind.value]
