"""The checker names each breach of the game contract. One small broken game for each."""

from __future__ import annotations

import itertools
import random

import pytest

from harena.match.check import check_game, sample_action
from harena.match.game import BaseGame, IllegalAction, Outcome
from harena.match.spaces import Box, Dict, Discrete


class Coins(BaseGame):
    """A sound game to break: in turns, guess which coin the seed laid; five guesses each."""

    id = "coins-v1"
    max_steps = 10

    def __init__(self):
        self.reset(0)

    def observation_space(self, seat):
        return Discrete(11)

    def action_space(self, seat):
        return Discrete(3)

    def reset(self, seed):
        self.seed = seed
        self.rng = random.Random(seed)
        self.steps = 0
        self.scores = [0.0, 0.0]
        self.coin = self.rng.random() < 0.5

    def to_move(self):
        return (self.steps % 2,) if self.steps < 10 else ()

    def observe(self, seat):
        return self.steps

    def step(self, actions):
        seat = self.steps % 2
        if actions[seat] == 2:
            raise IllegalAction(seat, "there are two coins")
        self.steps += 1
        reward = float(actions[seat] == self.coin)
        self.scores[seat] += reward
        self.coin = self.rng.random() < 0.5
        return {seat: reward}

    def outcome(self):
        one, two = self.scores
        return Outcome((one, two), None if one == two else int(two > one))

    def view(self):
        return {"steps": self.steps, "coin": self.coin, "scores": list(self.scores)}


def test_a_sound_game_has_no_breach():
    assert check_game(Coins) == []


def broken(**changes):
    return type("Broken", (Coins,), changes)


counter = itertools.count()


def changes_though_illegal(self, actions):
    self.steps += 1
    if actions[(self.steps - 1) % 2] == 2:
        raise IllegalAction((self.steps - 1) % 2, "there are two coins")
    return {}


def keeps_its_state(self, seed):
    """The number of games played shows in the next."""
    self.played = getattr(self, "played", 0) + 1
    Coins.reset(self, seed)
    self.scores = [float(self.played), 0.0]


def restless_outcome(self):
    self.scores[0] += 1
    return Outcome((self.scores[0], self.scores[1]), None)


def raising(*_):
    raise ValueError("out of coins")


