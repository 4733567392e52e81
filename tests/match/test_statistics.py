"""Intervals against values from textbooks and other programs, and verdicts that do not say too much."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest

from harena import statistics
from harena.statistics import Interval, ScoredGame, bootstrap, compare, paired_difference, t_interval, wilson


@pytest.mark.parametrize(
    ("wins", "games", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),  # the last two: Newcombe 1998, table I
        (8, 10, 0.4902, 0.9433),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
    ],
)
def test_wilson_gives_the_known_values(wins: int, games: int, low: float, high: float) -> None:
    interval = wilson(wins, games)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)
    assert interval.value == wins / games


def test_wilson_of_nothing_says_nothing() -> None:
    interval = wilson(0, 0)
    assert (interval.low, interval.high) == (0.0, 1.0)
    assert interval.as_json() == {"value": None, "low": 0.0, "high": 1.0}


@pytest.mark.parametrize(
    ("p", "df", "t"),
    [
        (0.975, 1, 12.7062),
        (0.975, 5, 2.5706),
        (0.975, 30, 2.0423),
        (0.995, 9, 3.2498),
        (0.95, 120, 1.6577),
        (0.975, 10**6, 1.95997),
    ],
)
def test_t_quantiles_are_those_of_the_tables(p: float, df: int, t: float) -> None:
    assert statistics.t_quantile(p, df) == pytest.approx(t, abs=5e-5)


def test_the_t_interval_of_known_data() -> None:
    interval = t_interval([5.1, 4.9, 5.6, 5.8, 4.4])
    half = 2.7764 * math.sqrt(0.313 / 5)  # the table's t for 4 degrees of freedom, and the sample's variance
    assert (interval.value, interval.low, interval.high) == pytest.approx((5.16, 5.16 - half, 5.16 + half), abs=5e-5)


@pytest.mark.parametrize("values", [[], [3.0]])
def test_one_value_has_no_bounds_and_its_json_is_json(values: list[float]) -> None:
    for interval in (t_interval(values), bootstrap(values, seed=0)):
        assert (interval.low, interval.high) == (-math.inf, math.inf)
        assert not interval.excludes(0.0)
        assert json.loads(json.dumps(interval.as_json(), allow_nan=False))["low"] is None


def test_the_bootstrap_is_seeded_and_near_t_for_normal_data() -> None:
    rng = random.Random(1)
    values = [rng.gauss(10, 2) for _ in range(40)]
    one, other, t = bootstrap(values, seed=1), bootstrap(values, seed=1), t_interval(values)
    assert one == other
    assert one != bootstrap(values, seed=2)
    assert (one.low, one.high) == pytest.approx((t.low, t.high), abs=0.15)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = random.Random(2)
    samples = [[rng.gauss(0, 1) for _ in range(8)] for _ in range(300)]
    for interval in (t_interval, lambda values: bootstrap(values, seed=3)):
        held = sum(not interval(values).excludes(0.0) for values in samples) / len(samples)
        assert 0.91 <= held <= 0.99


def test_many_values_need_no_resampling() -> None:
    values = [float(n % 7) for n in range(5000)]
    assert bootstrap(values, seed=0) == t_interval(values)


def test_pairing_takes_the_seeds_luck_out() -> None:
    luck = {seed: random.Random(seed).uniform(-100, 100) for seed in range(20)}
    a = {seed: [value + 1 + seed % 3 * 0.1] for seed, value in luck.items()}
    b = {seed: [value] for seed, value in luck.items()}
    for method in ("bootstrap", "t"):
        interval = paired_difference(a, b, method=method)
        assert interval.value == pytest.approx(1.095)
        assert interval.excludes(0.0)
    assert not t_interval([value[0] for value in a.values()]).excludes(0.0)


def test_only_blocks_that_both_played_count() -> None:
    assert paired_difference({1: [5.0], 2: [7.0]}, {2: [3.0], 3: [100.0]}, method="t").value == 4.0


# ---- verdicts ----


def duel(seeds: int, won_by: int | None, mirrored: bool = True) -> list[ScoredGame]:
    orders = [(0, 1), (1, 0)] if mirrored else [(0, 1)]
    return [
        ScoredGame(seed, order, (0.0, 0.0), None if won_by is None else order.index(won_by))
        for seed in range(seeds)
        for order in orders
    ]


@pytest.mark.parametrize("winner", [0, 1])
def test_an_agent_that_wins_on_enough_seeds_beats_the_other(winner: int) -> None:
    verdict = compare(duel(10, winner), 0, 1)
    assert verdict.winner == winner
    assert verdict.games == 20
    assert verdict.sentence(["x", "y"]) == ("x beats y" if winner == 0 else "y beats x")


def test_a_few_wins_show_nothing() -> None:
    verdict = compare(duel(3, 0), 0, 1)
    assert verdict.winner is None
    assert verdict.sentence(["x", "y"]) == "x against y: no difference shown"


def test_many_games_on_few_seeds_are_no_more_than_the_seeds() -> None:
    assert compare(duel(3, 0) * 50, 0, 1).winner is None


def test_draws_show_no_difference() -> None:
    verdict = compare(duel(200, None), 0, 1)
    assert (verdict.rate.value, verdict.winner) == (0.5, None)


def test_who_always_wins_from_the_first_seat_is_no_better() -> None:
    games = [ScoredGame(seed, order, (1.0, -1.0), 0) for seed in range(50) for order in ((0, 1), (1, 0))]
    assert compare(games, 0, 1).winner is None


def test_at_a_table_of_four_the_higher_score_is_ahead() -> None:
    games = [
        ScoredGame(seed, order, tuple(float(-agent) for agent in order), order.index(0))
        for seed, order in enumerate(itertools.permutations(range(4)))
    ]
    for a, b in itertools.combinations(range(4), 2):
        assert compare(games, a, b).winner == a


def test_agents_of_one_seat_are_compared_on_the_same_seeds() -> None:
    games = [ScoredGame(seed, (agent,), (seed * 10.0 + agent,), None) for seed in range(8) for agent in (0, 1)]
    verdict = compare(games, 0, 1)
    assert (verdict.winner, verdict.rate.value, verdict.difference.value) == (1, 0.0, -1.0)
    assert compare(games[:8], 0, 1).winner is None


def test_agents_that_share_no_seed_cannot_be_compared() -> None:
    verdict = compare([ScoredGame(1, (0,), (5.0,), None), ScoredGame(2, (1,), (1.0,), None)], 0, 1)
    assert verdict.winner is None
    assert json.dumps(verdict.as_json(), allow_nan=False)


def test_an_interval_excludes_what_is_outside() -> None:
    assert Interval(1, 0.5, 2).excludes(0.4)
    assert not Interval(1, 0.5, 2).excludes(0.5)
