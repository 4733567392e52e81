"""What of a row the world sees, as plain JSON data. Pure: who may see what has been decided by the caller.

Private to a submission's owner and the host: reason, warnings, main file, log, code, and the reasons and logs of its
seats. Nobody is ever shown a client id, a key's digest, a running season's secrets, or anything of the episodes that
follow from them but a score with its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from harena.arena.db.environments import Environment
from harena.arena.db.events import EventNotice
from harena.arena.db.jobs import QueuedJob, QueuePlace
from harena.arena.db.keys import Key
from harena.arena.db.matches import MatchRecord
from harena.arena.db.models import ACTIVE, EnvironmentKind, Kind, MatchState, State, unmarked
from harena.arena.db.ratings import StoredRating
from harena.arena.db.records import BoardEntry, Evaluation, Submission
from harena.arena.db.seasons import Season
from harena.arena.ladder.ratings import points as board_points
from harena.arena.ladder.roster import BenchRecord
from harena.arena.ladder.standings import BoardStanding, OpponentRecord
from harena.arena.ladder.tournaments import TournamentRecord
from harena.arena.seasons.finals import Finalist
from harena.arena.settings import EnvironmentSettings
from harena.arena.submissions import draws, evaluate
from harena.match.game import GameInfo

Shape = dict[str, Any]

PRIVATE = frozenset({"reason", "warnings", "main_file", "client_id", "log", "secret", "seed", "token"})
"""Of an event, whoever wrote it."""
MAX_POINTS = 1000
PENDING = {State.RECEIVED: "pending", State.CHECKED: "pending", State.QUEUED: "pending", State.RUNNING: "processing"}


def time_text(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Environments and seasons


def environment(
    env: Environment,
    settings: EnvironmentSettings,
    info: GameInfo | None,
    counts: tuple[int, int],
    live: Shape | None,
) -> Shape:
    return {
        "env_id": env.env_id,
        "kind": env.kind.value,
        "title": settings.title or env.env_id,
        "summary": settings.summary or (info.summary if info else ""),
        "seats": info.seats if info else 1,
        "enabled": env.enabled,
        "entries": counts[0],
        "submissions": counts[1],
        "season": live,
    }


def environment_details(
    settings: EnvironmentSettings, info: GameInfo | None, packages: Sequence[str], seasons: Sequence[Shape]
) -> Shape:
    return {
        "rules": settings.rules,
        "sample_agent": settings.sample_agent,
        "observation": dict(info.observation) if info else None,
        "action": dict(info.action) if info else None,
        "limits": {
            "episodes": settings.episodes,
            "start_s": settings.start_s,
            "move_s": settings.move_s,
            "bank_s": settings.bank_s,
            "match_s": settings.match_s,
            "memory_mb": settings.memory_mb,
            "processes": settings.processes,
            "practice_episodes": settings.practice_episodes,
            "final_episodes": settings.final_episodes,
            "finalists": settings.finalists,
        },
        "packages": list(packages),
        "seasons": list(seasons),
    }


def season(of: Season, *, secret: bytes, final_secret: bytes | None, finals: tuple[int, int] | None = None) -> Shape:
    """`finals`: how many finalists of a verified season are through, and how many there are."""
    return {
        "id": of.id,
        "env_id": of.env_id,
        "name": of.name,
        "frozen": of.frozen,
        "started_at": time_text(of.started_at),
        "ended_at": time_text(of.ended_at),
        "commitment": evaluate.commitment(secret),
        "final_commitment": None if final_secret is None else evaluate.commitment(final_secret),
        "secret": secret.hex() if of.ended_at is not None else None,
        "final_secret": final_secret.hex() if of.ended_at is not None and final_secret is not None else None,
        "finals": None if finals is None else {"done": finals[0], "total": finals[1]},
    }


# Boards


def score_entry(entry: BoardEntry, rank: int, *, version: int, anonymous: bool, tries: int | None) -> Shape:
    """One line of a board of scores. `tries`: programs of its owner that were evaluated, where their best counts."""
    discounted = None if tries is None else draws.discounted(entry.score, entry.low, entry.high, tries)
    return {
        "rank": rank,
        "submission_id": entry.submission_id,
        "owner": entry.owner,
        "algorithm": entry.algorithm,
        "version": version,
        "score": entry.score,
        "low": entry.low,
        "high": entry.high,
        "at": time_text(entry.at),
        "games": None,
        "wins": None,
        "draws": None,
        "losses": None,
        "provisional": False,
        "benched": False,
        "spark": [],
        "anonymous": anonymous,
        "tries": tries,
        "discounted": None if discounted is None else float(f"{discounted:.6g}"),
        "final": False,
        "public_score": None,
    }


def standing(line: BoardStanding, spark: Sequence[float]) -> Shape:
    """Of a ladder, or of a season that has ended."""
    games = line.board.value == "ladder"
    return {
        "rank": line.rank,
        "submission_id": line.submission_id,
        "owner": line.owner,
        "algorithm": line.algorithm,
        "version": line.version,
        "score": line.score,
        "low": line.low,
        "high": line.high,
        "at": time_text(line.at),
        "games": line.games if games else None,
        "wins": line.wins if games else None,
        "draws": line.draws if games else None,
        "losses": line.losses if games else None,
        "provisional": line.provisional,
        "benched": line.benched,
        "spark": [round(value, 3) for value in spark],
        "anonymous": line.anonymous,
        "tries": None,
        "discounted": None,
        "final": line.final,
        "public_score": line.public_score,
    }


def contract_entry(entry: Shape, env_id: str, kind: str) -> Shape:
    return {
        "rank": entry["rank"],
        "id": entry["submission_id"],
        "user_id": unmarked(entry["owner"]),
        "env_id": env_id,
        "algorithm": entry["algorithm"],
        "score": entry["score"],
        "low": entry["low"],
        "high": entry["high"],
        "kind": kind,
        "created_at": entry["at"],
    }


# Submissions


def submission(
    of: Submission,
    *,
    mine: bool,
    sees: bool,
    place: QueuePlace | None = None,
    latest: Evaluation | None = None,
    line: Shape | None = None,
    bench: BenchRecord | None = None,
    finalist: Finalist | None = None,
    ended: bool = False,
) -> Shape:
    """`ended`: its season has, so that what happened in hidden episodes may be shown."""
    hidden = of.kind is Kind.VERIFIED and not ended
    shape: Shape = {
        "id": of.id,
        "owner": of.owner,
        "env_id": of.env_id,
        "algorithm": of.algorithm,
        "version": of.version,
        "kind": of.kind.value,
        "state": of.state.value,
        "score": of.score,
        "low": of.low,
        "high": of.high,
        "created_at": time_text(of.created_at),
        "updated_at": time_text(of.updated_at),
        "digest": of.digest,
        "season_id": of.season_id,
        "mine": mine,
        "anonymous": of.anonymous,
        "position": place.position if place and of.state in ACTIVE else None,
        "eta_s": _seconds(place.eta_s) if place and of.state in ACTIVE else None,
        "evaluation": None if latest is None else evaluation(latest, hidden=hidden),
        "standing": line,
        "final_result": final_result(finalist) if finalist is not None and ended else None,
        "benched": None if bench is None else (bench.reason if sees else True),
    }
    if sees:
        shape |= {
            "reason": of.reason,
            "warnings": [text for text in of.warnings.split("\n") if text],
            "main_file": of.main_file,
            "has_log": of.log_digest is not None,
            "finalist": finalist is not None and (finalist.chosen or ended),
        }
    return shape


def evaluation(of: Evaluation, *, hidden: bool) -> Shape:
    """Without anything of its single episodes, nor how long they took, while they are `hidden`."""
    data: Mapping[str, Any] = {} if hidden else of.metrics
    return {
        "hidden": hidden,
        "episodes": of.episodes,
        "iqm": data.get("iqm"),
        "median": data.get("median"),
        "returns": data.get("returns", []),
        "steps": data.get("steps", []),
        "cpu_s": data.get("cpu_s"),
        "wall_s": data.get("wall_s"),
        "metrics": data.get("metrics") or {},
    }


def final_result(of: Finalist) -> Shape | None:
    """Once the season has ended."""
    if of.score is None:
        return None
    data = of.metrics or {}
    return {
        "score": of.score,
        "low": of.low,
        "high": of.high,
        "episodes": of.episodes,
        "chosen": of.chosen,
        "returns": data.get("returns", []),
        "steps": data.get("steps", []),
    }


def practice(report: Shape, path: str) -> Shape:
    """Episodes on public seeds, for the owner."""
    return {
        "score": report["score"],
        "episodes": [
            {
                "episode": one["episode"],
                "seed": one["seed"],
                "score": one["score"],
                "steps": one["steps"],
                "fault": one["fault"],
                "has_log": one["log"] is not None,
                "url": None if one["replay"] is None else f"{path}/{one['episode']}",
            }
            for one in report["episodes"]
        ],
    }


def contract_status(state: State) -> str:
    """pending, processing, completed or failed."""
    return PENDING.get(state) or ("completed" if state is State.RANKED else "failed")


def contract_result(of: Submission, error: str | None) -> Shape:
    return {
        "id": of.id,
        "status": contract_status(of.state),
        "score": of.score,
        "env_id": of.env_id,
        "algorithm": of.algorithm,
        "created_at": time_text(of.created_at),
        "error": error,
        "user_id": unmarked(of.owner),
        "kind": of.kind.value,
        "low": of.low,
        "high": of.high,
    }


def ratings(history: Sequence[StoredRating]) -> Shape:
    """On the board's scale; of a long history every so many, counted from the latest."""
    step = -(-len(history) // MAX_POINTS) or 1
    shapes: list[Shape] = []
    for point in history[::-1][::step][::-1]:
        rating, sigma = board_points(point.mu, point.sigma)
        shapes.append(
            {
                "match": point.match_number,
                "at": time_text(point.created_at),
                "rating": round(rating, 2),
                "sigma": round(sigma, 2),
            }
        )
    return {"points": shapes}


def opponent(of: OpponentRecord) -> Shape:
    return {
        "submission_id": of.submission_id,
        "owner": of.owner,
        "algorithm": of.algorithm,
        "version": of.version,
        "games": of.games,
        "wins": of.wins,
        "draws": of.draws,
        "losses": of.losses,
    }


# Matches


def match(of: MatchRecord, known: Mapping[str, Submission], seen: frozenset[str]) -> Shape:
    """`seen`: submissions whose private parts the caller may see."""
    seats: list[Shape] = []
    for number, seat in enumerate(of.seats):
        who = known.get(seat.submission_id)
        shape: Shape = {
            "seat": number,
            "submission_id": seat.submission_id,
            "owner": who.owner if who else "",
            "algorithm": who.algorithm if who else "",
            "version": who.version if who else 0,
            "score": seat.score,
            "status": seat.status,
            "cpu_s": seat.cpu_s,
        }
        if seat.submission_id in seen:
            shape |= {"reason": seat.reason or "", "has_log": seat.log_digest is not None}
        seats.append(shape)
    return {
        "id": of.id,
        "number": of.number,
        "env_id": of.env_id,
        "kind": of.kind.value,
        "rated": of.rated,
        "state": of.state.value,
        "winner": of.winner,
        "reason": of.reason,
        "steps": of.steps,
        "wall_s": of.wall_s,
        "created_at": time_text(of.created_at),
        "finished_at": time_text(of.finished_at),
        "has_replay": of.replay_digest is not None and of.state is not MatchState.SCHEDULED,
        "tournament_id": of.tournament_id,
        "seats": seats,
    }


# The rest


def key(of: Key) -> Shape:
    return {
        "id": of.id,
        "owner": of.owner,
        "scopes": sorted(scope.value for scope in of.scopes),
        "label": of.label,
        "created_at": time_text(of.created_at),
        "expires_at": time_text(of.expires_at),
        "revoked_at": time_text(of.revoked_at),
    }


def job(of: QueuedJob) -> Shape:
    return {
        "id": of.id,
        "kind": of.kind,
        "state": of.state.value,
        "attempts": of.attempts,
        "max_attempts": of.max_attempts,
        "worker": of.worker,
        "reason": of.reason,
        "payload": of.payload,
        "created_at": time_text(of.created_at),
        "started_at": time_text(of.started_at),
        "finished_at": time_text(of.finished_at),
    }


def notice(of: EventNotice) -> Shape:
    return {"topic": of.topic, "kind": of.kind, "body": {k: v for k, v in of.body.items() if k not in PRIVATE}}


def default_board(kind: EnvironmentKind) -> str:
    return {"verified": "verified", "ladder": "ladder", "script-only": "self-reported"}[kind.value]


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def tournament(of: TournamentRecord, known: Mapping[str, Submission], *, brief: bool = False) -> Shape:
    """`brief`, for lists: without its rounds, which may be thousands of matches."""
    participants = [
        {
            "submission_id": one,
            "owner": who.owner if who else "",
            "algorithm": who.algorithm if who else "",
            "version": who.version if who else 0,
        }
        for one in of.participants
        for who in [known.get(one)]
    ]
    return {
        "id": of.id,
        "env_id": of.env_id,
        "name": of.name,
        "format": of.format,
        "finals": of.finals,
        "state": of.state.value,
        "created_at": time_text(of.created_at),
        "finished_at": time_text(of.finished_at),
        "participants": participants,
        "rounds": [] if brief else of.result["rounds"],
        "standings": of.result["standings"],
        "notes": of.result.get("notes", []),
    }
