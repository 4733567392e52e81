"""The series driver: order, windows, voids, early stop. No boxes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

from harena.match.series.driver import Series, drive
from harena.match.series.schedule import VOID_REPLAYS, Pairing, Schedule
from harena.match.series.tournament import Fixed, SingleElimination, series

heard: list[tuple[int, int]] = []


def first_wins(schedule: Schedule, pairing: Pairing, result: str) -> None:
    heard.append((pairing.number, pairing.attempt))
    if result == "void":
        schedule.report(pairing, void=True)
    else:
        schedule.report(pairing, winner=pairing.seats.index(min(pairing.seats)))


@pytest.fixture(autouse=True)
def _nothing_heard() -> None:
    heard.clear()


def fixed(games: int) -> Series[str]:
    return Series(Fixed(2, series(2, games, mirror=False, seed=1)), first_wins)


@pytest.mark.parametrize("seed", range(20))
def test_results_in_any_order_are_reported_in_that_of_the_schedule(seed: int) -> None:
    dice, played = random.Random(seed), fixed(12)
    open_: list[Pairing] = []
    while not played.over:
        for pairing in played.todo(dice.randrange(4)):
            played.begun(pairing)
            open_.append(pairing)
        if open_:
            played.ended(open_.pop(dice.randrange(len(open_))), "played")
    assert heard == [(number, 0) for number in range(12)]
    assert open_ == []


def test_games_begin_in_the_order_of_the_schedule() -> None:
    played = fixed(3)
    with pytest.raises(ValueError, match="game 1 is not the next one"):
        played.begun(played.todo()[1])


def test_a_void_game_is_played_again_after_its_round_and_is_no_result_in_the_end() -> None:
    def play(pairings: Iterator[Pairing]) -> Iterator[str]:
        return ("void" if pairing.number == 1 else "played" for pairing in pairings)

    played = fixed(3)
    assert len(list(drive(played, play))) == 3 + VOID_REPLAYS
    assert heard == [(0, 0), (1, 0), (2, 0), *((1, attempt) for attempt in range(1, VOID_REPLAYS + 1))]
    assert [pairing.number for pairing in played.schedule.no_result] == [1]
    assert played.over


def test_rounds_that_depend_on_results_are_driven_to_the_champion() -> None:
    plan = SingleElimination(8, 0)
    assert len(list(drive(Series(plan, first_wins), lambda pairings: ("played" for _ in pairings)))) == 7
    assert plan.champion == 0


def test_a_caller_that_stops_early_closes_the_player_and_reports_no_more() -> None:
    closed: list[int] = []

    def play(pairings: Iterator[Pairing]) -> Iterator[str]:
        try:
            for _ in pairings:
                yield "played"
        finally:
            closed.append(1)

    with contextlib.closing(drive(fixed(5), play)) as games:
        assert [next(games)[0].number for _ in range(2)] == [0, 1]
        assert closed == []
    assert closed == [1]
    assert heard == [(0, 0)]
