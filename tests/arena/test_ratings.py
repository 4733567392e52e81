"""The fold does not care when results arrive; the board says known values, and how sure it is."""

from __future__ import annotations

import itertools
import math
import random
from typing import get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harena.arena.ladder import ratings
from harena.arena.ladder.ratings import (
    MEAN,
    SCALE,
    Elo,
    RatedOutcome,
    Rating,
    RatingBoard,
    RatingEntry,
    RatingLadder,
    bradley_terry,
    fold,
    ranks_of,
    refit,
    tally,
)
from harena.arena.settings import EnvironmentSettings
from harena.errors import SpecError

AGENTS = ("ada", "bob", "cyd", "dan", "eve")


def games(a: str, b: str, *, wins: int = 0, losses: int = 0, draws: int = 0, first: int = 0) -> list[RatedOutcome]:
    ranks = [(1, 2)] * wins + [(2, 1)] * losses + [(1, 1)] * draws
    return [RatedOutcome(number=first + n, agents=(a, b), ranks=rank) for n, rank in enumerate(ranks)]


def entries(board: RatingBoard) -> dict[str, RatingEntry]:
    return {entry.agent: entry for entry in board.entries}


def random_log(seed: int, truth: dict[str, float], matches: int, seats: int = 2) -> list[RatedOutcome]:
    rng = random.Random(seed)
    log: list[RatedOutcome] = []
    for number in range(matches):
        agents = tuple(rng.sample(sorted(truth), seats))
        ranks = ranks_of([truth[agent] - math.log(rng.expovariate(1)) for agent in agents])
        log.append(RatedOutcome(number=number, agents=agents, ranks=ranks))
    return log


@st.composite
def logs(draw: st.DrawFn) -> list[RatedOutcome]:
    rows: list[RatedOutcome] = []
    for number in range(draw(st.integers(0, 25))):
        agents = draw(st.lists(st.sampled_from(AGENTS), min_size=2, max_size=4, unique=True))
        ranks = draw(st.lists(st.integers(1, 3), min_size=len(agents), max_size=len(agents)))
        rows.append(RatedOutcome(number=number, agents=tuple(agents), ranks=tuple(ranks), rated=draw(st.booleans())))
    return rows


# ---- the log ----


def test_ranks_follow_scores_and_share_a_place() -> None:
    assert ranks_of([3.0, 7.0, 3.0, -1.0]) == (2, 1, 2, 4)
    assert ranks_of([0.0, 0.0]) == (1, 1)


def test_a_winner_named_by_the_game_is_first_whatever_the_scores_say() -> None:
    assert ranks_of([5.0, 5.0, 9.0], winner=1) == (3, 1, 2)


@pytest.mark.parametrize(("scores", "winner"), [([math.nan, 1.0], None), ([1.0, 2.0], 2), ([1.0, 2.0], -1)])
def test_scores_that_cannot_be_ranked_are_refused(scores: list[float], winner: int | None) -> None:
    with pytest.raises(SpecError):
        ranks_of(scores, winner=winner)


@pytest.mark.parametrize(("agents", "ranks"), [(("ada", "ada"), (1, 2)), (("ada",), (1,)), (("ada", "bob"), (1,))])
def test_a_rated_row_that_compares_nothing_is_refused(agents: tuple[str, ...], ranks: tuple[int, ...]) -> None:
    with pytest.raises(SpecError):
        RatedOutcome(number=1, agents=agents, ranks=ranks)


# ---- the fold ----


