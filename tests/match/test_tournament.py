"""Schedules: who meets whom, how often, on which seat and seed, and who comes out of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harena.errors import SpecError
from harena.match.series import schedule, tournament
from harena.match.series.schedule import Pairing, Schedule
from harena.match.series.tournament import DoubleElimination, Fixed, SingleElimination, Swiss, round_robin, series

Judge = Callable[[Pairing], dict[str, object]]
quick = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**64 - 1)


def play(plan: Schedule, judge: Judge, max_rounds: int = 10_000) -> list[list[Pairing]]:
    """Plays to the end; the rounds as they were given out."""
    rounds: list[list[Pairing]] = []
    while games := plan.next_round():
        rounds.append(games)
        assert len(rounds) <= max_rounds, "a tournament that does not end"
        for game in games:
            plan.report(game, **judge(game))  # type: ignore[arg-type]
    return rounds


def lower_index_wins(game: Pairing) -> dict[str, object]:
    return {"winner": game.seats.index(min(game.seats))}


def by_hash(salt: int) -> Judge:
    """Any outcome, wins, draws and voids, the same for the same game."""

    def judge(game: Pairing) -> dict[str, object]:
        fate = schedule.derive(salt, game.number * 10 + game.attempt) % 8
        if fate == 0:
            return {"void": True}
        return {"winner": None} if fate == 1 else {"winner": fate % len(game.seats)}

    return judge


def always(**result: object) -> Judge:
    return lambda game: result


# ---- series ----


def test_a_series_keeps_the_seats_and_gives_each_game_its_own_seed() -> None:
    games = series(2, 5, mirror=False, seed=7)
    assert [game.seats for game in games] == [(0, 1)] * 5
    assert len({game.seed for game in games}) == 5
    assert [game.number for game in games] == [0, 1, 2, 3, 4]


@given(n=st.integers(1, 5), games=st.integers(1, 30), seed=SEEDS)
@quick
def test_a_mirrored_series_plays_each_seed_once_in_every_rotation(n: int, games: int, seed: int) -> None:
    plan = series(n, games, mirror=True, seed=seed)
    assert games <= len(plan) < games + n
    assert len(plan) % n == 0
    for start in range(0, len(plan), n):
        same = plan[start : start + n]
        assert len({game.seed for game in same}) == 1
        for seat in range(n):
            assert sorted(game.seats[seat] for game in same) == list(range(n))


def test_seeds_depend_on_the_seed_and_the_index_alone() -> None:
    assert [game.seed for game in series(2, 3, mirror=False, seed=1)] == [
        game.seed for game in series(2, 6, mirror=True, seed=1)[::2]
    ]
    assert series(2, 3, mirror=False, seed=1) != series(2, 3, mirror=False, seed=2)
    assert tournament.derive(0, 0) == 1_735_201_683  # frozen: a published seed must give the same games tomorrow


@pytest.mark.parametrize("wrong", [(0, 1), (2, 0), (2, -3), (2, 2_000_000)])
def test_a_series_that_cannot_be_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(SpecError):
        series(*wrong, mirror=False, seed=0)


# ---- round robin ----


@given(n=st.integers(2, 9), games=st.integers(1, 4), mirror=st.booleans(), seed=SEEDS)
@quick
def test_every_pair_meets_equally_often_and_nobody_plays_two_tables_in_a_round(
    n: int, games: int, mirror: bool, seed: int
) -> None:
    plan = round_robin(n, games, mirror, seed)
    meetings = Counter(frozenset(game.seats) for game in plan)
    assert set(meetings) == {frozenset(pair) for pair in itertools.combinations(range(n), 2)}
    assert len(set(meetings.values())) == 1
    for _, group in itertools.groupby(plan, key=lambda game: game.round):
        tables = {frozenset(game.seats) for game in group}
        assert sum(len(table) for table in tables) == len(frozenset().union(*tables))


@given(n=st.integers(2, 7), seats=st.integers(2, 4), games=st.integers(1, 5), seed=SEEDS)
@quick
def test_mirrored_seats_are_balanced_at_every_table(n: int, seats: int, games: int, seed: int) -> None:
    n = max(n, seats)
    plan = round_robin(n, games, True, seed, seats=seats)
    pairs = Counter(frozenset(pair) for game in plan for pair in itertools.combinations(game.seats, 2))
    assert len(set(pairs.values())) == 1
    assert len(pairs) == n * (n - 1) // 2
    sat = Counter((agent, seat) for game in plan for seat, agent in enumerate(game.seats))
    assert len(set(sat.values())) == 1
    assert len(sat) == n * seats


def test_all_tables_play_the_same_seeds() -> None:
    plan = round_robin(4, 4, True, 9)
    tables = {frozenset(game.seats): set[int]() for game in plan}
    for game in plan:
        tables[frozenset(game.seats)].add(game.seed)
    assert len({frozenset(seeds) for seeds in tables.values()}) == 1


def test_a_game_of_one_seat_gives_every_agent_the_same_seeds() -> None:
    plan = round_robin(3, 2, False, 5, seats=1)
    assert Counter(game.seats for game in plan) == {(0,): 2, (1,): 2, (2,): 2}
    assert len({game.seed for game in plan}) == 2


def test_too_few_agents_for_a_table_are_refused() -> None:
    with pytest.raises(SpecError, match="3 agents for 4 seats"):
        round_robin(3, 1, False, 0, seats=4)


def test_without_mirroring_the_first_seat_still_goes_round() -> None:
    first = Counter(game.seats[0] for game in round_robin(4, 2, False, 0))
    assert set(first.values()) == {3}


# ---- reporting ----


def test_a_void_game_is_played_again_with_the_same_seed_and_is_no_result_after_three_replays() -> None:
    plan = Fixed(2, series(2, 1, mirror=False, seed=3))
    rounds = play(plan, always(void=True))
    assert [game.attempt for games in rounds for game in games] == [0, 1, 2, 3]
    assert len({game.seed for games in rounds for game in games}) == 1
    assert [(row.games, row.no_result, row.points) for row in plan.standings()] == [(0, 1, 0.0)] * 2


def test_a_replay_that_works_counts() -> None:
    plan = Fixed(2, series(2, 1, mirror=False, seed=3))
    play(plan, lambda game: {"winner": 1} if game.attempt else {"void": True})
    assert [(row.agent, row.wins, row.no_result) for row in plan.standings()] == [(1, 1, 0), (0, 0, 0)]


def test_a_round_must_be_reported_before_the_next_and_each_game_once() -> None:
    plan = Fixed(2, series(2, 2, mirror=False, seed=3))
    one, _ = plan.next_round()
    plan.report(one, winner=0)
    with pytest.raises(SpecError, match="1 games of this round are not reported yet"):
        plan.next_round()
    with pytest.raises(SpecError, match="game 0 is not one of this round"):
        plan.report(one, winner=0)


@pytest.mark.parametrize("wrong", [{"scores": (1.0,)}, {"scores": (float("nan"), 0.0)}, {"winner": 2}, {"winner": -1}])
def test_a_result_that_cannot_be_is_refused_and_changes_nothing(wrong: dict[str, object]) -> None:
    plan = Fixed(2, series(2, 1, mirror=False, seed=3))
    game = plan.next_round()[0]
    with pytest.raises(SpecError):
        plan.report(game, **wrong)  # type: ignore[arg-type]
    plan.report(game, winner=0)
    assert plan.standings()[0].wins == 1


@pytest.mark.parametrize(
    ("scores", "winner", "points"),
    [
        ((3, 9), 0, (1, 0)),
        ((2, 2), None, (0.5, 0.5)),
        ((5, 3), None, (1, 0)),
        ((1, 1, -1, 1), None, (1 / 3, 1 / 3, 0, 1 / 3)),
    ],
)
def test_the_point_goes_to_the_winner_or_is_shared_by_the_highest(
    scores: tuple[float, ...], winner: int | None, points: tuple[float, ...]
) -> None:
    assert schedule.points(scores, winner) == pytest.approx(points)


def test_equals_share_a_rank() -> None:
    plan = Fixed(3, round_robin(3, 2, True, 0))
    play(plan, lambda game: {"winner": game.seats.index(0)} if 0 in game.seats else {"winner": None})
    assert [(row.agent, row.rank) for row in plan.standings()] == [(0, 1), (1, 2), (2, 2)]


# ---- Swiss ----


@given(n=st.integers(2, 14), data=st.data(), salt=SEEDS)
@quick
def test_swiss_pairs_everybody_once_a_round_and_nobody_twice_while_that_can_be(
    n: int, data: st.DataObject, salt: int
) -> None:
    rounds = data.draw(st.integers(1, max(1, (n - 1) // 2)))
    plan = Swiss(n, rounds, salt)
    met: Counter[frozenset[int]] = Counter()
    while games := plan.next_round():
        fresh = [game for game in games if not game.attempt]
        if fresh:
            assert Counter(agent for game in fresh for agent in game.seats).most_common(1)[0][1] == 1
            assert len(fresh) == n // 2
        met.update(frozenset(game.seats) for game in fresh)
        for game in games:
            plan.report(game, **by_hash(salt)(game))  # type: ignore[arg-type]
    assert max(met.values()) == 1
    byes = [row.byes for row in plan.standings()]
    assert sum(byes) == (rounds if n % 2 else 0)
    assert max(byes) <= 1


@given(n=st.integers(2, 7), rounds=st.integers(1, 12), salt=SEEDS)
@quick
def test_swiss_goes_on_when_rematches_cannot_be_avoided(n: int, rounds: int, salt: int) -> None:
    plan = Swiss(n, rounds, salt)
    play(plan, by_hash(salt))
    byes = [row.byes for row in plan.standings()]
    assert max(byes) - min(byes) <= 1


def test_swiss_finds_the_best_in_log_n_rounds_and_ranks_equals_by_their_opponents() -> None:
    plan = Swiss(16, 4, 5)
    play(plan, lower_index_wins)
    rows = plan.standings()
    assert (rows[0].agent, rows[0].points) == (0, 4.0)
    order = [(row.points, row.tie_break) for row in rows]
    assert order == sorted(order, reverse=True)


def test_buchholz_is_the_sum_of_the_opponents_points() -> None:
    plan = Swiss(4, 2, 1)
    rounds = play(plan, lower_index_wins)
    points = {row.agent: row.points for row in plan.standings()}
    for row in plan.standings():
        others = [agent for games in rounds for game in games if row.agent in game.seats for agent in game.seats]
        assert row.tie_break == sum(points[agent] for agent in others if agent != row.agent)


def test_a_bye_counts_as_won_games() -> None:
    plan = Swiss(3, 1, 1, games=2)
    play(plan, always(winner=None))
    assert sorted(row.points for row in plan.standings()) == [1.0, 1.0, 2.0]


def test_swiss_games_share_a_seed_with_seats_swapped() -> None:
    one, other = Swiss(2, 1, 1, games=2).next_round()
    assert one.seed == other.seed
    assert one.seats == other.seats[::-1]


def test_a_large_swiss_is_quick_to_pair() -> None:
    plan = Swiss(200, 9, 4)
    rounds = play(plan, by_hash(4))
    fresh = [frozenset(game.seats) for games in rounds for game in games if not game.attempt]
    assert len(fresh) == len(set(fresh)) == 900


# ---- elimination ----


def lost_ties(plan: tournament.Elimination) -> Counter[int]:
    return Counter(tie.loser for tie in plan.ties if tie.scheduled and tie.loser is not None)


@given(n=st.integers(2, 20), games=st.integers(1, 3), seed=SEEDS)
@quick
def test_single_elimination_has_one_champion_and_everybody_else_lost_once(n: int, games: int, seed: int) -> None:
    plan = SingleElimination(n, seed, games)
    play(plan, by_hash(seed))
    assert plan.champion is not None
    assert lost_ties(plan) == {agent: 1 for agent in range(n) if agent != plan.champion}
    rows = plan.standings()
    assert [row.agent for row in rows if row.rank == 1] == [plan.champion]


@given(n=st.integers(2, 20), games=st.integers(1, 3), seed=SEEDS)
@quick
def test_double_elimination_has_one_champion_and_nobody_is_out_before_two_losses(n: int, games: int, seed: int) -> None:
    plan = DoubleElimination(n, seed, games)
    rounds = play(plan, by_hash(seed))
    lost = lost_ties(plan)
    assert plan.champion is not None
    assert lost[plan.champion] <= 1
    assert all(lost[agent] == 2 for agent in range(n) if agent != plan.champion)
    assert [row.agent for row in plan.standings() if row.rank == 1] == [plan.champion]
    assert rounds


@pytest.mark.parametrize("kind", [SingleElimination, DoubleElimination])
@pytest.mark.parametrize("n", [2, 3, 5, 8, 13])
def test_the_better_always_winning_ends_in_the_order_of_strength(
    kind: Callable[[int, int], tournament.Elimination], n: int
) -> None:
    plan = kind(n, 0)
    play(plan, lower_index_wins)
    assert [row.agent for row in plan.standings()][:2] == [0, 1]


def test_byes_go_to_the_first_seeds() -> None:
    plan = SingleElimination(5, 0)
    assert [set(game.seats) for game in plan.next_round()] == [{3, 4}, {1, 2}]
    assert [row.byes for row in sorted(plan.standings(), key=lambda row: row.agent)] == [1, 1, 1, 0, 0]


def test_the_losers_champion_must_win_the_final_twice() -> None:
    def judge(game: Pairing) -> dict[str, object]:
        final = plan.ties[game.tie].stage.endswith("final")
        return {"winner": game.seats.index(max(game.seats) if final else min(game.seats))}

    plan = DoubleElimination(4, 0)
    rounds = play(plan, judge)
    assert [plan.ties[game.tie].stage for games in rounds[-2:] for game in games] == ["final", "second final"]
    assert plan.champion == 1


def test_an_even_tie_goes_to_sudden_death_with_new_seeds() -> None:
    plan = SingleElimination(2, 0, 2)
    rounds = play(plan, lambda game: {"winner": None} if game.number < 3 else {"winner": game.seats.index(1)})
    assert [len(games) for games in rounds] == [2, 1, 1]
    assert len({game.seed for games in rounds for game in games}) == 3
    assert plan.champion == 1
    assert plan.notes == []


def test_sudden_death_changes_seats() -> None:
    rounds = play(SingleElimination(2, 0), always(winner=None))
    first = [games[0].seats[0] for games in rounds]
    assert first in ([0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.parametrize("result", [{"winner": None}, {"void": True}])
def test_at_last_the_lower_seed_number_decides_and_is_named(result: dict[str, object]) -> None:
    plan = SingleElimination(2, 0, 2)
    play(plan, always(**result))
    assert plan.champion == 0
    assert [note.format("anna", "{1}") for note in plan.notes] == [
        "round 1: anna and {1} were even after 5 games; anna goes on, by the lower seed number (1 before 2)"
    ]


def test_a_tie_even_on_points_goes_by_the_total_score() -> None:
    plan = SingleElimination(2, 0, 2)

    def judge(game: Pairing) -> dict[str, object]:
        second = game.number == 1
        ahead = game.seats.index(1 if second else 0)
        return {"winner": ahead, "scores": [11.0 if seat == ahead else (2.0 if second else 9.0) for seat in (0, 1)]}

    rounds = play(plan, judge)
    assert (len(rounds), plan.champion) == (1, 1)


def test_the_same_arguments_and_results_give_the_same_tournament() -> None:
    for make in (lambda: Swiss(7, 4, 3), lambda: DoubleElimination(7, 3, 2), lambda: SingleElimination(7, 3)):
        assert play(make(), by_hash(1)) == play(make(), by_hash(1))
