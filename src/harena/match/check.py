"""Checks a game: plays it at random, repeats it from the same seed, and checks every answer.

    problems = check_game(MyGame)     # or a factory; an empty list means that nothing was found

Only states that random play reaches are checked. The check cannot find observations that reveal another seat's secret,
but it does check that they do not contain the seed.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harena.match import spaces
from harena.match.game import Game, IllegalAction, Outcome

MAX_STEPS_IN_ALL = 6_000
"""No new game is started after this many steps, so that the check stays fast."""
_TRIES = 1000
_LOOKS = 20
"""Outcome, forfeit and text are checked only in the first steps of a game; the view in all of them."""


class _Broken(Exception):
    """The game cannot continue; the problem is recorded."""


@dataclass(slots=True)
class _Trace:
    """Record of a played game, to compare with its repetition."""

    actions: list[dict[int, Any]] = field(default_factory=list[dict[int, Any]])
    states: list[str] = field(default_factory=list[str])


def check_game(factory: Callable[[], Game], *, games: int = 20) -> list[str]:
    """Return every kind of problem once, in the order in which it was found."""
    checker = _Checker(factory)
    with contextlib.suppress(_Broken):
        checker.run(games)
    return list(checker.problems.values())


def action_mask(game: Game, seat: int) -> list[int] | None:
    """1 for each action that is legal for the seat now, in the order of its space: as the game says, or the
    "action_mask" of what the seat sees, or all of them. None if actions are not numbers from a range."""
    actions, seen = game.action_space(seat), game.observation_space(seat)
    if not isinstance(actions, spaces.Discrete):
        return None
    own: Callable[[int], Sequence[int]] | None = getattr(game, "action_mask", None)
    if own is not None:
        return list(own(seat))
    if isinstance(seen, spaces.Dict) and "action_mask" in seen.spaces:
        return [int(bool(one)) for one in seen.decode_all(seen.encode(game.observe(seat)))["action_mask"]]
    return [1] * actions.n


def sample_action(game: Game, seat: int, rng: random.Random) -> Any:
    """Random action of the seat's space, and a legal one if the game or the observation says which are."""
    actions = game.action_space(seat)
    mask = action_mask(game, seat)
    legal = (
        [action for action, allowed in enumerate(mask, cast("spaces.Discrete", actions).start) if allowed]
        if mask
        else []
    )
    return rng.choice(legal) if legal else actions.sample(rng)


