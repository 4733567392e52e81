"""Plays one match: the game, the clock and the score are in this process, each agent is in its own box.

Promises: a result whatever the agents do; an agent that misbehaves forfeits by the game's rule and nobody else is hurt;
the same spec and the same moves give the same replay. A failure of ours (a lost box) or of the game voids the match
with a named cause, and is never a forfeit.

One file: a match is one state, and whoever asks where a forfeit comes from finds it here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from harena.errors import (
    BackendUnavailable,
    BoxClosed,
    BoxError,
    BoxLost,
    HarenaError,
    RequirementsFailed,
    Retry,
    SpecError,
    WireError,
)
from harena.match import registry, spaces
from harena.match.agent import packages
from harena.match.game import Game, GameError, IllegalAction, Outcome, withdraw
from harena.match.replay import replay
from harena.match.result import AgentCode, MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus, VoidCause
from harena.match.run.agent_box import box_spec, far_spec
from harena.match.run.far_seat import FarImageSeat, FarSeat
from harena.match.run.image_seat import ImageSeat
from harena.match.run.seat import Fault, MatchTimeout, Seat, SeatPlace
from harena.sandbox.box import Sandbox
from harena.sandbox.spec import Limits, Spec

Event = dict[str, Any]


class MatchCancelled(Exception):
    """Somebody called the match off."""


BLAME = 1.5
"""Factor by which the match must have waited longer for the losing seat than for any other."""
MAX_SEATED = 16
"""Maximum number of processes kept between games."""


class Rack:
    """Keeps the boxes of ended matches for the next ones: an agent gets a process, namespaces and files of its own in
    there, and leaves nothing behind. Agents of a series may stay seated: `MatchSpec.keep`. For one thread.

    Not a SandboxPool: that gives a box out once and makes new ones in threads of its own, which would take time from
    the clocks of a match. A rack uses a box again, with the process for the next agent already started in it."""

    def __init__(self, spec: Spec | None = None, *, backend: str = "local", token: str | None = None) -> None:
        """`backend`: where the boxes are made, such as the URL of a server."""
        self._backend = backend
        self._token = token
        self._far = backend != "local"
        self._spec = spec or self._box_spec()
        self._ahead: list[Seat] = []
        """Processes that wait for an agent, each in its own box."""
        self._seated: list[Seat] = []

    def _box_spec(self, requirements: tuple[str, ...] = ()) -> Spec:
        return far_spec(requirements) if self._far else box_spec(requirements)

    def _box(self, spec: Spec) -> Sandbox:
        try:
            return Sandbox(spec, backend=self._backend, token=self._token)
        except BackendUnavailable as error:  # a server that cannot be reached: the platform's failure
            raise BoxError(str(error), retry=Retry.SAFE) from error

    def _seat_in(self, box: Sandbox, limits: Limits) -> Seat:
        return FarSeat(box, limits) if self._far else Seat(box, limits)

    def warm_up(self, count: int) -> None:
        boxes = [self._box(self._spec) for _ in range(count)]
        for box in boxes:
            box.warm_up()
        self._ahead += [self._seat_in(box, Limits()) for box in boxes]

    def seat(self, code: AgentCode, limits: Limits, *, kept: bool = False) -> Seat:
        """Return a seat; with `kept`, one of an earlier game if there is one."""
        for seat in self._seated if kept else ():
            if seat.limits == limits and seat.code == code:
                self._seated.remove(seat)
                return seat
        if code.image:
            return self._far_image_seat(code, limits) if self._far else ImageSeat(limits)
        return self._seat_with_requirements(code, limits) or self._plain_seat(limits)

    def _far_image_seat(self, code: AgentCode, limits: Limits) -> Seat:
        """What the server does not allow is an error of the caller, and what it cannot get the platform's."""
        try:
            return FarImageSeat(self._box(Spec(image=code.image)), limits)
        except BoxLost as error:
            raise BoxError(f"the image of {code.name}: {error}", retry=Retry.SAFE) from None

    def _seat_with_requirements(self, code: AgentCode, limits: Limits) -> Seat | None:
        """Return a seat in a box with what the agent requires; None if it requires nothing. What cannot be installed is
        the agent's own fault."""
        try:
            wanted = packages.required(code.files)
        except SpecError as error:
            return self._refused_seat(limits, f"{packages.REQUIREMENTS}, {error}")
        if not wanted:
            return None
        try:
            return self._seat_in(self._box(self._box_spec(wanted)), limits)
        except RequirementsFailed as error:
            return self._refused_seat(limits, f"{packages.REQUIREMENTS}: {error}")

    def _refused_seat(self, limits: Limits, reason: str) -> Seat:
        seat = self._plain_seat(limits)
        seat.refusal = Fault(SeatStatus.LOAD, reason)
        return seat

    def _plain_seat(self, limits: Limits) -> Seat:
        while self._ahead:
            seat = self._ahead.pop()
            if not seat.box.alive:
                continue
            if seat.limits == limits:
                return seat
            seat.close()  # made for other limits
            return self._seat_in(seat.box, limits)
        return self._seat_in(self._box(self._spec), limits)

    def hush(self) -> None:
        """Pause kept agents while others play."""
        for seat in self._seated:
            if not seat.frozen:
                seat.freeze()

    def give_back(self, seat: Seat, *, keep: bool) -> None:
        if keep and seat.rest():
            self._seated.append(seat)
            if len(self._seated) <= MAX_SEATED:
                return
            seat = self._seated.pop(0)
        seat.close()
        if isinstance(seat, ImageSeat):
            return  # it has closed its own
        if seat.box.spec.requirements:
            seat.box.close()  # few agents have the same
        elif seat.box.alive:
            with contextlib.suppress(BoxLost):  # lost meanwhile; the next match makes another
                self._ahead.append(self._seat_in(seat.box, seat.limits))  # it starts while nobody waits

    def close(self) -> None:
        for seat in [*self._seated, *self._ahead]:
            seat.close()
            if not isinstance(seat, ImageSeat):  # it has closed its own
                seat.box.close()
        self._seated, self._ahead = [], []

    def __enter__(self) -> Rack:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def play(
    spec: MatchSpec,
    *,
    rack: Rack | None = None,
    on_event: Callable[[Event], object] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> MatchResult:
    """Play a match. Raises SpecError for an invalid match: unknown game, wrong number of agents."""
    game = registry.make(spec.environment, spec.config)
    if len(spec.agents) != game.seats:
        raise SpecError(f"{game.id} has {game.seats} seats; {len(spec.agents)} agents were given")
    with contextlib.ExitStack() as stack:
        rack = rack or stack.enter_context(Rack())
        cpus = stack.enter_context(on_one_processor())
        return MatchPlay(spec, game, rack, cpus, on_event, cancelled).run()


@contextlib.contextmanager
def on_one_processor() -> Generator[set[int]]:
    """The runner and its agents share one: to wake a process on another costs more than most moves take. A thread of
    its own keeps what it was allowed."""
    before = os.sched_getaffinity(0)
    if len(before) == 1:
        yield before
        return
    one = {_this_processor(before)}
    os.sched_setaffinity(0, one)
    try:
        yield one
    finally:
        os.sched_setaffinity(0, before)


def _this_processor(allowed: set[int]) -> int:
    with open("/proc/thread-self/stat", "rb") as file:
        current = int(file.read().rpartition(b")")[2].split()[36])
    return current if current in allowed else min(allowed)


def agent_seed(seed: int, seat: int) -> int:
    """Seed for an agent's own random numbers. The match's seed cannot be derived from it."""
    return int.from_bytes(hashlib.sha256(f"harena agent {seed} {seat}".encode()).digest()[:4], "little")


def take_seats(spec: MatchSpec, rack: Rack, *, kept: bool) -> list[Seat]:
    """Request all processes before waiting for one."""
    limits = Limits(memory_mb=spec.memory_mb, processes=spec.processes)
    seats = [rack.seat(code, limits, kept=kept) for code in spec.agents]
    rack.hush()
    return seats


def load_all(
    seats: Sequence[Seat],
    spec: MatchSpec,
    game: Game,
    cpus: set[int],
    look: Callable[[], None],
    together: Sequence[int] = (),
) -> Iterator[tuple[int, Seat, Fault]]:
    """Load all agents in parallel and return those that failed. `together`: seeds of games that are played at once."""
    for number, (seat, code) in enumerate(zip(seats, spec.agents, strict=True)):
        dice = [
            agent_seed(seed if spec.agents_seed is None else spec.agents_seed, number)
            for seed in together or [spec.seed]
        ]
        place = SeatPlace(
            seat=number,
            seats=game.seats,
            environment=game.id,
            observation=game.observation_space(number),
            action=game.action_space(number),
            seed=dice[0],
            seeds=tuple(dice) if together else (),
            stays=bool(together) or spec.keep,
            config=spec.config,
            clock=spec.clock,
            log_bytes=spec.log_bytes,
            output_bytes=spec.output_bytes,
        )
        seat.sit(code, place, cpus, look)
    for number, seat in enumerate(seats):
        try:
            seat.ready()
        except Fault as fault:
            yield number, seat, fault


class MatchPlay:
    def __init__(
        self,
        spec: MatchSpec,
        game: Game,
        rack: Rack,
        cpus: set[int],
        on_event: Callable[[Event], object] | None,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.spec = spec
        self.game = game
        self.match_id = spec.match_id or uuid.uuid4().hex[:12]
        self._rack = rack
        self._cpus = cpus
        self._on_event = on_event
        self._cancelled = cancelled
        self.seats: list[Seat] = []
        self.steps = 0
        self._withdrawn: set[int] = set()
        self._questions: list[bytes] = []
        self._answers: list[bytes] = []
        """All that the seats were asked, and answered."""
        self._recorder: replay.ReplayRecorder | None = None
        if spec.record:
            self._recorder = replay.ReplayRecorder(
                game,
                environment=game.id,
                seed=spec.seed,
                config=dict(spec.config),
                match_id=self.match_id,
                agents=[code.name for code in spec.agents],
                images=[code.image for code in spec.agents],
            )

    def run(self) -> MatchResult:
        started, started_at = time.monotonic(), time.time()
        self._deadline = started + self.spec.clock.match_s
        status, outcome, error = MatchStatus.FINISHED, self._nothing(), ""
        cause: VoidCause | None = None
        try:
            try:
                outcome = self._play()
            except MatchTimeout:
                status, outcome, error = self._out_of_time()
        except MatchCancelled:
            status, error = MatchStatus.CANCELLED, "the match was cancelled"
        except (GameError, BoxError, WireError) as failure:
            status, error, cause = MatchStatus.VOID, str(failure), cause_of(failure)
        finally:
            for seat in self.seats:
                self._rack.give_back(seat, keep=self.spec.keep)
        result = self._result(status, outcome, error, cause, time.monotonic() - started, started_at)
        self._tell({"type": "finished", "result": result.as_json()})
        return result

    def _out_of_time(self) -> tuple[MatchStatus, Outcome, str]:
        """End the match when its time is over: the seat that alone kept it waiting loses; otherwise there is no
        result."""
        match_s = self.spec.clock.match_s
        stalled = stalling_seat(self.seats, self.spec)
        if stalled is not None:
            number, fault = stalled
            self.seats[number].fault = fault
            return MatchStatus.FINISHED, self._guard(lambda: self.game.forfeit(self._faulty())), ""
        return MatchStatus.TIMEOUT, self._nothing(), f"the match took longer than {match_s:g} s"

    def _nothing(self) -> Outcome:
        return Outcome(tuple(0.0 for _ in range(self.game.seats)), None, "")

    # ---- the game ----

    def _play(self) -> Outcome:
        self._guard(lambda: self.game.reset(self.spec.seed))
        self._sit_down()
        self._tell({"type": "started", "environment": self.game.id, "agents": [code.name for code in self.spec.agents]})
        self._tell_step({}, {})
        if self._faulty() and not self._guard(self._goes_on):
            return self._guard(lambda: self.game.forfeit(self._faulty()))
        return self._moves()

    def _sit_down(self) -> None:
        self.seats += take_seats(self.spec, self._rack, kept=self.spec.keep)
        for _, seat, fault in load_all(self.seats, self.spec, self.game, self._cpus, self._look):
            seat.fault = fault

    def _moves(self) -> Outcome:
        game, seats = self.game, self.seats
        encoders = [game.observation_space(number).encode for number in range(game.seats)]
        decoders = [decoder_of(game.action_space(number)) for number in range(game.seats)]
        record = self._recorder.step if self._recorder else None
        watched = self._on_event is not None
        to_move, observe, step, answers = game.to_move, game.observe, game.step, self._answers
        try:
            while movers := to_move():
                self.steps += 1
                if not self.steps & 63:
                    self._look()
                if self.steps > game.max_steps:
                    raise GameError(f"{game.id}: it should have ended after {game.max_steps} steps")
                if len(movers) == 1:
                    number = movers[0]
                    question = encoders[number](observe(number))
                    self._questions.append(question)
                    answer = self._ask(seats[number], question, decoders[number])
                    raws, actions = ({}, {}) if answer is None else ({number: answer[0]}, {number: answer[1]})
                else:
                    raws, actions = self._all_at_once(movers, encoders, decoders)
                answers += raws.values()
                if len(actions) != len(movers) and not self._goes_on():
                    return game.forfeit(self._faulty())
                try:
                    if len(actions) != len(movers) and set(to_move()) != set(actions):
                        self.steps -= 1  # it is another's turn now, or nobody's
                        continue
                    rewards = step(actions)
                except IllegalAction as illegal:
                    seats[illegal.seat].fault = Fault(SeatStatus.ILLEGAL, illegal.reason)
                    if not self._goes_on():
                        return game.forfeit(self._faulty())
                    self.steps -= 1  # the others are asked again: the position is another one
                    continue
                if record:
                    record(raws, {number: seats[number].last_ns // 1000 for number in raws})
                if watched:
                    self._tell_step(actions, rewards)
            return game.outcome()
        except (MatchCancelled, MatchTimeout, HarenaError):
            raise
        except Exception as error:
            raise GameError(f"{game.id} failed at step {self.steps}: {type(error).__name__}: {error}") from error

    def _all_at_once(
        self, movers: Sequence[int], encoders: Sequence[Any], decoders: Sequence[Any]
    ) -> tuple[dict[int, bytes], dict[int, Any]]:
        """Ask the seats one after the other on their shared processor, each with its observation of the same moment:
        none can take time from another, and none learns what another chose."""
        questions = [encoders[number](self.game.observe(number)) for number in movers]
        self._questions += questions
        raws: dict[int, bytes] = {}
        actions: dict[int, Any] = {}
        for number, question in zip(movers, questions, strict=True):
            if (answer := self._ask(self.seats[number], question, decoders[number])) is not None:
                raws[number], actions[number] = answer
        return raws, actions

    def _ask(self, seat: Seat, question: bytes, decode: Callable[[bytes], Any]) -> tuple[bytes, Any] | None:
        """Return the action, encoded and decoded; None if the seat has a fault now. Every error in here is caused by
        the agent and must never void the match."""
        asked = time.monotonic()
        try:
            seat.ask(question)
            raw = seat.answer(self._deadline, lambda: self._freeze_all_but([seat]))
            return raw, decode(raw)
        except Fault as fault:
            seat.fault = fault
        except spaces.SpaceError as error:
            seat.fault = Fault(SeatStatus.ILLEGAL, str(error))
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            seat.fault = Fault(SeatStatus.PROTOCOL, f"its answer could not be read ({type(error).__name__})")
        finally:
            seat.waited_s += seat.waited_since(asked)
        return None

    def _goes_on(self) -> bool:
        """Whether the others continue without the seats that have a fault now."""
        out = [number for number in self._faulty() if number not in self._withdrawn]
        if not withdraw(self.game, out):
            return False
        self._withdrawn.update(out)
        if self._recorder:
            self._recorder.withdraw(out)
        return True

    def _freeze_all_but(self, movers: Sequence[Seat]) -> None:
        for seat in self.seats:
            if not seat.frozen and seat.fault is None and all(seat is not mover for mover in movers):
                seat.freeze()

    def _faulty(self) -> list[int]:
        return [number for number, seat in enumerate(self.seats) if seat.fault]

    def _guard(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except HarenaError:
            raise
        except Exception as error:
            raise GameError(f"{self.game.id} failed: {type(error).__name__}: {error}") from error

    def _look(self) -> None:
        if self._cancelled is not None and self._cancelled():
            raise MatchCancelled
        if time.monotonic() > self._deadline:
            raise MatchTimeout

    # ---- what others hear ----

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event({"match_id": self.match_id, **event})

    def _tell_step(self, actions: Mapping[int, Any], rewards: Mapping[int, float]) -> None:
        if self._on_event is None:
            return
        game = self.game
        clocks = [
            {"cpu_s": seat.cpu_ns / 1e9, "bank_s": max(0, seat.bank_ns) / 1e9, "moves": seat.moves}
            for seat in self.seats
        ]
        event: Event = {"type": "step", "step": self.steps, "rewards": dict(rewards), "clocks": clocks}
        if not game.hidden:
            shown = {number: game.action_space(number).to_json(action) for number, action in actions.items()}
            event |= {"actions": shown, "view": game.view(), "text": game.text()}
        self._tell(event)

    def _result(
        self,
        status: MatchStatus,
        outcome: Outcome,
        error: str,
        cause: VoidCause | None,
        wall_s: float,
        started_at: float,
    ) -> MatchResult:
        names = [code.name for code in self.spec.agents]
        seats = tuple(
            SeatResult(
                agent=names[number],
                status=seat.fault.status if seat.fault else SeatStatus.OK,
                reason=seat.fault.reason if seat.fault else "",
                score=outcome.scores[number],
                cpu_s=seat.cpu_ns / 1e9,
                moves=seat.moves,
                start_s=seat.start_s,
                log=seat.log(),
            )
            for number, seat in enumerate(self.seats)
        )
        if len(seats) < len(names):  # it was over before all had sat down
            seats += tuple(
                SeatResult(
                    agent=name, status=SeatStatus.OK, reason="", score=0.0, cpu_s=0.0, moves=0, start_s=0.0, log=""
                )
                for name in names[len(seats) :]
            )
        reason = reason_of(outcome, seats)
        recorded = b""
        if self._recorder and status is not MatchStatus.VOID:
            try:
                recorded = self._recorder.finish(
                    winner=outcome.winner,
                    scores=outcome.scores,
                    status=status.value,
                    reason=reason,
                    seats=[(seat.status.value, seat.reason) for seat in seats],
                    started_at=started_at,
                    ended_at=started_at + wall_s,
                    forfeited=self._faulty(),
                )
            except HarenaError as failure:
                status, cause = MatchStatus.VOID, VoidCause.REPLAY
                error = f"the replay could not be made: {failure}"
        played = status is MatchStatus.FINISHED
        identity = fingerprint(b"".join(self._questions), b"".join(self._answers)) if played else ""
        return MatchResult(
            match_id=self.match_id,
            environment=self.game.id,
            seed=self.spec.seed,
            status=status,
            winner=outcome.winner,
            reason=reason,
            steps=self.steps,
            wall_s=wall_s,
            seats=seats,
            error=error,
            replay=recorded,
            fingerprint=identity,
            cause=cause,
        )


def cause_of(failure: HarenaError) -> VoidCause:
    """Why a match that ended in this exception is void."""
    if isinstance(failure, GameError):
        return VoidCause.GAME
    return VoidCause.BOX_LOST if isinstance(failure, BoxLost | BoxClosed | WireError) else VoidCause.NO_BOX


def stalling_seat(seats: Sequence[Seat], spec: MatchSpec) -> tuple[int, Fault] | None:
    """The seat that loses when the match's time has run out, if it alone is to blame."""
    match_s = spec.clock.match_s
    waited = sorted(((seat.waited_s, number) for number, seat in enumerate(seats)), reverse=True)
    if not spec.stalling_loses or len(waited) < 2 or waited[0][0] <= max(match_s / 2, BLAME * waited[1][0]):
        return None
    worst, number = waited[0]
    reason = f"the match has {match_s:g} s, and {worst:.3g} s of them were spent waiting for it"
    return number, Fault(SeatStatus.TIMEOUT, reason)


def reason_of(outcome: Outcome, seats: Sequence[SeatResult]) -> str:
    for seat in reversed(seats):
        if seat.status is not SeatStatus.OK:
            return f"{seat.agent}: {seat.status.value}: {seat.reason}"
    return outcome.reason


def fingerprint(questions: bytes, answers: bytes) -> str:
    """Digest of everything that the seats of a game were asked and answered."""
    return hashlib.blake2b(b"%d\n%b%b" % (len(questions), questions, answers), digest_size=8).hexdigest()


def decoder_of(space: spaces.Space) -> Callable[[bytes], Any]:
    """Return a decoder for untrusted actions: numbers within bounds, no trailing bytes."""
    if isinstance(space, spaces.Box | spaces.Dict | spaces.Tuple):
        return lambda raw: checked(space, raw)
    return space.decode_all


def checked(space: spaces.Space, raw: bytes) -> Any:
    value = space.decode_all(raw)
    space.encode(value)  # bounds and nan of the arrays in it
    return value
