"""JSON format of replays for other tools: version, metadata and one frame per step, plus what is needed to re-run it.
Any such document with a seed can be read; unknown fields are ignored, sizes are capped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from harena.match import spaces
from harena.match.game import Game
from harena.match.replay import format as fmt
from harena.match.replay.format import ReplayError

if TYPE_CHECKING:
    from harena.match.replay.replay import ReplayFrame

VERSION = "1.0"
MAX_JSON = 256 << 20


class JsonAgent(msgspec.Struct, frozen=True):
    agent_id: str
    name: str | None = None
    status: str = "ok"
    reason: str = ""
    image: str = ""


class JsonMetadata(msgspec.Struct, frozen=True):
    environment: str
    agents: tuple[JsonAgent | str, ...]
    match_id: str = ""
    start_time: float = 0.0
    end_time: float | None = None
    winner: str | None = None
    status: str = "finished"
    reason: str = ""
    scores: tuple[float, ...] | None = None
    forfeited: tuple[int, ...] = ()
    withdrawn: tuple[tuple[int, tuple[int, ...]], ...] = ()
    frames_left_out: int = 0

    def keys(self) -> list[str]:
        return [agent if isinstance(agent, str) else agent.agent_id for agent in self.agents]


class JsonInfo(msgspec.Struct, frozen=True):
    cpu_us: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]] = {}


class JsonFrame(msgspec.Struct, frozen=True):
    actions: dict[str, Any]
    observations: dict[str, Any] = {}
    rewards: dict[str, float] = {}
    info: JsonInfo = JsonInfo()


class JsonReplay(msgspec.Struct, frozen=True):
    version: str
    metadata: JsonMetadata
    frames: tuple[JsonFrame, ...]
    seed: int | None = None
    config: dict[str, Any] = {}
    harena_version: str = ""
    final_hash: str = ""
    check_hashes: tuple[str, ...] = ()


def keys(agents: Sequence[str]) -> list[str]:
    """Name of each seat in the document: the agent's name, made unique."""
    taken: set[str] = set()
    result: list[str] = []
    for name in agents:
        key, count = name, 1
        while key in taken:
            count += 1
            key = f"{name} ({count})"
        taken.add(key)
        result.append(key)
    return result


def plain(value: Any) -> Any:
    """The value as it would be after JSON: tuples are lists, and there is no nan."""
    return msgspec.json.decode(msgspec.json.encode(value))


def document(record: fmt.Record, frames: Iterable[ReplayFrame]) -> dict[str, Any]:
    names = keys(record.agents)
    initial: dict[str, Any] = {}
    listed: list[dict[str, Any]] = []
    used_us = 0
    for frame in frames:
        if frame.number == 0:
            initial = {"observations": _named(names, frame.observations), "info": {"view": frame.view}}
            continue
        used_us += sum(frame.cpu_us.values())
        listed.append(
            {
                "frame_number": frame.number - 1,
                "timestamp": round(min(record.started_at + used_us / 1e6, record.ended_at), 6),
                "observations": _named(names, frame.observations),
                "actions": _named(names, frame.actions),
                "rewards": {name: frame.rewards.get(seat, 0.0) for seat, name in enumerate(names)},
                "done": frame.done,
                "info": {"cpu_us": _named(names, frame.cpu_us), "view": frame.view},
            }
        )
    return {
        "version": VERSION,
        "metadata": _metadata(record, names),
        "seed": record.seed,
        "environment_version": record.environment_version,
        "config": record.config,
        "harena_version": record.harena,
        "final_hash": record.final.hex(),
        "check_hashes": [
            record.checks[at : at + fmt.CHECK_BYTES].hex() for at in range(0, len(record.checks), fmt.CHECK_BYTES)
        ],
        "initial": initial,
        "statistics": _statistics(record, names, listed),
        "frames": listed,
    }