@given(logs(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=60, deadline=None)
def test_results_count_in_order_of_creation_whatever_order_they_arrive_in(
    log: list[RatedOutcome], shuffler: random.Random, elo: bool
) -> None:
    parents = {"bob": "ada", "cyd": "bob"}
    arrived = list(log)
    shuffler.shuffle(arrived)
    ladder = RatingLadder(model=Elo() if elo else None, parents=parents)
    for outcome in arrived:
        ladder.apply(outcome)
    rebuilt = fold(arrived, model=Elo() if elo else None, parents=parents)
    assert ladder.ratings == rebuilt.ratings == fold(log, model=Elo() if elo else None, parents=parents).ratings
    assert ladder.log == rebuilt.log == tuple(row for row in log if row.rated)
    assert refit(arrived) == refit(log)


def test_a_result_that_is_told_twice_counts_once() -> None:
    row = RatedOutcome(number=4, agents=("ada", "bob"), ranks=(1, 2))
    assert fold([row, row]).ratings == fold([row]).ratings


def test_two_different_results_of_one_match_are_refused() -> None:
    ladder = fold([RatedOutcome(number=4, agents=("ada", "bob"), ranks=(1, 2))])
    before = ladder.ratings
    with pytest.raises(SpecError, match="match 4"):
        ladder.apply(RatedOutcome(number=4, agents=("ada", "bob"), ranks=(2, 1)))
    assert ladder.ratings == before


def test_a_challenge_moves_no_rating() -> None:
    challenge = RatedOutcome(number=1, agents=("ada", "ada"), ranks=(1, 2), rated=False)
    assert fold([challenge]).ratings == {}
    assert refit([challenge]).entries == ()


def test_winning_raises_the_rating_and_playing_makes_it_surer() -> None:
    ladder = fold(games("ada", "bob", wins=5))
    ada, bob = ladder.rating("ada"), ladder.rating("bob")
    assert ada.mu > 25 > bob.mu
    assert ada.sigma < 25 / 3
    assert (ada.games, bob.games) == (5, 5)


def test_one_win_between_strangers_gives_the_known_plackett_luce_rating() -> None:
    ladder = fold(games("ada", "bob", wins=1))
    # Weng and Lin 2011, algorithm 4: c² = 2(σ² + β²), both even
    c = math.sqrt(2 * ((25 / 3) ** 2 + (25 / 6) ** 2))
    assert ladder.rating("ada").mu == pytest.approx(25 + (25 / 3) ** 2 / c / 2)
    assert ladder.rating("bob").mu == pytest.approx(25 - (25 / 3) ** 2 / c / 2)


def test_a_draw_at_a_table_of_three_between_equals_changes_no_order() -> None:
    ladder = fold([RatedOutcome(number=1, agents=("ada", "bob", "cyd"), ranks=(1, 1, 1))])
    assert len({round(ladder.rating(agent).mu, 9) for agent in ("ada", "bob", "cyd")}) == 1


def test_a_new_version_inherits_the_rating_but_less_sure() -> None:
    ladder = fold(games("ada", "bob", wins=20, losses=5), parents={"ada2": "ada", "ada3": "ada2"})
    ada, second, third = (ladder.rating(agent) for agent in ("ada", "ada2", "ada3"))
    assert ada.mu == second.mu == third.mu
    assert ada.sigma < second.sigma < third.sigma <= 25 / 3
    assert second.games == 0
    ladder.apply(RatedOutcome(number=100, agents=("ada2", "bob"), ranks=(1, 2)))
    assert ladder.rating("ada2").mu > ada.mu
    assert ladder.rating("ada") == ada


def test_a_version_inherits_what_its_parent_had_when_it_first_played() -> None:
    log = [
        *games("ada", "bob", wins=3),
        *games("ada2", "bob", wins=1, first=10),
        *games("ada", "bob", losses=3, first=20),
    ]
    early = fold(log[:4], parents={"ada2": "ada"}).rating("ada2")
    assert fold(log, parents={"ada2": "ada"}).rating("ada2") == early


def test_an_origin_cannot_be_changed_or_circular() -> None:
    ladder = fold(games("ada", "bob", wins=1), parents={"cyd": "ada"})
    for agent, parent in (("ada", "bob"), ("cyd", "bob"), ("dan", "dan")):
        with pytest.raises(SpecError):
            ladder.enter(agent, parent=parent)
    with pytest.raises(SpecError):
        fold([], parents={"ada": "bob", "bob": "cyd", "cyd": "ada"})


def test_elo_moves_by_half_of_k_between_equals_and_keeps_the_sum() -> None:
    ladder = fold(games("ada", "bob", wins=1), model=Elo(k=20))
    assert (ladder.rating("ada").mu, ladder.rating("bob").mu) == (1510, 1490)
    table = fold([RatedOutcome(number=1, agents=("ada", "bob", "cyd"), ranks=(1, 2, 3))], model=Elo(k=20))
    assert [table.rating(agent).mu for agent in ("ada", "bob", "cyd")] == [1510, 1500, 1490]


def test_elo_of_a_favourite_gains_little() -> None:
    model = Elo(k=32)
    favourite, outsider = Rating(mu=1900, sigma=0), Rating(mu=1500, sigma=0)
    assert model.update([favourite, outsider], [1, 2])[0].mu == pytest.approx(1900 + 32 / 11)


@pytest.mark.parametrize("k", [0, -1, 401, math.nan, math.inf])
def test_elo_refuses_a_k_without_sense(k: float) -> None:
    with pytest.raises(SpecError, match="K="):
        Elo(k=k)


# ---- the board ----


def test_three_wins_in_four_are_191_points() -> None:
    board = entries(refit(games("ada", "bob", wins=300, losses=100)))
    assert board["ada"].strength - board["bob"].strength == pytest.approx(400 * math.log10(3), abs=0.5)


def test_two_draws_are_a_win_and_a_loss() -> None:
    drawn = refit(games("ada", "bob", wins=10, draws=10))
    decided = refit(games("ada", "bob", wins=15, losses=5))
    assert [entry.strength for entry in drawn.entries] == [entry.strength for entry in decided.entries]


def test_the_interval_of_two_agents_is_the_textbook_one() -> None:
    board = entries(refit(games("ada", "bob", wins=20_000, losses=20_000)))
    # The difference has variance 1/(n p q); each strength is half of it away from the mean.
    assert board["ada"].high - MEAN == pytest.approx(1.95996 * SCALE / math.sqrt(40_000 / 4) / 2, rel=1e-3)


def test_a_field_of_equals_shares_the_first_place() -> None:
    pairs = itertools.combinations(AGENTS, 2)
    log = [row for k, (a, b) in enumerate(pairs) for row in games(a, b, wins=10, losses=10, first=100 * k)]
    board = refit(log)
    assert {round(entry.strength, 6) for entry in board.entries} == {MEAN}
    assert {entry.rank for entry in board.entries} == {1}
    assert len({round(entry.high - entry.low, 6) for entry in board.entries}) == 1


def test_the_mean_of_the_field_is_1500() -> None:
    board = refit(random_log(1, {agent: k / 2 for k, agent in enumerate(AGENTS)}, 200))
    assert sum(entry.strength for entry in board.entries) / len(board.entries) == pytest.approx(MEAN)


def test_the_fit_is_the_one_that_plain_gradient_ascent_finds() -> None:
    truth = {agent: k / 2 for k, agent in enumerate(AGENTS)}
    log = [*random_log(2, truth, 60), *random_log(3, truth, 20, seats=4)]
    strengths, _ = bradley_terry(tally(log).wins)
    variance, found = field_variance(log, strengths), dict.fromkeys(AGENTS, 0.0)
    for _ in range(1000):
        gradient = {agent: -value / variance for agent, value in found.items()}
        for row in log:
            for i, j in itertools.combinations(range(len(row.agents)), 2):
                a, b = row.agents[i], row.agents[j]
                point = 1.0 if row.ranks[i] < row.ranks[j] else 0.5 if row.ranks[i] == row.ranks[j] else 0.0
                pull = (point - 1 / (1 + math.exp(found[b] - found[a]))) / (len(row.agents) - 1)
                gradient[a] += pull
                gradient[b] -= pull
        found = {agent: value + 0.05 * gradient[agent] for agent, value in found.items()}
    assert strengths == pytest.approx([found[agent] for agent in AGENTS], abs=2e-3)


def field_variance(log: list[RatedOutcome], strengths: npt.NDArray[np.float64]) -> float:
    """At which the field reproduces itself, with two more agents at a standard deviation of 2."""
    n, total = len(AGENTS), tally(log).wins + tally(log).wins.T
    p = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
    weights = total * p * (1 - p)
    variance = 4.0
    for _ in range(500):
        information = np.diag(weights.sum(axis=1) + 1 / variance) - weights
        variance = float((strengths @ strengths + np.trace(np.linalg.inv(information)) + 2 * 4.0) / (n + 2))
    return variance


def test_an_unbeaten_agent_stays_finite_and_unsure() -> None:
    board = entries(refit([*games("ada", "bob", wins=30), *games("bob", "cyd", wins=10, losses=10, first=50)]))
    ada, bob = board["ada"], board["bob"]
    assert bob.strength < ada.strength < MEAN + 1500
    assert ada.high - ada.low > 1.5 * (bob.high - bob.low)
    assert (ada.rank, bob.rank) == (1, 2)


def test_more_unbeaten_games_rank_higher() -> None:
    board = entries(refit([*games("ada", "cyd", wins=40), *games("bob", "cyd", wins=4, first=50)]))
    assert board["ada"].strength > board["bob"].strength


def test_ranks_are_shared_until_the_results_separate() -> None:
    few, many = (entries(refit(games("ada", "bob", wins=6 * n, losses=4 * n))) for n in (1, 100))
    assert (few["ada"].rank, few["bob"].rank) == (1, 1)
    assert (many["ada"].rank, many["bob"].rank) == (1, 2)


def test_a_chain_of_extreme_results_converges() -> None:
    names = [f"a{k:02}" for k in range(30)]
    log = [row for k, (a, b) in enumerate(itertools.pairwise(names)) for row in games(a, b, wins=60, first=100 * k)]
    board = refit(log)
    assert [entry.agent for entry in board.entries] == names
    assert all(math.isfinite(entry.low) and math.isfinite(entry.high) for entry in board.entries)


def test_agents_that_nothing_connects_are_not_ranked_against_each_other() -> None:
    board = refit(
        [
            *games("ada", "bob", wins=50),
            *games("cyd", "dan", wins=50, first=60),
            *games("dan", "eve", wins=50, first=200),
        ]
    )
    assert board.components == (("cyd", "dan", "eve"), ("ada", "bob"))
    by_agent = entries(board)
    assert [by_agent[agent].component for agent in AGENTS] == [1, 1, 0, 0, 0]
    assert by_agent["ada"].rank == by_agent["cyd"].rank == 1
    assert by_agent["bob"].rank == by_agent["dan"].rank == 2
    assert by_agent["eve"].rank == 3


def test_an_agent_without_games_could_be_anywhere_and_changes_nothing_for_others() -> None:
    log = games("ada", "bob", wins=40, losses=20)
    board = refit(log, agents=["new"])
    ada, new = entries(board)["ada"], entries(board)["new"]
    assert (new.games, new.rank, new.component) == (0, 1, 1)
    assert new.strength == pytest.approx(MEAN)
    assert new.high - new.low > 5 * (ada.high - ada.low)
    alone = entries(refit(log))["ada"]
    assert (ada.rank, ada.component) == (alone.rank, alone.component)
    assert (ada.low, ada.strength, ada.high) == pytest.approx((alone.low, alone.strength, alone.high))


def test_before_the_first_match_everybody_could_be_anywhere() -> None:
    board = refit([], agents=["ada", "bob"])
    assert board.components == (("ada",), ("bob",))
    assert all(entry.rank == 1 and entry.high - entry.low > 1000 for entry in board.entries)


def test_nothing_played_makes_an_empty_board() -> None:
    assert refit([]) == RatingBoard(entries=(), components=())


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, math.nan])
def test_a_board_refuses_a_confidence_without_sense(confidence: float) -> None:
    with pytest.raises(SpecError, match="confidence"):
        refit(games("ada", "bob", wins=1), confidence=confidence)


