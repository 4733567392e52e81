"""A schedule against made-up results: order, voids, interruption, tables. No boxes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from harena.errors import StartTimeout
from harena.match.result import AgentCode, MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus
from harena.match.run.protocol import wait
from harena.match.series.contest import Contest, Finished, ahead, lockstep
from harena.match.series.schedule import Pairing
from harena.match.series.tournament import Fixed, SingleElimination, round_robin, series

NAMES = "abcdefgh"


def spec_of(pairing: Pairing) -> MatchSpec:
    codes = tuple(AgentCode(name=NAMES[agent], files={}) for agent in pairing.seats)
    return MatchSpec(environment="game-v1", agents=codes, seed=pairing.seed, match_id=str(pairing.number))


def result_of(spec: MatchSpec, winner: int | None, status: MatchStatus = MatchStatus.FINISHED) -> MatchResult:
    scores = [0.0 if winner is None else 1.0 if seat == winner else -1.0 for seat in range(len(spec.agents))]
    seats = tuple(
        SeatResult(
            agent=code.name,
            status=SeatStatus.OK,
            reason="",
            score=score,
            cpu_s=0.5,
            moves=10,
            start_s=0.1,
            log="x" * 1000,
        )
        for code, score in zip(spec.agents, scores, strict=True)
    )
    return MatchResult(
        match_id=spec.match_id,
        environment=spec.environment,
        seed=spec.seed,
        status=status,
        winner=winner,
        reason="",
        steps=20,
        wall_s=1.0,
        seats=seats,
        replay=b"replay",
    )


def a_wins(specs: Iterator[MatchSpec]) -> Iterator[MatchResult]:
    for spec in specs:
        names = [code.name for code in spec.agents]
        yield result_of(spec, names.index(min(names)))


def test_a_contest_is_played_to_the_end_and_makes_a_table() -> None:
    table = Contest(Fixed(3, round_robin(3, 20, True, 1)), spec_of)
    heard: list[tuple[int, int]] = []
    kept: list[bytes] = []
    table.run(
        a_wins,
        progress=lambda done, total: heard.append((done, total)),
        finished=lambda game: kept.append(game.result.replay),
    )
    assert heard == [(done, 60) for done in range(1, 61)]
    assert kept == [b"replay"] * 60
    rows = table.rows()
    assert [(row.standing.agent, row.standing.points, row.moves, row.cpu_s) for row in rows] == [
        (0, 40, 400, 20.0),
        (1, 20, 400, 20.0),
        (2, 0, 400, 20.0),
    ]
    assert rows[0].rate.low > 0.8
    assert [comparison.sentence(NAMES) for comparison in table.comparisons()] == ["a beats b", "a beats c", "b beats c"]
    assert json.dumps([row.as_json(NAMES) for row in rows], allow_nan=False)


def test_what_is_kept_has_no_logs_and_no_replays() -> None:
    table = Contest(Fixed(2, series(2, 2, mirror=False, seed=1)), spec_of)
    table.run(a_wins)
    assert all(game.result.replay == b"" and game.result.seats[0].log == "" for game in table.games)


def test_a_void_match_is_played_again_and_counts_once() -> None:
    def play(specs: Iterator[MatchSpec]) -> Iterator[MatchResult]:
        for spec in specs:
            void = spec.match_id == "1" and next(broken, None) is not None
            yield result_of(spec, None if void else 0, MatchStatus.VOID if void else MatchStatus.FINISHED)

    broken = iter(["first", "second"])
    table = Contest(Fixed(2, series(2, 3, mirror=False, seed=1)), spec_of)
    table.run(play)
    assert [(game.pairing.number, game.pairing.attempt) for game in table.games] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (1, 1),
        (1, 2),
    ]
    assert [row.standing.games for row in table.rows()] == [3, 3]
    assert table.schedule.no_result == []


def test_a_match_that_ran_out_of_time_is_a_draw_and_a_cancelled_one_no_result() -> None:
    for status, points in ((MatchStatus.TIMEOUT, 0.5), (MatchStatus.CANCELLED, 0.0)):
        table = Contest(Fixed(2, series(2, 1, mirror=False, seed=1)), spec_of)
        table.run(lambda specs, status=status: (result_of(spec, None, status) for spec in specs))
        assert [row.standing.points for row in table.rows()] == [points, points]


def test_scores_that_are_no_numbers_are_no_result_and_no_broken_json() -> None:
    def play(specs: Iterator[MatchSpec]) -> Iterator[MatchResult]:
        for spec in specs:
            result = result_of(spec, 0)
            yield replace(result, seats=(replace(result.seats[0], score=float("inf")), result.seats[1]))

    table = Contest(Fixed(2, series(2, 1, mirror=False, seed=1)), spec_of)
    table.run(play)
    assert len(table.schedule.no_result) == 1
    assert json.loads(json.dumps(table.games[0].as_json(), allow_nan=False))["scores"] == [None, -1.0]


def test_a_contest_without_games_has_a_table_too() -> None:
    table = Contest(Fixed(2, []), spec_of)
    table.run(a_wins)
    assert json.dumps([row.as_json(NAMES) for row in table.rows()], allow_nan=False)
    assert json.dumps([comparison.as_json() for comparison in table.comparisons()], allow_nan=False)


def test_json_is_by_agent_wherever_it_sat() -> None:
    pairing = Pairing(seats=(3, 1), seed=5, round=2, number=0)
    data = Finished(pairing, result_of(spec_of(pairing), 0)).as_json()
    assert (data["winner"], data["scores"]) == (3, [-1.0, 1.0])
    assert [(seat["agent"], seat["index"], seat["seat"], seat["score"]) for seat in data["seats"]] == [
        ("b", 1, 1, -1.0),
        ("d", 3, 0, 1.0),
    ]


def test_an_adaptive_tournament_is_fed_round_by_round() -> None:
    plan = SingleElimination(8, 0)
    table = Contest(plan, spec_of)
    table.run(a_wins)
    assert (plan.champion, len(table.games)) == (0, 7)
    assert [comparison.games for comparison in table.comparisons()].count(0) == 28 - 7


# ---- on a runner ----


class Handle:
    def __init__(self, spec: MatchSpec, seeds: Sequence[int] | None, waits: int) -> None:
        self.spec, self.seeds, self.waits, self.cancelled = spec, seeds, waits, False

    def result(self, timeout: float | None = None) -> MatchResult:
        return self.results(timeout)[0]

    def results(self, timeout: float | None = None) -> list[MatchResult]:
        if self.waits:
            self.waits -= 1
            raise TimeoutError
        return [result_of(replace(self.spec, seed=seed), 0) for seed in self.seeds or [self.spec.seed]]

    def cancel(self) -> None:
        self.cancelled = True


class Runner:
    def __init__(self) -> None:
        self.handles: list[Handle] = []

    def submit(self, spec: MatchSpec, on_event: object = None, *, seeds: Sequence[int] | None = None) -> Handle:
        self.handles.append(Handle(spec, seeds, waits=len(self.handles) % 3))
        return self.handles[-1]


def test_lockstep_games_are_of_the_same_agents_in_the_same_seats_and_come_in_order() -> None:
    runner = Runner()
    pairings = series(2, 10, mirror=True, seed=1)
    results = list(lockstep(runner, 4)(map(spec_of, pairings)))
    assert [(result.seed, result.seats[0].agent) for result in results] == [
        (pairing.seed, NAMES[pairing.seats[0]]) for pairing in pairings
    ]
    assert [len(handle.seeds or []) for handle in runner.handles] == [4, 4, 1, 1]


def test_results_come_in_order_with_no_more_than_the_window_handed_over() -> None:
    runner = Runner()
    specs = [spec_of(pairing) for pairing in series(2, 10, mirror=False, seed=1)]
    results = ahead(runner, 4)(iter(specs))
    assert next(results).match_id == "0"
    assert len(runner.handles) == 4
    assert [result.match_id for result in results] == [str(number) for number in range(1, 10)]
    assert not any(handle.cancelled for handle in runner.handles)


def test_what_is_under_way_is_called_off_when_nobody_reads_on() -> None:
    runner = Runner()
    results = ahead(runner, 4)(iter([spec_of(pairing) for pairing in series(2, 10, mirror=False, seed=1)]))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert [handle.cancelled for handle in runner.handles[1:]] == [True] * 3


def test_a_timeout_of_the_match_itself_is_not_waited_for() -> None:
    class Broken(Handle):
        def results(self, timeout: float | None = None) -> list[MatchResult]:
            raise StartTimeout("no box in time")

    with pytest.raises(StartTimeout):
        wait(Broken(spec_of(series(2, 1, mirror=False, seed=1)[0]), None, waits=1))


def test_an_interrupted_contest_keeps_what_was_finished() -> None:
    def play(specs: Iterator[MatchSpec]) -> Iterator[MatchResult]:
        for number, spec in enumerate(specs):
            if number == 2:
                raise KeyboardInterrupt
            yield replace(result_of(spec, 1))

    table = Contest(Fixed(2, series(2, 10, mirror=False, seed=1)), spec_of)
    with pytest.raises(KeyboardInterrupt):
        table.run(play)
    assert [(row.standing.agent, row.standing.points) for row in table.rows()] == [(1, 2.0), (0, 0.0)]


def repeated(specs: Iterator[MatchSpec]) -> Iterator[MatchResult]:
    """Two deterministic agents in a game without chance: the seat alone decides."""
    for spec in specs:
        names = [code.name for code in spec.agents]
        yield replace(result_of(spec, 0), fingerprint="".join(names))


def test_a_game_that_repeats_another_is_no_new_trial() -> None:
    table = Contest(Fixed(2, series(2, 1000, mirror=True, seed=1)), spec_of)
    table.run(repeated)
    assert (table.distinct_games(), table.counted_games()) == (2, 1000)
    rate = table.rows()[0].rate
    assert rate.value == 0.5
    assert rate.low < 0.1, "two games prove nothing, however often they are played"
    assert table.comparisons()[0].games == 1000


def test_games_that_differ_count_one_by_one() -> None:
    table = Contest(Fixed(2, series(2, 100, mirror=False, seed=1)), spec_of)
    table.run(lambda specs: (replace(one, fingerprint=str(one.seed)) for one in a_wins(specs)))
    plain = Contest(Fixed(2, series(2, 100, mirror=False, seed=1)), spec_of)
    plain.run(a_wins)
    assert table.distinct_games() == plain.distinct_games() == 100
    assert table.rows()[0].rate == plain.rows()[0].rate


def test_games_of_one_seat_are_compared_by_the_seeds_that_differ() -> None:
    pairings = [
        Pairing(seats=(agent,), seed=seed, round=1, number=2 * seed + agent) for seed in range(10) for agent in (0, 1)
    ]
    table = Contest(Fixed(2, pairings), spec_of)
    table.run(lambda specs: (replace(result_of(spec, 0), fingerprint=str(spec.seed % 2)) for spec in specs))
    assert table.distinct_games() == 4
    assert [row.score.low for row in table.rows()] == [float("-inf")] * 2, "two different seeds are too few"