class _Checker:
    def __init__(self, factory: Callable[[], Game]) -> None:
        self._factory = factory
        self.problems: dict[str, str] = {}
        self._steps = 0

    def run(self, games: int) -> None:
        game = self._made()
        self._declared(game)
        if self.problems:
            return
        seeds = random.Random(0)
        for _ in range(games):
            seed = seeds.getrandbits(62) | 1 << 61
            trace = self._play(game, seed, random.Random(seed))
            self._same_again(game, seed, trace, "the same object, reset")
            self._same_again(self._made(), seed, trace, "a new object")
            if self._steps > MAX_STEPS_IN_ALL:
                return

    def _note(self, problem: str, kind: str = "") -> None:
        self.problems.setdefault(kind or problem, problem)

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except IllegalAction:
            raise
        except Exception as error:
            self._note(f"{what} raised {type(error).__name__}: {error}")
            raise _Broken from error

    def _made(self) -> Game:
        return self._call("the factory", self._factory)

    # --- what it declares

    def _declared(self, game: Game) -> None:
        for name in ("id", "seats", "simultaneous", "max_steps", "hidden"):
            if not hasattr(game, name):
                self._note(f"it has no `{name}`")
        for name in (
            "observation_space",
            "action_space",
            "reset",
            "to_move",
            "observe",
            "step",
            "outcome",
            "forfeit",
            "view",
            "text",
        ):
            if not callable(getattr(game, name, None)):
                self._note(f"it has no method {name}()")
        if self.problems:
            return
        if type(game.id) is not str or not re.search(r"-v\d+$|[/:]", game.id):
            self._note(f'id is {game.id!r}: a text with a version is expected, like "name-v1"')
        for name, value in (("simultaneous", game.simultaneous), ("hidden", game.hidden)):
            if type(value) is not bool:
                self._note(f"{name} is {value!r}: True or False is expected")
        for name, value in (("seats", game.seats), ("max_steps", game.max_steps)):
            if type(value) is not int or value < 1:
                self._note(f"{name} is {value!r}: a whole number from 1 on is expected")
        if not self.problems:
            self._declared_spaces(game)

    def _declared_spaces(self, game: Game) -> None:
        for seat in range(game.seats):
            for name, of in (("observation_space", game.observation_space), ("action_space", game.action_space)):
                space = self._call(f"{name}({seat})", lambda of=of, seat=seat: of(seat))
                if not isinstance(space, spaces.Space):
                    self._note(f"{name}({seat}) is {space!r:.80}: a space of harena.match.spaces is expected")

    # --- one game

    def _play(self, game: Game, seed: int, rng: random.Random) -> _Trace:
        trace = _Trace()
        self._call("reset()", lambda: game.reset(seed))
        while moving := self._moving(game):
            if len(trace.actions) == game.max_steps:
                self._note(f"it has not ended after max_steps={game.max_steps} steps")
                raise _Broken
            state = self._state(game, seed)
            trace.states.append(state)
            if len(trace.actions) < _LOOKS:
                self._harmless(game, state, seed)
            actions = self._step_at_random(game, moving, state, seed, rng)
            trace.actions.append(actions)
            self._steps += 1
        trace.states.append(self._state(game, seed))
        self._ended(game)
        return trace

    def _moving(self, game: Game) -> list[int]:
        moving = list(self._call("to_move()", game.to_move))
        if any(type(seat) is not int or not 0 <= seat < game.seats for seat in moving):
            self._note(f"to_move() is {moving}: the game has {game.seats} seats, numbered from 0")
            raise _Broken
        if len(set(moving)) != len(moving):
            self._note(f"to_move() names a seat twice: {moving}")
            raise _Broken
        if len(moving) > 1 and not game.simultaneous:
            self._note(f"to_move() is {moving}, but the game is not simultaneous: one seat is expected")
            raise _Broken
        return moving

    def _state(self, game: Game, seed: int) -> str:
        """Everything visible of a game, as text for comparison."""
        seen = [self._observed(game, seat, seed).hex() for seat in range(game.seats)]
        return json.dumps([list(self._call("to_move()", game.to_move)), seen, self._viewed(game, seed)])

    def _observed(self, game: Game, seat: int, seed: int) -> bytes:
        space = game.observation_space(seat)
        value = self._call(f"observe({seat})", lambda: game.observe(seat))
        try:
            data = space.encode(value)
            space.encode(space.decode_all(data))  # bytes are passed on as they are: look inside
        except spaces.SpaceError as error:
            self._note(f"observe({seat}) is not in its space: {error}")
            raise _Broken from error
        if seed.to_bytes(8, "little") in data or seed.to_bytes(8, "big") in data or str(seed).encode() in data:
            self._note(f"observe({seat}) holds the seed")
        return data

    def _viewed(self, game: Game, seed: int) -> Any:
        view = self._call("view()", game.view)
        try:
            text = json.dumps(view, allow_nan=False)
        except (TypeError, ValueError) as error:
            self._note(f"view() is not JSON data: {error}")
            return None
        if not isinstance(view, dict):
            self._note(f"view() is a {type(view).__name__}: a dict is expected")
        elif json.loads(text) != view:
            self._note("view() does not read back as it was written: JSON has text keys and lists only")
        if not game.hidden and str(seed) in text:
            self._note("view() holds the seed, and is shown while the game runs")
        return json.loads(text)

    def _harmless(self, game: Game, state: str, seed: int) -> None:
        """Check that read-only methods change nothing."""
        text = self._call("text()", game.text)
        if not isinstance(text, str):
            self._note(f"text() is a {type(text).__name__}: a text is expected")
        for losers in ([0], list(range(game.seats))):
            outcome = self._call(f"forfeit({losers})", lambda losers=losers: game.forfeit(losers))
            if self._proper(game, outcome, "forfeit()") and outcome.winner in losers:
                self._note(f"forfeit({losers}) names seat {outcome.winner} the winner")
        with contextlib.suppress(Exception):  # before the end it may refuse
            game.outcome()
        if self._state(game, seed) != state:
            self._note("observe(), view(), text(), forfeit() or outcome() changed the game before its end")

    def _step_at_random(
        self, game: Game, moving: list[int], state: str, seed: int, rng: random.Random
    ) -> dict[int, Any]:
        actions = {seat: sample_action(game, seat, rng) for seat in moving}
        for _ in range(_TRIES):
            try:
                rewards = self._call("step()", lambda: game.step(dict(actions)))
            except IllegalAction as error:
                if error.seat not in moving:
                    self._note(f"IllegalAction names seat {error.seat}, which is not to move")
                    raise _Broken from error
                if self._state(game, seed) != state:
                    self._note("step() changed the game although it raised IllegalAction")
                    raise _Broken from error
                actions[error.seat] = sample_action(game, error.seat, rng)
            else:
                self._rewarded(game, rewards)
                return actions
        self._note(f"no legal action found at random in {_TRIES} tries")
        raise _Broken

    def _rewarded(self, game: Game, rewards: Any) -> None:
        if not isinstance(rewards, Mapping):
            self._note(f"step() returned a {type(rewards).__name__}: rewards by seat are expected")
            raise _Broken
        for seat, reward in cast(Mapping[Any, Any], rewards).items():
            if seat not in range(game.seats):
                self._note(f"step() rewards seat {seat!r}, which the game does not have")
            if not _number(reward):
                self._note(f"step() gave the reward {reward!r:.40}: a finite number is expected")

    def _ended(self, game: Game) -> None:
        outcome = self._call("outcome()", game.outcome)
        if not self._proper(game, outcome, "outcome()"):
            return
        if outcome.winner is not None and outcome.scores[outcome.winner] < max(outcome.scores):
            self._note("outcome() names a winner who has not the best score")
        if self._call("outcome()", game.outcome) != outcome:
            self._note("outcome() is not the same when it is asked twice")

    def _proper(self, game: Game, outcome: Any, what: str) -> bool:
        if not isinstance(outcome, Outcome):
            self._note(f"{what} is a {type(outcome).__name__}: an Outcome is expected")
        elif len(outcome.scores) != game.seats:
            self._note(f"{what} has {len(outcome.scores)} scores for {game.seats} seats")
        elif not all(_number(score) for score in outcome.scores):
            self._note(f"{what} has scores {outcome.scores}: finite numbers are expected")
        elif outcome.winner is not None and outcome.winner not in range(game.seats):
            self._note(f"{what} names seat {outcome.winner!r} the winner, which the game does not have")
        else:
            return True
        return False

    # --- the same game again

    def _same_again(self, game: Game, seed: int, trace: _Trace, who: str) -> None:
        self._call("reset()", lambda: game.reset(seed))
        for step, state in enumerate(trace.states):
            if self._state(game, seed) != state:
                same = f"not the same game from the same seed and actions ({who})"
                self._note(f"{same}: it differs after {step} steps", kind=same)
                return
            if step < len(trace.actions):
                try:
                    self._call("step()", lambda step=step: game.step(dict(trace.actions[step])))
                except IllegalAction:
                    self._note(f"an action was legal once and illegal from the same seed ({who})")
                    return


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