def test_a_match_weighs_the_same_for_an_agent_at_any_table() -> None:
    table = tally([RatedOutcome(number=1, agents=AGENTS, ranks=(1, 2, 3, 4, 4))])
    assert (table.wins + table.wins.T).sum(axis=1) == pytest.approx(np.ones(5))
    assert table.wins[3, 4] == table.wins[4, 3] == 1 / 8
    assert table.games.tolist() == [1] * 5


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held: list[bool] = []
    for seed in range(40):
        rng = random.Random(seed)
        truth = {f"a{k:02}": rng.gauss(0, 1) for k in range(20)}
        mean = sum(truth.values()) / len(truth)
        for entry in refit(random_log(seed, truth, 400)).entries:
            held.append(entry.low <= MEAN + SCALE * (truth[entry.agent] - mean) <= entry.high)
    assert 0.93 <= sum(held) / len(held) <= 0.97


@pytest.mark.parametrize(("name", "system"), ratings.SYSTEMS.items())
def test_a_system_knows_its_own_ratings_and_no_others(name: str, system: type[ratings.Model]) -> None:
    model = system()
    after = model.update([model.start, model.start], [1, 2])
    for one in (model.start, *after, model.inherit(after[0])):
        assert [other for other, kind in ratings.SYSTEMS.items() if kind.made(one.mu, one.sigma)] == [name]
        assert ratings.points(one.mu, one.sigma) == model.points(one.mu, one.sigma)
    assert ratings.points(model.start.mu, model.start.sigma)[0] == ratings.MEAN


def test_settings_name_every_rating_system() -> None:
    assert set(get_args(get_type_hints(EnvironmentSettings)["model"])) == set(ratings.SYSTEMS)
