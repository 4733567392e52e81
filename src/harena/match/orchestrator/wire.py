"""What the executor and an orchestrator tell each other: the order in a file, and reports as lines of the container's
log. Closed schemas, msgpack in base64.

A line that is a report begins with the nonce of the order, which no agent knows. Everything else in the log is ignored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import msgspec

from harena.match.result import AgentCode, MatchResult, MatchSpec

FOLDER = "/harena"
ORDER_FILE = f"{FOLDER}/order/order"
TOOLS = f"{FOLDER}/tools"
SEATS = f"{FOLDER}/seats"
"""Where the orchestrator has a folder for each agent's container, by its number."""
SEAT_SOCKET = "socket"
AGENT_SEAT = f"{FOLDER}/seat"
"""Where an agent's container has its own one of these folders, read-only."""
AGENT_CODE = f"{FOLDER}/agent"
SCRATCH = "/tmp"
LINE = 8 << 10
"""Characters of one line; longer reports take several. Container runtimes cut long lines."""
MAX_REPORT = 64 << 20


class PlannedGame(msgspec.Struct, frozen=True):
    seats: tuple[int, ...]
    """The agent in each seat, by the number of its container."""
    seed: int


class JobOrder(msgspec.Struct, frozen=True):
    nonce: str
    spec: MatchSpec
    """For every game, but for its agents and seed."""
    agents: tuple[AgentCode, ...]
    """Without their files."""
    games: tuple[PlannedGame, ...]
    timeout_s: float
    """Wall time of all games, from the moment that all agents are there."""
    start_s: float
    """How long to wait for the agents' containers."""
    watched: bool = False


class Began(msgspec.Struct, tag="began", frozen=True):
    """All agents' containers are there."""


class Stepped(msgspec.Struct, tag="step", frozen=True):
    game: int
    event: dict[str, Any]


class GameOver(msgspec.Struct, tag="game", frozen=True):
    game: int
    result: MatchResult


class SeriesOver(msgspec.Struct, tag="over", frozen=True):
    error: str = ""
    """Why no more games were played; empty when all were."""


JobReport = Began | Stepped | GameOver | SeriesOver

_encode = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(JobReport).decode
_decode_order = msgspec.msgpack.Decoder(JobOrder).decode


def encode_order(order: JobOrder) -> bytes:
    return _encode(order)


def decode_order(data: bytes) -> JobOrder:
    return _decode_order(data)


def report_lines(nonce: str, number: int, report: JobReport) -> Iterator[str]:
    """The lines of a report: nonce, number of the report, whether more follow, and a part of it."""
    text = base64.b64encode(_encode(report)).decode()
    parts = [text[at : at + LINE] for at in range(0, len(text), LINE)]
    for at, part in enumerate(parts):
        yield f"{nonce} {number} {'+' if at + 1 < len(parts) else '.'} {part}"


class ReportReader:
    """Puts reports together from the lines of a log. A log that is read again from its beginning yields only what is
    new."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._next = 0
        self._parts: list[str] = []
        self._size = 0

    def restart(self) -> None:
        """The log is read from its beginning again."""
        self._parts, self._size = [], 0

    def feed(self, line: str) -> JobReport | None:
        """Return the report that this line completes. Raises ValueError for one that cannot be read."""
        words = line.split(" ")
        if len(words) != 4 or words[0] != self._nonce or not words[1].isdigit() or int(words[1]) != self._next:
            return None
        self._size += len(words[3])
        if self._size > MAX_REPORT:
            raise ValueError(f"a report of more than {MAX_REPORT} bytes")
        self._parts.append(words[3])
        if words[2] == "+":
            return None
        text, self._parts, self._size = "".join(self._parts), [], 0
        self._next += 1
        try:
            return _decode_report(base64.b64decode(text, validate=True))
        except (binascii.Error, msgspec.MsgspecError) as error:
            raise ValueError(f"a report that cannot be read: {error}") from None
