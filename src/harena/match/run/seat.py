"""Trusted side of a seat: one agent in its own box, with a clock. harness.py is the other side.

Guarantees: whatever the agent does, each request ends with the bytes of an answer or with a `Fault` with a named
status, within the wall-clock cap. Time is the CPU time of everything the agent runs, from one answer to the next, so
thinking while others move is charged as well. A seat does not know the game and only carries bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from harena.errors import BoxError, BoxLost, WireError
from harena.match import spaces
from harena.match.result import AgentCode, Clock, SeatStatus
from harena.match.run.agent_log import AgentLog, printable
from harena.sandbox.backend import MAX_PACKET, Conversation, Turn
from harena.sandbox.box import Sandbox
from harena.sandbox.spec import Limits, Result, Verdict

SOURCE = "import harena_harness\nharena_harness.main()\n"
WALL_FACTOR, WALL_SLACK_S = 2.0, 0.25
"""How much longer a request may take in wall time than in CPU time before it is a timeout."""
ENDING_S = 1.0
"""Time for a disconnected process to end, so that the box can report how it ended."""
LOOK_S = 0.25
"""How often a long wait checks if the match was cancelled."""
SUSPICIOUS_NS = 2_000_000
"""A process that is waited for longer than this without using CPU time sleeps, or lets others work for it."""
MAX_ANSWER = 16 << 20
MAX_LINE = 1 << 20
NOT_FOUND = 127
"""Exit code of a command that could not be started."""
NOT_TOLD = frozenset({"entry", "shown", "command", "seeds", "stays"})
"""Fields of the start message that commands do not get."""
_KINDS = {status.value: status for status in (SeatStatus.LOAD, SeatStatus.CRASH, SeatStatus.ILLEGAL, SeatStatus.MEMORY)}


class Fault(Exception):
    """A failure of the agent, as a value for the runner."""

    def __init__(self, status: SeatStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class MatchTimeout(Exception):
    """The match's own clock ran out."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SeatPlace:
    """Which seat of which game, and by what rules."""

    seat: int
    seats: int
    environment: str
    observation: spaces.Space
    action: spaces.Space
    seed: int
    """The agent's own seed. The match's seed cannot be derived from it."""
    seeds: tuple[int, ...] = ()
    """The agent's own seeds for games that are played at once."""
    stays: bool = False
    """True if the process may play other games after this one, or at the same time."""
    config: dict[str, Any]
    clock: Clock
    log_bytes: int = 65536
    output_bytes: int = 8 << 20


