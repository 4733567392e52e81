"""Parses a MatchRequest into an `Order`. Everything that can be checked is checked before anything is fetched or
started. Errors are `Refused` with the name of the field. A client wrote the request, so every size has a cap.
"""

from __future__ import annotations

import json
import math
import secrets
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import grpc

from harena.errors import HarenaError
from harena.match import registry
from harena.match.agent import image
from harena.match.agent.image import PullPolicy
from harena.match.agent.load import AgentError
from harena.match.executor.config import ServerConfig
from harena.match.executor.fetch import Fetcher, FetchRefused
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.result import Clock

CALLER: ContextVar[str] = ContextVar("caller", default="")
"""Name of the caller, from the server's door. A match belongs to its caller: nobody else can watch or cancel it."""
MAX_ID = 256
MAX_CONFIG = 64 << 10
MAX_METADATA = 64
"""Entries of an agent's metadata."""
MAX_METADATA_TEXT = 4096
MAX_PRIORITY = 100


class CallRefused(HarenaError):
    """A call that is answered with a gRPC status and nothing else."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def invalid(text: str) -> CallRefused:
    return CallRefused(grpc.StatusCode.INVALID_ARGUMENT, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    agent_id: str
    code: bytes
    """Code of the agent; empty if it must be fetched from the URL."""
    url: str
    image: str = ""
    version: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    match_id: str
    environment: str
    """The environment's id, with its version."""
    entrants: tuple[Entrant, ...]
    seed: int
    games: int
    timeout_s: float
    """Wall time of all games together."""
    clock: Clock
    config: dict[str, Any]
    record: bool
    include_replay: bool
    include_logs: bool
    watchable: bool
    """Send every step to watchers, which has a cost."""
    priority: int = 0
    """Among the matches of the same caller."""


def read(request: pb.MatchRequest, settings: ServerConfig, fetcher: Fetcher, *, watchable: bool = False) -> Order:
    environment = environment_of(request.environment)
    config = _config(request.config)
    _check_seats(environment, config, len(request.agents))
    pulls = settings.images.policy
    entrants = tuple(_entrant(agent, f"agents[{at}]", fetcher, pulls) for at, agent in enumerate(request.agents))
    _check_unique(entrants)
    games = request.games or 1
    if games > settings.executor.max_games:
        raise invalid(f"games: {games}; at most {settings.executor.max_games}")
    return Order(
        match_id=_identity(request.match_id, "match_id") if request.match_id else uuid.uuid4().hex,
        environment=environment,
        entrants=entrants,
        # 32 bits where the server draws: some environments take no more.
        seed=request.seed if request.HasField("seed") else secrets.randbits(32),
        games=games,
        timeout_s=_timeout(request.timeout_sec, settings),
        clock=_clock(request.clock, settings),
        config=config,
        record=request.record_replay,
        include_replay=request.include_replay,
        include_logs=request.include_logs,
        watchable=watchable or request.watchable,
        priority=_priority(request.priority),
    )


def _priority(asked: int) -> int:
    if abs(asked) > MAX_PRIORITY:
        raise invalid(f"priority: {asked}; from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return asked


def environment_of(name: str) -> str:
    """Return the full id. A client chooses among installed games; the registry imports nothing that a client names."""
    if not name:
        raise invalid("environment: missing")
    try:
        return registry.resolve(name)
    except HarenaError as error:
        raise invalid(f"environment: {error}") from None


def _identity(text: str, field: str) -> str:
    if len(text) > MAX_ID or not text.isprintable():
        raise invalid(f"{field}: at most {MAX_ID} printable characters")
    return text


def _entrant(agent: pb.AgentData, field: str, fetcher: Fetcher, pulls: PullPolicy) -> Entrant:
    if not agent.agent_id:
        raise invalid(f"{field}.agent_id: missing")
    _identity(agent.agent_id, f"{field}.agent_id")
    sources = {"code_url": agent.code_url, "code_zip": agent.code_zip, "docker_image": agent.docker_image}
    given = [name for name, value in sources.items() if value]
    if len(given) != 1:
        found = f"both {' and '.join(given)} are" if given else "nothing is"
        raise invalid(f"{field}: give one of code_url, code_zip and docker_image; {found} given")
    if agent.docker_image:
        _check_image(agent.docker_image, f"{field}.docker_image", pulls)
    if agent.code_url:
        try:
            fetcher.check(agent.code_url)
        except FetchRefused as error:
            raise invalid(f"{field}.code_url: {error}") from None
    return Entrant(
        agent_id=agent.agent_id,
        code=agent.code_zip,
        url=agent.code_url,
        image=agent.docker_image,
        version=_identity(agent.version, f"{field}.version"),
        metadata=_metadata(agent.metadata, f"{field}.metadata"),
    )


def _metadata(given: Mapping[str, str], field: str) -> dict[str, str]:
    if len(given) > MAX_METADATA:
        raise invalid(f"{field}: {len(given)} entries; at most {MAX_METADATA}")
    for key, value in given.items():
        _identity(key, f"{field}: a key")
        if len(value) > MAX_METADATA_TEXT:
            raise invalid(f"{field}[{key!r}]: {len(value)} characters; at most {MAX_METADATA_TEXT}")
    return dict(given)


def _check_image(name: str, field: str, pulls: PullPolicy) -> None:
    try:
        image.check(name, pulls)
    except image.ImageMissing as error:
        raise CallRefused(grpc.StatusCode.FAILED_PRECONDITION, f"{field}: {error}") from None
    except AgentError as error:
        raise invalid(f"{field}: {error}") from None


def _check_unique(entrants: tuple[Entrant, ...]) -> None:
    seen: dict[str, int] = {}
    for at, entrant in enumerate(entrants):
        if entrant.agent_id in seen:
            first = seen[entrant.agent_id]
            raise invalid(f"agents[{at}].agent_id: {entrant.agent_id!r} is the agent_id of agents[{first}] too")
        seen[entrant.agent_id] = at


def _check_seats(environment: str, config: Mapping[str, Any], agents: int) -> None:
    if not agents:
        raise invalid("agents: missing")
    try:
        seats = registry.make(environment, config).seats
    except HarenaError as error:
        raise invalid(f"{'config' if config else 'environment'}: {error}") from None
    if agents != seats:
        raise invalid(f"agents: {environment} has {seats} seats; {agents} agents were given")


def _config(text: str) -> dict[str, Any]:
    if not text:
        return {}
    if len(text) > MAX_CONFIG:
        raise invalid(f"config: {len(text)} characters; at most {MAX_CONFIG}")
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise invalid(f"config: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise invalid("config: expected a JSON object")
    return cast("dict[str, Any]", data)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _timeout(asked: int, settings: ServerConfig) -> float:
    most = settings.executor.max_timeout_sec
    if asked > most:
        raise invalid(f"timeout_sec: {asked}; at most {most:g}")
    return float(asked or settings.resource_limits.match_timeout_sec)


def _clock(clock: pb.Clock, settings: ServerConfig) -> Clock:
    limits, most = settings.resource_limits, settings.executor.max_timeout_sec
    for name in ("start_sec", "move_sec", "bank_sec", "match_sec"):
        value = getattr(clock, name)
        if not math.isfinite(value) or not 0 <= value <= most:
            raise invalid(f"clock.{name}: {value:g}; expected seconds from 0 to {most:g}")
    return Clock(
        start_s=clock.start_sec or limits.start_timeout_sec,
        move_s=clock.move_sec or limits.step_timeout_sec,
        bank_s=clock.bank_sec,
        match_s=clock.match_sec or most,
    )
