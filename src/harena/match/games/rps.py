"""Rock, paper, scissors, over and over. Both seats choose at once; each sees what was shown the round before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harena.match.game import BaseGame, Outcome
from harena.match.games import settings
from harena.match.spaces import Dict, Discrete

NAMES = ("rock", "paper", "scissors")
NOTHING_YET = 3
_BOTH = (0, 1)
_RESULTS: tuple[Mapping[int, float], ...] = ({}, {0: 1.0, 1: -1.0}, {0: -1.0, 1: 1.0})


class RockPaperScissors(BaseGame):
    """Rock (0), paper (1), scissors (2), repeated; config rounds (100)."""

    id: ClassVar[str] = "rps-v1"
    simultaneous = True

    def __init__(self, *, rounds: int = 100) -> None:
        self.max_steps = settings.whole("rounds", rounds, 1, 10_000)
        moves = {"mine": Discrete(4), "theirs": Discrete(4)}
        self._observation = Dict({"round": Discrete(rounds + 1), **moves})
        self._action = Discrete(3)
        self.reset(0)

    def observation_space(self, seat: int) -> Dict:
        return self._observation

    def action_space(self, seat: int) -> Discrete:
        return self._action

    def reset(self, seed: int) -> None:
        self._round = 0
        self._wins = [0, 0]
        self._last = (NOTHING_YET, NOTHING_YET)

    def to_move(self) -> Sequence[int]:
        return _BOTH if self._round < self.max_steps else ()

    def observe(self, seat: int) -> dict[str, int]:
        return {"round": self._round, "mine": self._last[seat], "theirs": self._last[1 - seat]}

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        one: int = actions[0]
        two: int = actions[1]
        self._last = (one, two)
        self._round += 1
        result = (one - two) % 3  # 1: the first beats the second
        if result:
            self._wins[result - 1] += 1
        return _RESULTS[result]

    def outcome(self) -> Outcome:
        one, two = self._wins
        winner = None if one == two else int(two > one)
        return Outcome((float(one), float(two)), winner, f"{one} to {two} of {self.max_steps} rounds")

    def view(self) -> dict[str, Any]:
        """`last`: what each seat showed in the last round, null before the first."""
        return {
            "round": self._round,
            "rounds": self.max_steps,
            "last": None if self._round == 0 else [NAMES[move] for move in self._last],
            "wins": list(self._wins),
        }

    def text(self) -> str:
        shown = "  vs  ".join(NAMES[move] for move in self._last) if self._round else "-"
        return f"round {self._round} of {self.max_steps}:  {shown}\n{self._wins[0]} : {self._wins[1]}"