class Seat:
    box: Sandbox
    _talk: Conversation

    def __init__(self, box: Sandbox, limits: Limits, source: str = SOURCE) -> None:
        """Request a process for an agent; `sit` assigns the agent and the game."""
        self._set_up(limits)
        self.box = box
        self._talk = box.converse(source, limits=limits)

    def _set_up(self, limits: Limits) -> None:
        self.code: AgentCode | None = None
        self.limits = limits
        self._met = False
        self._ended = False
        self._is_command = False
        self._start: dict[str, Any] = {}
        self._log = AgentLog(0, 0)
        self._line = b""
        self._others_ns = 0
        self._clock_ns: int | None = None
        """CPU time when the last answer came, if it was read with it."""
        self.frozen = False
        self.refusal: Fault | None = None
        """Why the agent cannot be loaded, whatever it answers."""
        self._clear_account()

    def _clear_account(self) -> None:
        self.fault: Fault | None = None
        self.cpu_ns = self.last_ns = self.moves = 0
        self.waited_s = 0.0
        self.start_s = 0.0

    def sit(self, code: AgentCode, place: SeatPlace, cpus: set[int], look: Callable[[], None]) -> None:
        """Take an agent for one game. One that has played before, with the same code, gets a new agent object."""
        self.code = code
        self._is_command = code.speaks_lines
        self.place = place
        self._look = look
        self._clear_account()
        self.bank_ns = int(place.clock.bank_s * 1e9)
        self._move_ns = int(place.clock.move_s * 1e9)
        self._waited_ns = 0
        self._unanswered = 1  # it has yet to say that it is ready
        self._batches: deque[int] = deque()
        self._log = AgentLog(place.log_bytes, place.output_bytes)
        self._started = time.monotonic()
        try:
            self._begin(code, cpus)
        except BoxError:
            raise  # some of them are timeouts, and so OSErrors
        except OSError:
            pass  # it is gone: waiting for its answer finds out why

    # ---- start ----

    def _begin(self, code: AgentCode, cpus: set[int]) -> None:
        last, self._start = self._start, self._start_message(code)
        if self._met:
            if self.frozen:
                self._thaw()
            if not code.speaks_lines:
                news = {key: value for key, value in self._start.items() if value != last[key]}
                self._send(b"N" + json.dumps(news).encode())
            return
        self._talk.met()
        self._met = True
        self._pin(cpus)
        self._mark_ns = self._talk.cpu_ns()
        for path, data in code.files.items():
            self._send_file(path, data)
        start = b"I" + json.dumps(self._start).encode()
        if code.command:
            self._talk.become_stream(start)  # a command speaks by lines
        else:
            self._send(start)

    def _pin(self, cpus: set[int]) -> None:
        self._talk.pin(cpus)

    def _send_file(self, path: str, data: bytes) -> None:
        name = path.encode()
        head = struct.pack("<I", len(name)) + name
        step = MAX_PACKET - len(head) - 1
        for at in range(0, len(data) or 1, step):
            self._send((b"f" if at else b"F") + head + data[at : at + step])

    def _start_message(self, code: AgentCode) -> dict[str, Any]:
        place = self.place
        return {
            "entry": code.entry,
            "shown": code.shown,
            "command": list(code.command),
            "player_id": place.seat,
            "seats": place.seats,
            "environment": place.environment,
            "seed": place.seed,
            "seeds": list(place.seeds),
            "stays": place.stays,
            "config": place.config,
            "observation_space": place.observation.describe(),
            "action_space": place.action.describe(),
        }

    def ready(self) -> None:
        """Wait until the agent is loaded. Call `sit` on all seats before waiting for one."""
        if self.refusal is not None:
            raise self.refusal
        deadline = self._start_deadline()
        if self._is_command:
            told = {key: value for key, value in self._start.items() if key not in NOT_TOLD}
            self._put_line({"type": "init", **told})
            if self._get_line(deadline, "start-up").get("ready") is not True:
                raise Fault(SeatStatus.PROTOCOL, 'the first line must be {"ready": true}')
            self._put_line({"type": "reset"})
        elif self._receive(deadline, None, "start-up") != b"r":
            raise Fault(SeatStatus.PROTOCOL, "it did not say that it is ready")
        self._unanswered -= 1
        self.start_s = time.monotonic() - self._started
        self._mark_ns = self._talk.cpu_ns()

    def _start_deadline(self) -> float:
        return self._started + self.place.clock.start_s

    # ---- moves ----

    def ask(self, observation: bytes) -> None:
        """Send an observation and start the clock of the move."""
        self._unanswered += 1
        try:
            if self._is_command:
                value = self.place.observation.decode_all(observation)
                self._put_line({"type": "act", "observation": self.place.observation.to_json(value)})
            elif len(observation) < MAX_PACKET:
                self._talk.send(b"A" + observation)
            else:
                self._send(b"A" + observation)
        except OSError:
            pass  # it is gone: `answer` finds out how
        if self.frozen:
            self._thaw()

    def answer(self, match_deadline: float, when_slow: Callable[[], None]) -> bytes:
        """Return the bytes of the action, not yet checked by its space. Stops the clock."""
        self._waited_ns = 0
        self._clock_ns = None
        if self._is_command:
            when_slow()  # to start a line of JSON takes longer than to stop the others
            data = self._command_answer(match_deadline)
        else:
            # An answer that comes at once needs no look at clocks, nor others frozen.
            data = self._soon()
            if data is None:
                when_slow()
                data = self._receive(match_deadline, self._move_ns + self.bank_ns, "a move")
            elif data[:1] in (b"M", b"x", b""):
                data = self._rest_of(data, match_deadline, self._move_ns + self.bank_ns, "a move")
            if data[:1] != b"a":
                raise Fault(SeatStatus.PROTOCOL, "it sent something that is no action")
            data = data[1:]
        self._unanswered -= 1
        self._charge()
        self.moves += 1
        return data

    def _soon(self) -> bytes | None:
        return self._talk.receive_soon()

    def waited_since(self, asked: float) -> float:
        """Seconds that the match had to wait for it since a request at that time."""
        return time.monotonic() - asked

    def ask_batch(self, slots: list[int], observations: list[bytes]) -> None:
        data = struct.pack(f"<I{len(slots)}I", len(slots), *slots) + b"".join(observations)
        with contextlib.suppress(OSError):
            self._send(b"B" + data)
        self._unanswered += 1
        self._batches.append(len(slots))
        if self.frozen:
            self._thaw()

    def answer_batch(self, match_deadline: float) -> bytes:
        """Return the bytes of the actions for the first unanswered batch. The time for a move applies to each of
        them."""
        asked = sum(self._batches)
        data = self._receive(match_deadline, self._move_ns * asked + self.bank_ns, "a batch of moves")
        if data[:1] != b"b":
            raise Fault(SeatStatus.PROTOCOL, "it sent something that is no batch of actions")
        self._unanswered -= 1
        self._charge(asked)
        self.moves += self._batches.popleft()
        return data[1:]

    def _command_answer(self, match_deadline: float) -> bytes:
        action = self._get_line(match_deadline, "a move", self._move_ns + self.bank_ns)
        if set(action) != {"action"}:
            raise Fault(SeatStatus.PROTOCOL, 'an answer must be {"action": ...}')
        try:
            return self.place.action.encode(self.place.action.from_json(action["action"]))
        except spaces.SpaceError as error:
            raise Fault(SeatStatus.ILLEGAL, str(error)) from None

    def _charge(self, moves: int = 1) -> None:
        used = self.last_ns = self._used()
        if used > self._move_ns * moves:
            self.bank_ns -= used - self._move_ns * moves
            if self.bank_ns < 0:
                raise self._too_slow("a move", used)

    def _used(self) -> int:
        """CPU time since the last call, added to the account."""
        now = self._talk.cpu_ns() if self._clock_ns is None else self._clock_ns
        self._clock_ns = None
        used = now - self._mark_ns
        self._mark_ns = now
        if self._waited_ns > used + SUSPICIOUS_NS or self._others_ns:
            others = self._talk.others_cpu_ns()
            used += max(0, others - self._others_ns)
            self._others_ns = others
        used = max(0, used)
        self.cpu_ns += used
        return used

    def _too_slow(self, what: str, used_ns: int) -> Fault:
        clock = self.place.clock
        bank = f" and its bank of {clock.bank_s:g} s is used up" if clock.bank_s else ""
        return Fault(
            SeatStatus.TIMEOUT, f"{what} took {used_ns / 1e9:.3g} s of processor time; it has {clock.move_s:g} s{bank}"
        )

    # ---- the clock ----

    def _wait(self, deadline: float, cpu_ns: int | None, what: str) -> bytes:
        """Wait for the next bytes; b"" if the process is gone. Raises Fault if the time is over."""
        span = deadline - time.monotonic()
        cap = span if cpu_ns is None else min(span, cpu_ns / 1e9 * WALL_FACTOR + WALL_SLACK_S)
        began, waited = None, 0.0
        self._look()
        while True:
            left = min(max(0.0, cap - waited), LOOK_S)
            turn = self._turn(left, None if cpu_ns is None else self._mark_ns + cpu_ns)
            began = turn.began_ns if began is None else began
            waited = (turn.ended_ns - began) / 1e9
            self._clock_ns = turn.cpu_ns
            if turn.packet is not None:  # one that was there when we asked is in time, however late we ask
                self._waited_ns = int(waited * 1e9)
                return turn.packet
            used = turn.cpu_ns - self._mark_ns
            late = waited >= cap
            slow = cpu_ns is not None and used > cpu_ns
            if cpu_ns is not None and (late or slow):
                self._waited_ns = int(waited * 1e9)
                self._used()  # a move that does not end is on the account too
            if late:
                raise self._late(cpu_ns, what, used, waited, by_match=span <= cap)
            if slow:
                raise self._too_slow(what, used)
            self._look()
            self._read_log()

    def _turn(self, wait_s: float, cpu_ns: int | None) -> Turn:
        return self._talk.turn(wait_s, cpu_ns)

    def _late(self, cpu_ns: int | None, what: str, used_ns: int, waited_s: float, *, by_match: bool) -> Fault:
        if self._is_command and not by_match:
            return Fault(
                SeatStatus.TIMEOUT, f"no line arrived within {waited_s:.2g} s; does the agent flush its output?"
            )
        if cpu_ns is None:
            if self._is_command:
                clock_s = self.place.clock.start_s
                return Fault(
                    SeatStatus.TIMEOUT, f"no line arrived within {clock_s:g} s; does the agent flush its output?"
                )
            return Fault(SeatStatus.TIMEOUT, f"{what} took longer than {self.place.clock.start_s:g} s")
        if by_match:
            raise MatchTimeout
        return Fault(
            SeatStatus.TIMEOUT,
            f"{what} took {waited_s:.3g} s, of which it worked {used_ns / 1e9:.3g} s; it has"
            f" {self.place.clock.move_s:g} s",
        )

    def freeze(self) -> None:
        """Pause the agent and everything it started while it is not its turn."""
        self.frozen = True
        self._talk.freeze()

    def _thaw(self) -> None:
        self.frozen = False
        self._talk.thaw()

    # ---- packets and lines ----

    def _send(self, data: bytes) -> None:
        head, body = data[:1], data[1:]
        while len(body) > MAX_PACKET:
            self._talk.send(b"M" + body[:MAX_PACKET])
            body = body[MAX_PACKET:]
        self._talk.send(head + body)

    def _receive(self, deadline: float, cpu_ns: int | None, what: str) -> bytes:
        """Receive one packet of the harness, joined if it came in pieces."""
        return self._rest_of(self._wait(deadline, cpu_ns, what), deadline, cpu_ns, what)

    def _rest_of(self, data: bytes, deadline: float, cpu_ns: int | None, what: str) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            if not data:
                raise self._gone()
            if data[0] == 120:  # x
                raise self._given_up(data[1:])
            if data[0] != 77:  # M
                return data[:1] + b"".join(parts) + data[1:] if parts else data
            total += len(data)
            if total > MAX_ANSWER:
                raise Fault(SeatStatus.PROTOCOL, "it sent an endless answer")
            parts.append(data[1:])
            data = self._wait(deadline, cpu_ns, what)

    def _given_up(self, data: bytes) -> Fault:
        """Handle the harness's message why the agent cannot continue. It is untrusted, but can only harm the agent
        itself."""
        try:
            message: Any = json.loads(data[:8192])
            kind, text = _KINDS[message["fault"]], str(message["text"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return Fault(SeatStatus.PROTOCOL, "it gave up without saying why")
        return Fault(kind, printable(text)[:500])

    def _gone(self) -> Fault:
        """Its process has ended, or it has closed the socket. Raises BoxLost when the box itself is gone: that is no
        fault of the agent's."""
        if self._ended:
            return Fault(SeatStatus.CRASH, "its process had ended before")
        try:
            result = self._end()
        except (BoxLost, WireError) as error:
            who = self.code.name if self.code else "an agent"
            raise BoxLost(f"the box of {who} was lost: {error}") from error
        if not result.started:
            return Fault(SeatStatus.LOAD, result.detail)
        if result.verdict is Verdict.MEMORY:
            return Fault(SeatStatus.MEMORY, f"it needed more than {self.limits.memory_mb} MiB")
        if result.verdict is Verdict.PROCESSES:
            return Fault(SeatStatus.CRASH, f"it needed more than {self.limits.processes} processes and threads")
        if result.signal is not None:
            return Fault(SeatStatus.CRASH, f"its process was ended by signal {result.signal}")
        if result.exit_code == NOT_FOUND and self._is_command and not self.start_s and self.code and self.code.command:
            return Fault(SeatStatus.LOAD, f"{printable(self.code.command[0])[:100]} could not be started")
        if result.exit_code is not None:
            return Fault(SeatStatus.CRASH, f"its process ended with exit code {result.exit_code}")
        return Fault(SeatStatus.CRASH, "it closed its connection")

    def _put_line(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._talk.send(json.dumps(message).encode() + b"\n")

    def _get_line(self, deadline: float, what: str, cpu_ns: int | None = None) -> dict[str, Any]:
        while b"\n" not in self._line:
            data = self._wait(deadline, cpu_ns, what)
            if not data:
                raise self._gone()
            self._line += data
            if len(self._line) > MAX_LINE:
                raise Fault(SeatStatus.PROTOCOL, f"a line of more than {MAX_LINE} bytes")
        line, _, self._line = self._line.partition(b"\n")
        try:
            message: Any = json.loads(line)
        except (ValueError, RecursionError):
            shown = printable(line[:80].decode("utf-8", "replace"))
            raise Fault(SeatStatus.PROTOCOL, f"a line that is not JSON: {shown}") from None
        if not isinstance(message, dict):
            raise Fault(SeatStatus.PROTOCOL, "a line that is not a JSON object")
        if "fault" in message:
            raise self._given_up(line)
        return message  # pyright: ignore[reportUnknownVariableType]

    # ---- end ----

    def _read_log(self) -> None:
        if not self._log.add(self._talk.read_log()):
            raise Fault(SeatStatus.OUTPUT, f"it printed more than {self.place.output_bytes} bytes")

    def _take_log(self) -> None:
        while (data := self._talk.read_log()) and self._log.add(data):
            pass

    def _end(self) -> Result:
        self._ended = True
        self._take_log()
        return self._talk.end(ENDING_S)

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            if self._is_command and self._met:
                self._put_line({"type": "end"})
            with contextlib.suppress(BoxError):  # the box is gone, and its log with it
                self._take_log()
            self._talk.drop()

    def rest(self) -> bool:
        """Finish a game. Returns False if the process cannot play another one."""
        if self._ended or self.fault or not self._met or self._unanswered:
            return False  # a late answer would be taken for the first one of the next game
        try:
            self._take_log()
        except BoxError:
            return False
        return True

    def log(self) -> str:
        return self._log.text()