def _statistics(record: fmt.Record, names: Sequence[str], frames: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summary of the game, by agent and as a whole."""
    return {
        "duration_s": round(max(0.0, record.ended_at - record.started_at), 6),
        "total_steps": record.steps,
        "agents": {
            name: {
                "score": record.scores[seat],
                "total_reward": sum(frame["rewards"][name] for frame in frames),
                "moves": len(times),
                "mean_cpu_ms": round(sum(times) / len(times) / 1e3, 3) if times else 0.0,
                "max_cpu_ms": round(max(times, default=0) / 1e3, 3),
            }
            for seat, (name, times) in enumerate(zip(names, record.cpu_us, strict=True))
        },
    }


def _metadata(record: fmt.Record, names: Sequence[str]) -> dict[str, Any]:
    return {
        "match_id": record.match_id,
        "environment": record.environment,
        "agents": [
            {
                "agent_id": key,
                "seat": seat,
                "name": name,
                "status": status,
                "reason": reason,
                "cpu_s": sum(times) / 1e6,
                "moves": len(times),
                **({"image": record.images[seat]} if record.images and record.images[seat] else {}),
            }
            for seat, (key, name, (status, reason), times) in enumerate(
                zip(names, record.agents, record.seats, record.cpu_us, strict=True)
            )
        ],
        "start_time": record.started_at,
        "end_time": record.ended_at,
        "total_steps": record.steps,
        "winner": None if record.winner is None else names[record.winner],
        "status": record.status,
        "reason": record.reason,
        "scores": list(record.scores),
        "forfeited": list(record.forfeited),
        **({"withdrawn": [[step, list(seats)] for step, seats in record.withdrawn]} if record.withdrawn else {}),
    }


def _named(names: Sequence[str], values: Mapping[int, Any]) -> dict[str, Any]:
    return {names[seat]: value for seat, value in values.items()}


def parse(data: bytes) -> JsonReplay:
    if len(data) > MAX_JSON:
        raise ReplayError(f"{len(data)} bytes are too many for a JSON replay, at most {MAX_JSON >> 20} MiB")
    try:
        parsed = msgspec.json.decode(data, type=JsonReplay)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ReplayError(f"not a JSON replay: {error}") from None
    if parsed.metadata.frames_left_out:
        raise ReplayError("frames were left out of the JSON replay (replay.max_frames): it cannot be run again")
    if parsed.seed is None:
        raise ReplayError("the JSON replay has no seed: it can be looked at elsewhere, but not run again")
    if len(parsed.frames) > fmt.MAX_STEPS:
        raise ReplayError(f"a JSON replay of {len(parsed.frames)} frames, at most {fmt.MAX_STEPS} are read")
    return parsed


def record(parsed: JsonReplay, game: Game) -> fmt.Record:
    """Convert to columns. The game is needed to read actions, because JSON does not state their types."""
    meta = parsed.metadata
    agents = [JsonAgent(agent) if isinstance(agent, str) else agent for agent in meta.agents]
    seat_of = {agent.agent_id: seat for seat, agent in enumerate(agents)}
    if len(seat_of) != len(agents) or len(agents) != game.seats:
        raise ReplayError(f"the JSON replay names {len(seat_of)} different agents; {game.id} has {game.seats} seats")
    if meta.winner is not None and meta.winner not in seat_of:
        raise ReplayError(f"the JSON replay is won by {meta.winner!r:.80}, who is none of its agents")
    if any(not 0 <= seat < game.seats for seat in meta.forfeited):
        raise ReplayError("the JSON replay has a forfeit of a seat that there is not")
    if not {seat for _, seats in meta.withdrawn for seat in seats} <= set(meta.forfeited):
        raise ReplayError("the JSON replay takes out a seat that did not forfeit")
    scores = meta.scores if meta.scores is not None else _summed(parsed.frames, seat_of)
    if len(scores) != len(agents):
        raise ReplayError(f"the JSON replay has {len(scores)} scores for {len(agents)} agents")
    moves = fmt.columns(
        len(agents), [_step(number, frame, seat_of, game) for number, frame in enumerate(parsed.frames, 1)]
    )
    final, checks = _hashes(parsed)
    return fmt.Record(
        environment=meta.environment,
        seed=parsed.seed or 0,
        config=parsed.config,
        agents=tuple(agent.agent_id if agent.name is None else agent.name for agent in agents),
        movers=moves.movers,
        order=moves.order,
        actions=moves.actions,
        cpu_us=moves.cpu_us,
        winner=None if meta.winner is None else seat_of[meta.winner],
        scores=scores,
        status=meta.status,
        reason=meta.reason,
        seats=tuple((agent.status, agent.reason) for agent in agents),
        forfeited=tuple(sorted(set(meta.forfeited))),
        withdrawn=meta.withdrawn,
        images=tuple(agent.image for agent in agents) if any(agent.image for agent in agents) else (),
        checks=checks,
        final=final,
        match_id=meta.match_id,
        harena=parsed.harena_version,
        started_at=meta.start_time,
        ended_at=meta.start_time if meta.end_time is None else meta.end_time,
    )


def _summed(frames: Iterable[JsonFrame], seat_of: Mapping[str, int]) -> tuple[float, ...]:
    return tuple(float(sum(frame.rewards.get(key, 0.0) for frame in frames)) for key in seat_of)


def _step(
    number: int, frame: JsonFrame, seat_of: Mapping[str, int], game: Game
) -> tuple[dict[int, bytes], dict[int, int]]:
    actions: dict[int, bytes] = {}
    for key, value in frame.actions.items():
        if key not in seat_of:
            raise ReplayError(
                f"frame {number} of the JSON replay has an action of {key!r:.80}, who is none of its agents"
            )
        space = game.action_space(seat_of[key])
        try:
            actions[seat_of[key]] = space.encode(space.from_json(value))
        except (spaces.SpaceError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ReplayError(f"frame {number} of the JSON replay has no action of {key!r:.80}: {error}") from None
    cpu_us = {seat_of[key]: us for key, us in frame.info.cpu_us.items() if key in seat_of}
    return actions, cpu_us


def _hashes(parsed: JsonReplay) -> tuple[bytes, bytes]:
    try:
        final, checks = bytes.fromhex(parsed.final_hash), b"".join(map(bytes.fromhex, parsed.check_hashes))
    except ValueError as error:
        raise ReplayError(f"a hash of the JSON replay is not hexadecimal: {error}") from None
    if len(final) not in (0, fmt.FINAL_BYTES):
        raise ReplayError("the final hash of the JSON replay has another length")
    if len(checks) not in (0, len(parsed.frames) // fmt.CHECK_EVERY * fmt.CHECK_BYTES):
        raise ReplayError("the check hashes of the JSON replay are of another number")
    return final, checks
