"""Seats whose agents are in other containers of the orchestrator's pod, reached over one Unix socket each.

Guarantees: whatever the other side does, a request ends with bytes, with the agent's fault or with a lost box; nothing
that it says is believed beyond that. The clock is wall time between a question and its answer: another container's CPU
time cannot be seen from here, and its processes cannot be paused.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harena.errors import BoxError, BoxLost, Retry
from harena.match.orchestrator import wire
from harena.match.result import AgentCode, SeatStatus
from harena.match.run.play import Rack
from harena.match.run.seat import Fault, Seat, SeatPlace
from harena.sandbox.backend import Conversation, Turn, take_turn
from harena.sandbox.spec import Limits, Result, Usage, Verdict

CHUNK = 1 << 16
SEND_S = 2.0
GREETING = 32
"""Bytes of the longest greeting."""
GREETING_S = 5.0
"""How long a connected container may take for its greeting, which our own program sends at once."""
SOON_S = 0.001
REPLACED_S = 30.0
"""How long a container may take to be ready for its next game."""


class SeatDoor:
    """Socket on which one agent's container connects, once for each game."""

    def __init__(self, folder: Path) -> None:
        path = folder / wire.SEAT_SOCKET
        path.unlink(missing_ok=True)
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o666)  # the agent's container has a user of its own
        self._listener.listen(1)
        self._waiting: socket.socket | None = None
        self.last_end = ""
        """How the last agent ended, as its container said."""
        self.gone = False
        """The container has ended."""

    def wait(self, wait_s: float) -> bool:
        """Wait until the container is ready for a game. False if the time is over."""
        if self._waiting is not None:
            return True
        ends_at = time.monotonic() + wait_s
        self._listener.settimeout(max(0.001, wait_s))
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return False
        greeting = b""
        connection.settimeout(max(0.001, min(GREETING_S, ends_at - time.monotonic() + GREETING_S)))
        with contextlib.suppress(OSError):
            while not greeting.endswith(b"\n") and len(greeting) < GREETING and (data := connection.recv(1)):
                greeting += data
        self.last_end = greeting.decode("ascii", "replace").strip()
        self._waiting = connection
        return True

    def take(self) -> socket.socket:
        """The connection for the next game, after `wait`."""
        connection, self._waiting = self._waiting, None
        if connection is None:
            raise BoxLost("the agent's container is not ready", retry=Retry.SAFE)
        return connection

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._listener.close()
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None


class PodTalk:
    """A `Conversation` over the socket. Time is counted while an answer is waited for."""

    def __init__(self, door: SeatDoor) -> None:
        self._door = door
        self._sock = door.take()
        self._total_ns = 0
        self._since_ns: int | None = None
        self._open = True

    def start(self) -> None:
        """Let the container start its agent."""
        with contextlib.suppress(OSError):
            self._sock.settimeout(SEND_S)
            self._sock.sendall(b"g")

    def met(self) -> Conversation:
        return self

    def send(self, packet: bytes) -> None:
        self._sock.settimeout(SEND_S)
        self._sock.sendall(packet)

    def receive_soon(self) -> bytes | None:
        return self.receive(SOON_S)

    def receive(self, wait_s: float) -> bytes | None:
        if self._since_ns is None:
            self._since_ns = time.monotonic_ns()
        if not select.select([self._sock], [], [], max(0.0, wait_s))[0]:
            return None
        try:
            data = self._sock.recv(CHUNK)
        except OSError:
            data = b""
        self._total_ns += time.monotonic_ns() - self._since_ns
        self._since_ns = None
        return data

    def turn(self, wait_s: float, cpu_ns: int | None) -> Turn:
        return take_turn(self, wait_s, cpu_ns)

    def become_stream(self, packet: bytes) -> None:
        raise NotImplementedError("a container speaks by lines from the beginning")

    def read_log(self) -> bytes:
        return b""  # the cluster has it, for each container

    def cpu_ns(self) -> int:
        return self._total_ns + (time.monotonic_ns() - self._since_ns if self._since_ns is not None else 0)

    def others_cpu_ns(self) -> int:
        return 0

    def freeze(self) -> None:
        """Nothing: processes of another container cannot be paused from here."""

    def thaw(self) -> None:
        pass

    def pin(self, cpus: set[int]) -> None:
        pass

    def end(self, patience_s: float = 0.0) -> Result:
        self.drop()
        self._door.gone = not self._door.wait(REPLACED_S)
        return ended("gone" if self._door.gone else self._door.last_end)

    def drop(self) -> None:
        if self._open:
            self._open = False
            self._sock.close()


def ended(said: str) -> Result:
    """How an agent ended, as the first process of its container said. Anything else than its words is a crash."""
    word, _, number = said.partition(" ")
    value = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else None
    memory = word in ("memory", "gone")  # the kernel ends a whole container for its memory too
    return Result(
        verdict=Verdict.MEMORY if memory else Verdict.SIGNAL if word == "signal" else Verdict.EXIT,
        exit_code=value if word == "exit" else None,
        signal=value if word == "signal" else None,
        stdout=b"",
        stderr=b"",
        usage=Usage(cpu_s=0.0, wall_s=0.0, peak_mb=0.0, bytes=0),
    )


class PodSeat(Seat):
    def __init__(self, door: SeatDoor, limits: Limits) -> None:
        self._set_up(limits)
        self._ended = True  # until there is a connection
        self._door = door

    def sit(self, code: AgentCode, place: SeatPlace, cpus: set[int], look: Callable[[], None]) -> None:
        # All containers were there once. One that has ended since was ended by its agent: the rest of the series is
        # forfeited, and never void.
        if self._door.wait(0.0 if self._door.gone else REPLACED_S):
            self._talk = self._pod = PodTalk(self._door)
            self._ended = False
        else:
            self._door.gone = True
            self.refusal = Fault(SeatStatus.CRASH, "its container has ended in an earlier game")
        super().sit(code, place, cpus, look)

    def _begin(self, code: AgentCode, cpus: set[int]) -> None:
        self._start = self._start_message(code)
        if self.refusal is None:
            self._met = True
            self._pod.start()
            self._mark_ns = self._pod.cpu_ns()


class PodRack(Rack):
    """The containers of a pod: each has one agent, which sits where the games of the series need it."""

    def __init__(self, agents: Sequence[AgentCode], folder: Path) -> None:
        super().__init__()
        self._agents = agents
        self._doors = [SeatDoor(folder / str(number)) for number in range(len(agents))]

    def wait_for_all(self, wait_s: float) -> None:
        """Wait until every container is there. Raises BoxError: the platform's failure, nobody's fault."""
        ends_at = time.monotonic() + wait_s
        for agent, door in zip(self._agents, self._doors, strict=True):
            if not door.wait(ends_at - time.monotonic()):
                raise BoxError(f"the container of {agent.name} did not start within {wait_s:g} s", retry=Retry.SAFE)

    def __enter__(self) -> PodRack:
        return self

    def seat(self, code: AgentCode, limits: Limits, *, kept: bool = False) -> Seat:
        number = next(at for at, agent in enumerate(self._agents) if agent is code)
        return PodSeat(self._doors[number], limits)

    def give_back(self, seat: Seat, *, keep: bool) -> None:
        seat.close()

    def close(self) -> None:
        for door in self._doors:
            door.close()
