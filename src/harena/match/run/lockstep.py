"""Plays many games of the same agents at once, for evaluation. The observations of all games that wait for a seat are
sent in one packet, and its actions come back in one.

Guarantee: the games are the same as when played one at a time, move for move. Each has its own seed, agent object and
random numbers. Differences occur only if an agent misbehaves: an illegal action loses that game, but an agent that
crashes, or is too slow for a batch, loses all that still run; where it has `act_batch`, which one object answers for
all games; and where its modules remember.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from harena.errors import BoxError, SpecError, WireError
from harena.match import registry, spaces
from harena.match.game import Game, GameError, IllegalAction, Outcome, withdraw
from harena.match.replay import replay
from harena.match.result import MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus, VoidCause
from harena.match.run.play import (
    MatchCancelled,
    Rack,
    cause_of,
    checked,
    fingerprint,
    load_all,
    reason_of,
    stalling_seat,
    take_seats,
)
from harena.match.run.seat import Fault, MatchTimeout, Seat

MAX_GAMES = 4096


def evaluate(
    spec: MatchSpec,
    seeds: Sequence[int],
    *,
    rack: Rack | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> list[MatchResult]:
    """Return one result per seed, in their order. `spec.seed` and `spec.keep` are ignored."""
    if not 1 <= len(seeds) <= MAX_GAMES:
        raise SpecError(f"lockstep: from 1 to {MAX_GAMES} games at once, not {len(seeds)}")
    if any(code.speaks_lines for code in spec.agents):
        raise SpecError("lockstep: agents that are commands or images play one game at a time")
    environment = registry.resolve(spec.environment)
    games = [registry.make(environment, spec.config) for _ in seeds]
    if len(spec.agents) != games[0].seats:
        raise SpecError(f"{games[0].id} has {games[0].seats} seats; {len(spec.agents)} agents were given")
    with contextlib.ExitStack() as stack:
        rack = rack or stack.enter_context(Rack())
        return Lockstep(spec, seeds, games, rack, cancelled).run()


class Lockstep:
    def __init__(
        self,
        spec: MatchSpec,
        seeds: Sequence[int],
        games: list[Game],
        rack: Rack,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.spec = spec
        self._seeds = seeds
        self.games = games
        self._rack = rack
        self._cancelled = cancelled
        self.seats: list[Seat] = []
        self._gone: set[int] = set()
        self.steps = [0] * len(games)
        self.questions: list[list[bytes]] = [[] for _ in games]
        self.actions: list[list[Any]] = [[] for _ in games]
        """Numbers if all spaces are discrete, otherwise bytes."""
        self.moved: list[list[int]] = [[] for _ in range(games[0].seats)]
        """The game of every move that each seat made."""
        self.outcomes: list[Outcome | None] = [None] * len(games)
        self.faults: list[dict[int, Fault]] = [{} for _ in games]
        self.deadline = time.monotonic() + spec.clock.match_s
        self.recorders: list[replay.ReplayRecorder] = []
        if spec.record:
            self.recorders = [
                replay.ReplayRecorder(
                    game,
                    environment=game.id,
                    seed=seed,
                    config=dict(spec.config),
                    match_id=uuid.uuid4().hex[:12],
                    agents=[code.name for code in spec.agents],
                )
                for game, seed in zip(games, seeds, strict=True)
            ]

    def run(self) -> list[MatchResult]:
        started, started_at = time.monotonic(), time.time()
        status, error = MatchStatus.FINISHED, ""
        self._cause: VoidCause | None = None
        try:
            for game, seed in zip(self.games, self._seeds, strict=True):
                game.reset(seed)
            self._sit_down()
            self._play()
        except MatchTimeout:
            status, error = MatchStatus.TIMEOUT, f"the games took longer than {self.spec.clock.match_s:g} s together"
            stalled = stalling_seat(self.seats, self.spec)
            if stalled is not None:
                self.lose_all(*stalled, last=True)
        except MatchCancelled:
            status, error = MatchStatus.CANCELLED, "the games were cancelled"
        except (GameError, BoxError, WireError) as failure:
            status, error, self._cause = MatchStatus.VOID, str(failure), cause_of(failure)
        finally:
            for seat in self.seats:
                self._rack.give_back(seat, keep=False)
        wall_s = time.monotonic() - started
        self._moves = [Counter(moved) for moved in self.moved]
        self._logs = [seat.log() for seat in self.seats]
        times = started_at, wall_s / len(self.games)
        return [self._result(at, status, error, *times) for at in range(len(self.games))]

    def _sit_down(self) -> None:
        self.seats += take_seats(self.spec, self._rack, kept=False)
        everywhere = os.sched_getaffinity(0)
        for number, _, fault in load_all(self.seats, self.spec, self.games[0], everywhere, self._look, self._seeds):
            self.lose_all(number, fault)

    def _play(self) -> None:
        """Play in two halves: while the agents compute moves for one, the games of the other advance here."""
        running = [at for at, outcome in enumerate(self.outcomes) if outcome is None]
        halves = [Half(self, running[0::2]), Half(self, running[1::2])]
        for half in halves:
            half.ask()
        while any(half.running for half in halves):
            self._look()
            for half in halves:
                half.go_on()

    def lose_all(self, number: int, fault: Fault, *, last: bool = False) -> None:
        """Remove the seat from all running games. They end if `last` says so or if the game cannot continue."""
        self._gone.add(number)
        for at in range(len(self.games)):
            if self.outcomes[at] is None:
                self.take_out(at, number, fault, last=last)

    def take_out(self, at: int, number: int, fault: Fault, *, last: bool = False) -> bool:
        """Remove a seat. Returns whether the game continues without it, or is over by its own rules."""
        game = self.games[at]
        self.faults[at][number] = fault
        if last or not withdraw(game, [number]):
            self.outcomes[at] = game.forfeit([*self.faults[at]])
            return False
        if self.recorders:
            self.recorders[at].withdraw([number])
        if not game.to_move():
            self.outcomes[at] = game.outcome()
        return True

    def lost(self, number: int) -> bool:
        return number in self._gone

    def _look(self) -> None:
        if self._cancelled is not None and self._cancelled():
            raise MatchCancelled
        if time.monotonic() > self.deadline:
            raise MatchTimeout

    def _result(self, at: int, status: MatchStatus, error: str, started_at: float, wall_s: float) -> MatchResult:
        game, faults = self.games[at], self.faults[at]
        outcome = self.outcomes[at]
        if outcome is None:
            outcome = Outcome(tuple(0.0 for _ in range(game.seats)), None, "")
        elif status is not MatchStatus.VOID:
            status, error = MatchStatus.FINISHED, ""  # this one had ended before the others were stopped
        seats = tuple(self._seat_result(at, number, outcome) for number in range(game.seats))
        reason = reason_of(outcome, seats)
        recorded = b""
        if self.recorders and status is not MatchStatus.VOID:
            recorded = self.recorders[at].finish(
                winner=outcome.winner,
                scores=outcome.scores,
                status=status.value,
                reason=reason,
                seats=[(seat.status.value, seat.reason) for seat in seats],
                started_at=started_at,
                ended_at=started_at + wall_s,
                forfeited=sorted(faults),
            )
        return MatchResult(
            match_id="",
            environment=game.id,
            seed=self._seeds[at],
            status=status,
            winner=outcome.winner,
            reason=reason,
            steps=self.steps[at],
            wall_s=wall_s,
            seats=seats,
            error=error,
            replay=recorded,
            fingerprint=self._fingerprint(at) if status is MatchStatus.FINISHED else "",
            cause=self._cause,
        )

    def _fingerprint(self, at: int) -> str:
        actions = self.actions[at]
        discrete = bool(actions) and isinstance(actions[0], int)
        answers = array("q", actions).tobytes() if discrete else b"".join(actions)
        return fingerprint(b"".join(self.questions[at]), answers)

    def _seat_result(self, at: int, number: int, outcome: Outcome) -> SeatResult:
        seat = self.seats[number] if number < len(self.seats) else None
        fault = self.faults[at].get(number)
        moves = self._moves[number][at]
        cpu_s = seat.cpu_ns / 1e9 if seat else 0.0
        return SeatResult(
            agent=self.spec.agents[number].name,
            status=fault.status if fault else SeatStatus.OK,
            reason=fault.reason if fault else "",
            score=outcome.scores[number],
            cpu_s=cpu_s * moves / max(1, len(self.moved[number])),
            moves=moves,
            start_s=seat.start_s if seat else 0.0,
            log=self._logs[number] if seat else "",
        )


class Half:
    """Half of the games, and the pending requests to the seats."""

    def __init__(self, whole: Lockstep, running: list[int]) -> None:
        self.running = running
        self._whole = whole
        game = whole.games[0]
        self._encode = [game.observation_space(number).encode for number in range(game.seats)]
        self._decode = [many_decoder(game.action_space(number)) for number in range(game.seats)]
        actions = [game.action_space(number) for number in range(game.seats)]
        self._pack = [space.encode for space in actions]
        self._discrete = all(isinstance(space, spaces.Discrete) for space in actions)
        self._waiting: list[list[int]] = []
        self._share_us = [0] * game.seats

    def ask(self) -> None:
        games, seats = self._whole.games, self._whole.seats
        self._waiting = [[] for _ in seats]
        for at in self.running:
            for number in games[at].to_move():
                self._waiting[number].append(at)
        asked = self._whole.questions
        for number, waiting in enumerate(self._waiting):
            if waiting:
                encode = self._encode[number]
                questions = [encode(games[at].observe(number)) for at in waiting]
                for at, question in zip(waiting, questions, strict=True):
                    asked[at].append(question)
                seats[number].ask_batch(waiting, questions)

    def go_on(self) -> None:
        whole, outcomes = self._whole, self._whole.outcomes
        actions: dict[int, dict[int, Any]] = {at: {} for at in self.running}
        for number, waiting in enumerate(self._waiting):
            if waiting and not whole.lost(number):
                self._take(number, waiting, actions)
        for at in self.running:
            if outcomes[at] is None:
                self._step(at, actions[at])
        self.running = [at for at in self.running if outcomes[at] is None]
        self.ask()

    def _take(self, number: int, waiting: list[int], actions: dict[int, dict[int, Any]]) -> None:
        whole, seat = self._whole, self._whole.seats[number]
        asked = time.monotonic()
        try:
            answers = self._decode[number](seat.answer_batch(whole.deadline), len(waiting))
        except Fault as fault:
            return whole.lose_all(number, fault)
        except spaces.SpaceError as error:
            return whole.lose_all(number, Fault(SeatStatus.ILLEGAL, str(error)))
        finally:
            seat.waited_s += seat.waited_since(asked)
        self._share_us[number] = seat.last_ns // len(waiting) // 1000
        whole.moved[number] += waiting
        taken = whole.actions
        if self._discrete:
            for at, action in zip(waiting, answers, strict=True):
                actions[at][number] = action
                taken[at].append(action)
        else:
            for at, action in zip(waiting, answers, strict=True):
                actions[at][number] = action
                taken[at].append(self._pack[number](action))
        return None

    def _step(self, at: int, actions: dict[int, Any]) -> None:
        whole, game = self._whole, self._whole.games[at]
        try:
            if whole.faults[at] and set(game.to_move()) != set(actions):
                return  # somebody was taken out: it is another's turn
            game.step(actions)
            whole.steps[at] += 1
            if whole.recorders:
                raws = {number: self._pack[number](action) for number, action in actions.items()}
                whole.recorders[at].step(raws, {number: self._share_us[number] for number in raws})
            if not game.to_move():
                whole.outcomes[at] = game.outcome()
            elif whole.steps[at] > game.max_steps:
                raise GameError(f"{game.id}: it should have ended after {game.max_steps} steps")
        except IllegalAction as illegal:
            if not whole.take_out(at, illegal.seat, Fault(SeatStatus.ILLEGAL, illegal.reason)):
                whole.steps[at] += 1  # as one by one: the step that was not made counts
        except GameError:
            raise
        except Exception as error:
            raise GameError(f"{game.id} failed: {type(error).__name__}: {error}") from error


def many_decoder(space: spaces.Space) -> Callable[[bytes, int], Sequence[Any]]:
    """Return a decoder for a number of actions, which must all be in the space."""
    if isinstance(space, spaces.Discrete):
        return lambda data, count: _numbers(data, count, space)

    def decode(data: bytes, count: int) -> list[Any]:
        values: list[Any] = []
        at = 0
        for _ in range(count):
            start = at
            _, at = space.decode(data, at)
            values.append(checked(space, data[start:at]))
        if at != len(data):
            raise spaces.SpaceError("more actions than were asked for")
        return values

    return decode


def _numbers(data: bytes, count: int, space: spaces.Discrete) -> Sequence[int]:
    if len(data) != 8 * count:
        raise spaces.SpaceError(f"{len(data) // 8} actions; expected {count}")
    numbers = array("q", data)
    if min(numbers) < space.start or max(numbers) >= space.start + space.n:
        raise spaces.SpaceError(f"an action out of range; expected {space.start} to {space.start + space.n - 1}")
    return numbers