BROKEN = {
    "its factory fails": (lambda: 1 / 0, "the factory raised ZeroDivisionError"),
    "it has no id": (broken(id=None), "id is None"),
    "its id has no version": (broken(id="coins"), "a text with a version is expected"),
    "it has no seats": (broken(seats=0), "seats is 0"),
    "it has no whole number of seats": (broken(seats=2.0), "seats is 2.0"),
    "it never ends": (
        broken(to_move=lambda self: (self.steps % 2,), observation_space=lambda self, seat: Discrete(99)),
        "has not ended after max_steps=10",
    ),
    "its spaces are none": (broken(action_space=lambda self, seat: [0, 1]), "action_space(0) is [0, 1]"),
    "it lacks a method": (broken(view=None), "no method view()"),
    "simultaneous is no switch": (broken(simultaneous=1), "simultaneous is 1"),
    "an observation is outside its space": (
        broken(observe=lambda self, seat: self.steps - 1),
        "observe(0) is not in its space",
    ),
    "bytes hide a number out of bounds": (
        broken(observation_space=lambda self, seat: Box((2,), "int8", -1, 1), observe=lambda self, seat: b"\x01\x05"),
        "observe(0) is not in its space: values from 1 to 5",
    ),
    "an observation raises": (broken(observe=raising), "observe(0) raised ValueError: out of coins"),
    "an observation holds the seed": (
        broken(observation_space=lambda self, seat: Discrete(2**63), observe=lambda self, seat: self.seed),
        "observe(0) holds the seed",
    ),
    "the view holds the seed": (broken(view=lambda self: {"seed": self.seed}), "view() holds the seed"),
    "several seats are to move in turns": (broken(to_move=lambda self: (0, 1)), "not simultaneous"),
    "an unknown seat is to move": (broken(to_move=lambda self: (2,)), "the game has 2 seats"),
    "a seat is to move twice": (broken(simultaneous=True, to_move=lambda self: (0, 0)), "names a seat twice"),
    "it is random beyond the seed": (
        broken(observe=lambda self, seat: next(counter) % 11),
        "changed the game before its end",
    ),
    "a new object plays another game": (
        broken(
            __init__=lambda self: (setattr(self, "mine", next(counter)), self.reset(0))[0],
            view=lambda self: {"mine": self.mine},
        ),
        "not the same game from the same seed and actions (a new object)",
    ),
    "a reset leaves something behind": (
        broken(reset=keeps_its_state),
        "not the same game from the same seed and actions (the same object, reset)",
    ),
    "an illegal action changes the game": (broken(step=changes_though_illegal), "although it raised IllegalAction"),
    "it blames who is not to move": (
        broken(step=lambda self, actions: (_ for _ in ()).throw(IllegalAction(1 - self.steps % 2, "x"))),
        "which is not to move",
    ),
    "nothing is legal": (
        broken(step=lambda self, actions: (_ for _ in ()).throw(IllegalAction(self.steps % 2, "x"))),
        "no legal action found",
    ),
    "a step raises": (broken(step=raising), "step() raised ValueError"),
    "an unknown seat is rewarded": (
        broken(step=lambda self, actions: Coins.step(self, actions) and {2: 1.0}),
        "rewards seat 2",
    ),
    "a reward is no number": (
        broken(step=lambda self, actions: Coins.step(self, actions) and {0: float("nan")}),
        "the reward nan",
    ),
    "rewards are a list": (broken(step=lambda self, actions: [*Coins.step(self, actions)]), "returned a list"),
    "the outcome is none": (broken(outcome=lambda self: None), "outcome() is a NoneType"),
    "a score is missing": (broken(outcome=lambda self: Outcome((1.0,), 0)), "1 scores for 2 seats"),
    "a score is endless": (broken(outcome=lambda self: Outcome((1.0, float("inf")), 1)), "finite numbers"),
    "the winner has no seat": (broken(outcome=lambda self: Outcome((1.0, 0.0), 2)), "names seat 2 the winner"),
    "the winner has not the best score": (broken(outcome=lambda self: Outcome((1.0, 0.0), 1)), "not the best score"),
    "the outcome before the end changes the game": (
        broken(outcome=restless_outcome),
        "changed the game before its end",
    ),
    "who forfeits wins": (
        broken(forfeit=lambda self, losers: Outcome((1.0, 0.0), 0)),
        "forfeit([0]) names seat 0 the winner",
    ),
    "the view is no JSON": (broken(view=lambda self: {"cells": b"abc"}), "view() is not JSON data"),
    "the view is not a number": (broken(view=lambda self: {"x": float("nan")}), "view() is not JSON data"),
    "the view is a list": (broken(view=lambda self: []), "view() is a list"),
    "the view has numbers as keys": (broken(view=lambda self: {1: 2}), "does not read back"),
    "the text is bytes": (broken(text=lambda self: b"coins"), "text() is a bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_checker_names_it_when(name):
    factory, words = BROKEN[name]
    problems = check_game(factory, games=3)
    assert any(words in problem for problem in problems), problems


def test_a_breach_is_named_once():
    problems = check_game(broken(outcome=lambda self: Outcome((1.0, 0.0), 1)), games=10)
    assert len(problems) == len(set(problems)) == 1


def test_random_actions_follow_the_mask_of_the_observation():
    masked = broken(
        observation_space=lambda self, seat: Dict({"action_mask": Box((3,), "int8", 0, 1)}),
        observe=lambda self, seat: {"action_mask": [0, 1, 0]},
    )
    rng = random.Random(0)
    assert {sample_action(masked(), 0, rng) for _ in range(20)} == {1}
