"""Specs and results of matches. Plain frozen data that is sent between processes as msgpack."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from harena.errors import SpecError


class SeatStatus(enum.Enum):
    """How a seat behaved. Everything but OK is a forfeit, by the game's rule. What the platform did to an agent is
    never a status of its seat: the match is void."""

    OK = "ok"
    LOAD = "load"
    """Could not be loaded: a syntax error, no entry point, an exception on import or in the constructor."""
    TIMEOUT = "timeout"
    """Start-up, a move or the bank took too long."""
    CRASH = "crash"
    """Raised an exception or ended its process."""
    ILLEGAL = "illegal"
    """An action outside the action space or against the rules."""
    MEMORY = "memory"
    OUTPUT = "output"
    """Printed more than allowed."""
    PROTOCOL = "protocol"
    """Sent a message that is not a valid answer."""


class MatchStatus(enum.Enum):
    FINISHED = "finished"
    """There is a result; a seat may have forfeited."""
    TIMEOUT = "timeout"
    """The match as a whole took too long; no winner."""
    CANCELLED = "cancelled"
    VOID = "void"
    """The platform or the game failed: no result, nobody is to blame. `cause` and `error` say why."""


class VoidCause(enum.Enum):
    """Why a match is void. Code decides by this, never by the sentence in `MatchResult.error`."""

    GAME = "game"
    """The game's own code failed. It fails again on the same seed and moves."""
    BOX_LOST = "box_lost"
    """The box of an agent ended or broke its protocol while the match was played."""
    NO_BOX = "no_box"
    """A box could not be started."""
    WORKER_LOST = "worker_lost"
    """The process that played the match ended."""
    REPLAY = "replay"
    """The replay could not be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time limits in CPU seconds, so that a busy machine or opponent costs an agent nothing; wall-clock caps limit
    waiting."""

    start_s: float = 30.0
    """Loading the agent, up to its first reset; wall time."""
    move_s: float = 5.0
    """Time for each move; additional time is taken from the bank."""
    bank_s: float = 0.0
    """Extra time for the whole game."""
    match_s: float = 300.0
    """Wall time of the whole match."""

    def __post_init__(self) -> None:
        for name in ("start_s", "move_s", "match_s"):
            if not 0 < getattr(self, name) <= 86400:
                raise SpecError(f"clock {name}={getattr(self, name)!r}: must be above 0 and at most a day")
        if not 0 <= self.bank_s <= 86400:
            raise SpecError(f"clock bank_s={self.bank_s!r}: must be from 0 to a day")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCode:
    """Files of an agent by relative path, and how to start it. Created by `agent.load`."""

    name: str
    files: dict[str, bytes]
    entry: str = "agent.py"
    """The Python file with the agent, or "" if a command is run."""
    command: tuple[str, ...] = ()
    """An agent in any language: run in the folder of its files, speaks the line protocol of docs/agents.md."""
    shown: str = ""
    """What errors call the entry file, when its author gave it another name than `entry`."""
    image: str = ""
    """An agent that is an image, by name and digest: `entry` and `command` are about its files then. It speaks the line
    protocol in both cases."""

    @property
    def speaks_lines(self) -> bool:
        return bool(self.command or self.image)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchSpec:
    environment: str
    agents: tuple[AgentCode, ...]
    seed: int = 0
    agents_seed: int | None = None
    """Base of the agents' own seeds; None means the match's seed. If the match's seed must stay hidden, agents' seeds
    must not depend on it."""
    match_id: str = ""
    clock: Clock = field(default_factory=Clock)
    memory_mb: int = 512
    processes: int = 50
    log_bytes: int = 65536
    """How much of each agent's output is kept: the head and the tail."""
    output_bytes: int = 8 << 20
    """More than this ends the agent."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """Given to the game's factory."""
    record: bool = True
    """Keep the replay."""
    stalling_loses: bool = True
    """When the match's time runs out, the seat that the match was waiting for most of that time forfeits. False: there
    is no result then, and an agent that is losing can sleep through every move."""
    keep: bool = False
    """Keep the agents' processes for the next game with the same code. That game starts with new agent objects, but
    state in modules remains. Without `keep` every game starts new processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatResult:
    agent: str
    status: SeatStatus
    reason: str
    """One sentence for the agent's owner; empty when all went well."""
    score: float
    cpu_s: float
    """CPU time of all its moves, including one that did not end."""
    moves: int
    start_s: float
    """Wall time from start to ready."""
    log: str
    """What it printed, capped. For its owner only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    match_id: str
    environment: str
    """The environment's id, with the version that was played."""
    seed: int
    status: MatchStatus
    winner: int | None
    """The seat; None for a draw or without a result."""
    reason: str
    """Why it ended."""
    steps: int
    wall_s: float
    seats: tuple[SeatResult, ...]
    error: str = ""
    replay: bytes = b""
    """The compact replay (harena.match.replay.replay), when it was recorded."""
    fingerprint: str = ""
    """Equal for games in which every seat saw and did the same. Empty for a match that was not played."""
    cause: VoidCause | None = None
    """Why the match is void; None for any other match."""

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(seat.score for seat in self.seats)

    def as_json(self) -> dict[str, Any]:
        """The object of `harena match --json`."""
        return {
            "match_id": self.match_id,
            "environment": self.environment,
            "seed": self.seed,
            "status": self.status.value,
            "winner": self.winner,
            "reason": self.reason,
            "scores": list(self.scores),
            "steps": self.steps,
            "wall_s": round(self.wall_s, 6),
            "error": self.error,
            "cause": self.cause.value if self.cause else None,
            "fingerprint": self.fingerprint,
            "seats": [
                {
                    "agent": seat.agent,
                    "status": seat.status.value,
                    "reason": seat.reason,
                    "cpu_s": round(seat.cpu_s, 6),
                    "moves": seat.moves,
                }
                for seat in self.seats
            ],
        }

    def _repr_html_(self) -> str:
        from harena import notebook

        ended = self.reason or self.error
        head = ("seat", "agent", "score", "status", "reason", "moves", "cpu_s")
        rows = [
            (at, seat.agent, seat.score, seat.status.value, seat.reason, seat.moves, seat.cpu_s)
            for at, seat in enumerate(self.seats)
        ]
        won = "" if self.winner is None else f", seat {self.winner} wins"
        title = f"{self.environment}, seed {self.seed}: {self.status.value} after {self.steps} steps{won}"
        return notebook.table(f"{title}: {ended}" if ended else title, head, rows)
