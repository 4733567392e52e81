"""OpenSpiel games. Chance is drawn here from the seed. A seat sees its information state (or, where the game has none,
its observation) as numbers, and which actions are legal: {"observation": float32[...], "action_mask": int8[n]}.

Scores are the returns. Games whose chance is drawn inside OpenSpiel are refused: no seed of ours repeats them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harena.errors import SpecError
from harena.match import registry, spaces
from harena.match.game import IllegalAction, Outcome, forfeited

try:
    import numpy as np
    import pyspiel  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    raise registry.MissingExtra("an OpenSpiel game", "open_spiel", "openspiel") from error

from harena.match.adapters import options

_spiel: Any = pyspiel
_ID = re.compile(r"[a-z0-9_]+", re.ASCII)


def resolve(name: str) -> str:
    known: list[str] = _spiel.registered_names()
    if not _ID.fullmatch(name) or name not in known:
        raise registry.unknown(name, known)
    return f"openspiel/{name}"


def names() -> list[str]:
    """Names of the games that this adapter can play."""
    good: list[str] = []
    for kind in _spiel.registered_games():
        try:
            _check(kind.short_name, kind)
        except SpecError:
            continue
        if kind.default_loadable:
            good.append(kind.short_name)
    return sorted(good)


def wrap(game_id: str, game: Any) -> OpenSpielGame | None:
    """A game of one that somebody else loaded; None if it is none."""
    return OpenSpielGame(game_id, game) if isinstance(game, _spiel.Game) else None


def make(name: str, config: Mapping[str, Any]) -> OpenSpielGame:
    game_id = resolve(name)
    kind = next(kind for kind in _spiel.registered_games() if kind.short_name == name)
    allowed: dict[str, Any] = {
        key: value for key, value in dict(kind.parameter_specification).items() if isinstance(value, bool | int | float)
    }
    chosen = options.checked(game_id, config, allowed)
    try:
        return OpenSpielGame(game_id, _spiel.load_game(name, chosen))
    except _spiel.SpielError as error:
        raise SpecError(f"{game_id}: {error}") from error


def _check(game_id: str, kind: Any) -> None:
    if kind.dynamics == _spiel.GameType.Dynamics.MEAN_FIELD:
        raise SpecError(f"{game_id}: mean field games are not supported")
    if kind.chance_mode == _spiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        raise SpecError(f"{game_id}: its chance is drawn inside OpenSpiel, not from the seed")
    if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        raise SpecError(f"{game_id}: it gives no tensor of what a player sees")


class OpenSpielGame:
    """An OpenSpiel game."""

    def __init__(self, game_id: str, game: Any) -> None:
        kind = game.get_type()
        _check(game_id, kind)
        self.id = game_id
        self.summary = f"OpenSpiel's {kind.long_name}"
        self.seats = int(game.num_players())
        self.simultaneous = kind.dynamics == _spiel.GameType.Dynamics.SIMULTANEOUS
        self.hidden = kind.information != _spiel.GameType.Information.PERFECT_INFORMATION
        self.max_steps = int(game.max_game_length())
        self._game = game
        self._information = bool(kind.provides_information_state_tensor)
        shape = game.information_state_tensor_shape() if self._information else game.observation_tensor_shape()
        self._shape = tuple(int(size) for size in shape)
        count = int(game.num_distinct_actions())
        self._observation = spaces.Dict(
            {"observation": spaces.Box(self._shape, "float32"), "action_mask": spaces.Box((count,), "int8", 0, 1)}
        )
        self._action = spaces.Discrete(count)
        self.reset(0)

    def observation_space(self, seat: int) -> spaces.Dict:
        return self._observation

    def action_space(self, seat: int) -> spaces.Discrete:
        return self._action

    def reset(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._state = self._game.new_initial_state()
        self._steps = 0
        self._chance()

    def _chance(self) -> None:
        while self._state.is_chance_node():
            at = self._rng.random()
            outcomes = self._state.chance_outcomes()
            chosen = outcomes[-1][0]
            for outcome, probability in outcomes:
                at -= probability
                if at < 0:
                    chosen = outcome
                    break
            self._state.apply_action(chosen)

    def to_move(self) -> Sequence[int]:
        state = self._state
        if state.is_terminal():
            return ()
        if not state.is_simultaneous_node():
            return (state.current_player(),)
        return [seat for seat in range(self.seats) if state.legal_actions(seat)]

    def observe(self, seat: int) -> dict[str, bytes]:
        state = self._state
        seen = state.information_state_tensor(seat) if self._information else state.observation_tensor(seat)
        mask = bytearray(self._action.n)
        if seat in self.to_move():
            for action in state.legal_actions(seat):
                mask[action] = 1
        return {"observation": np.asarray(seen, "float32").tobytes(), "action_mask": bytes(mask)}

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        state, moving = self._state, self.to_move()
        for seat in moving:
            if actions[seat] not in state.legal_actions(seat):
                raise IllegalAction(seat, f"{actions[seat]} is not legal here")
        before = self._returns()
        if state.is_simultaneous_node():
            state.apply_actions([int(actions.get(seat, 0)) for seat in range(self.seats)])
        else:
            state.apply_action(int(actions[moving[0]]))
        self._steps += 1
        self._chance()
        changes = zip(before, self._returns(), strict=True)
        return {seat: after - earlier for seat, (earlier, after) in enumerate(changes) if after != earlier}

    def _returns(self) -> list[float]:
        return [float(value) for value in self._state.returns()]

    def outcome(self) -> Outcome:
        scores = self._returns()
        leaders = [seat for seat, score in enumerate(scores) if score == max(scores)]
        winner = leaders[0] if len(leaders) == 1 and self.seats > 1 else None
        return Outcome(tuple(scores), winner, "the game ended")

    def forfeit(self, losers: Sequence[int]) -> Outcome:
        return forfeited(self.seats, losers)

    def view(self) -> dict[str, Any]:
        return {
            "state": str(self._state),
            "to_move": list(self.to_move()),
            "scores": self._returns(),
            "step": self._steps,
        }

    def text(self) -> str:
        return str(self._state)
