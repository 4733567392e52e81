"""Isolated opponents of a policy that plays in this process: agents of any form, each in its own box behind a clock."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from harena.match.agent import image
from harena.match.game import Game
from harena.match.result import AgentCode, Clock
from harena.match.run.play import Rack, agent_seed
from harena.match.run.seat import Fault, Seat, SeatPlace
from harena.sandbox.spec import Limits

Source = str | os.PathLike[str] | bytes | AgentCode


class IsolatedOpponents:
    """Agents keep their process from one game to the next and get a new agent object for each."""

    def __init__(
        self, game: Game, sources: Mapping[int, Source], *, config: Mapping[str, Any], clock: Clock, limits: Limits
    ) -> None:
        self._game, self._config, self._clock = game, dict(config), clock
        self._codes = {
            seat: source if isinstance(source, AgentCode) else image.load_any(source)
            for seat, source in sources.items()
        }
        self._rack = Rack()
        self._limits = limits
        self._seats: dict[int, Seat] = {}

    def __contains__(self, seat: int) -> bool:
        return seat in self._codes

    def reset(self, seed: int) -> None:
        """Seat all of them for a new game. Raises Fault of `seat`, with its reason, for an agent that cannot play."""
        game, cpus = self._game, os.sched_getaffinity(0)
        for number, code in self._codes.items():
            seat = self._seats.pop(number, None)
            if seat is None or not seat.rest():
                if seat is not None:
                    self._rack.give_back(seat, keep=False)
                seat = self._rack.seat(code, self._limits)
            self._seats[number] = seat
            place = SeatPlace(
                seat=number,
                seats=game.seats,
                environment=game.id,
                observation=game.observation_space(number),
                action=game.action_space(number),
                seed=agent_seed(seed, number),
                stays=True,
                config=self._config,
                clock=self._clock,
            )
            seat.sit(code, place, cpus, lambda: None)
        self._deadline = time.monotonic() + self._clock.match_s
        for seat in self._seats.values():
            seat.ready()

    def act(self, number: int) -> Any:
        """The action of an opponent, decoded by its space. Raises Fault, or SpaceError for an action that is none."""
        seat, game = self._seats[number], self._game
        seat.ask(game.observation_space(number).encode(game.observe(number)))
        data = seat.answer(self._deadline, lambda: None)
        seat.freeze()
        return game.action_space(number).decode_all(data)

    def name(self, number: int) -> str:
        return self._codes[number].name

    def close(self) -> None:
        for seat in self._seats.values():
            self._rack.give_back(seat, keep=False)
        self._seats = {}
        self._rack.close()


__all__ = ["Fault", "IsolatedOpponents", "Source"]
