"""Leduc hold'em: the smallest poker worth playing, many hands in a row so that skill shows.

Six cards (jack, queen, king, twice each). Both put in one chip and get a card; a round of betting (raises of 2), a card
for the board, another round (raises of 4), at most two raises a round. A pair with the board wins, else the higher
card; equal cards split. The seats take turns at speaking first. A fold with nothing to pay counts as a check, a raise
beyond the second as a call. What is hidden: the other's card until it is shown at the end, and the cards to come.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from harena.match.game import BaseGame, Outcome
from harena.match.games import settings
from harena.match.spaces import Dict, Discrete, MultiDiscrete

FOLD, CALL, RAISE = 0, 1, 2
NONE = 3
"""Stands for a card that is not there, or not shown."""
_CARDS = "JQK-"
_ACTIONS = ("fold", "call", "raise")
_RAISES = (2, 4)
_MOST = 1 + 2 * 2 + 2 * 4
_SLOTS = 4  # the longest round: check, raise, raise, call
_NO_REWARDS: Mapping[int, float] = {}


class Leduc(BaseGame):
    """Leduc hold'em poker with hidden cards; config hands (100)."""

    id: ClassVar[str] = "leduc-v1"
    hidden = True

    def __init__(self, *, hands: int = 100) -> None:
        self._hands = settings.whole("hands", hands, 1, 10_000)
        self.max_steps = hands * 2 * _SLOTS
        most = _MOST * hands
        self._observation = Dict(
            {
                "hand": Discrete(hands + 1),
                "first": Discrete(2),
                "round": Discrete(2),
                "card": Discrete(3),
                "board": Discrete(4),
                "paid": Discrete(_MOST + 1),
                "their_paid": Discrete(_MOST + 1),
                "history": MultiDiscrete([4] * 2 * _SLOTS),
                "chips": Discrete(2 * most + 1, -most),
                "last_shown": Discrete(4),
                "last_won": Discrete(2 * _MOST + 1, -_MOST),
            }
        )
        self._action = Discrete(3)
        self.reset(0)

    def observation_space(self, seat: int) -> Dict:
        """`first`: 1 for who speaks first in this hand. Cards: 0 jack, 1 queen, 2 king, 3 none. `history`: four places
        for each round, 0 nothing yet, else the action plus one. `last_*`: the hand before, with the card the other
        showed."""
        return self._observation

    def action_space(self, seat: int) -> Discrete:
        return self._action

    def reset(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._hand = 0
        self._chips = [0, 0]
        self._previous: dict[str, Any] | None = None
        self._last_shown = [NONE, NONE]
        self._last_won = [0, 0]
        self._deal()

    def _deal(self) -> None:
        deck = [0, 0, 1, 1, 2, 2]
        draw = self._rng.random
        self._cards = [deck.pop(int(draw() * 6)), deck.pop(int(draw() * 5))]
        self._next_board = deck[int(draw() * 4)]
        self._board = NONE
        self._first = self._hand & 1
        self._paid = [1, 1]
        self._history: tuple[list[int], list[int]] = ([], [])
        self._round = 0
        self._turn = self._first

    def to_move(self) -> Sequence[int]:
        return (self._turn,) if self._hand < self._hands else ()

    def observe(self, seat: int) -> dict[str, Any]:
        history: list[int] = []
        for actions in self._history:
            history += [action + 1 for action in actions] + [0] * (_SLOTS - len(actions))
        return {
            "hand": self._hand,
            "first": int(self._first == seat),
            "round": self._round,
            "card": self._cards[seat],
            "board": self._board,
            "paid": self._paid[seat],
            "their_paid": self._paid[1 - seat],
            "history": history,
            "chips": self._chips[seat],
            "last_shown": self._last_shown[1 - seat],
            "last_won": self._last_won[seat],
        }

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        seat, other = self._turn, 1 - self._turn
        said = self._history[self._round]
        owed = self._paid[other] - self._paid[seat]
        action = self._effective(actions[seat], owed, said)
        said.append(action)
        if action == FOLD:
            return self._settle(other, shown=False)
        self._paid[seat] += owed
        if action == RAISE:
            self._paid[seat] += _RAISES[self._round]
        elif len(said) > 1:  # a call, or the second check: the round is over
            return self._next_round()
        self._turn = other
        return _NO_REWARDS

    def _effective(self, action: int, owed: int, said: list[int]) -> int:
        if (action == FOLD and not owed) or (action == RAISE and said.count(RAISE) == 2):
            return CALL
        return action

    def _next_round(self) -> Mapping[int, float]:
        if self._round == 1:
            return self._settle(self._best(), shown=True)
        self._round = 1
        self._board = self._next_board
        self._turn = self._first
        return _NO_REWARDS

    def _best(self) -> int | None:
        one, two = self._cards
        if one == two:
            return None
        if self._board in (one, two):
            return 0 if self._board == one else 1
        return 0 if one > two else 1

    def _settle(self, winner: int | None, *, shown: bool) -> Mapping[int, float]:
        won = [0, 0]
        if winner is not None:
            won[winner] = self._paid[1 - winner]
            won[1 - winner] = -self._paid[1 - winner]
        for seat in (0, 1):
            self._chips[seat] += won[seat]
        self._last_shown = list(self._cards) if shown else [NONE, NONE]
        self._last_won = won
        self._previous = {**self._table(), "won": list(won), "shown": shown}
        self._hand += 1
        if self._hand < self._hands:
            self._deal()
        return {0: float(won[0]), 1: float(won[1])}

    def outcome(self) -> Outcome:
        one, two = self._chips
        winner = None if one == two else int(two > one)
        reason = f"{abs(one)} chips after {self._hands} hands"
        return Outcome((float(one), float(two)), winner, reason)

    def _table(self) -> dict[str, Any]:
        return {
            "hand": self._hand,
            "first": self._first,
            "round": self._round,
            "cards": [_CARDS[card] for card in self._cards],
            "board": None if self._board == NONE else _CARDS[self._board],
            "bets": list(self._paid),
            "pot": sum(self._paid),
            "history": [[_ACTIONS[action] for action in actions] for actions in self._history],
        }

    def view(self) -> dict[str, Any]:
        """The table now (cards as J, Q, K), the chips, and in `previous` how the hand before ended."""
        return {
            **self._table(),
            "hands": self._hands,
            "chips": list(self._chips),
            "to_move": list(self.to_move()),
            "previous": self._previous,
        }

    def text(self) -> str:
        lines = [f"hand {min(self._hand + 1, self._hands)} of {self._hands}   pot {sum(self._paid)}"]
        lines.append(f"board  [{_CARDS[self._board]}]")
        for seat in (0, 1):
            turn = "  <" if seat in self.to_move() else ""
            lines.append(
                f"seat {seat} [{_CARDS[self._cards[seat]]}]  bet {self._paid[seat]:2}"
                f"  chips {self._chips[seat]:+}{turn}"
            )
        words = " | ".join(", ".join(_ACTIONS[action] for action in actions) for actions in self._history if actions)
        return "\n".join([*lines, words or "-"])
