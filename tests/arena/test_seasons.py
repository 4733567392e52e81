"""A season ends as a whole: its boards are kept, its secret is told, and the next one starts with nothing."""

from __future__ import annotations

import itertools

import pytest

from harena.arena.db.models import (
    BoardKind,
    Conflict,
    EnvironmentKind,
    Event,
    JobState,
    MatchState,
    State,
    SubmissionKind,
    TournamentState,
)
from harena.arena.db.records import DefaultQuota, EvaluationOutcome
from harena.arena.ladder.fold import Fold
from harena.arena.ladder.rebuild import rebuild
from harena.arena.submissions import evaluate
from support.ladders import GAME, Bench

POLE = "CartPole-v1"


@pytest.fixture
def bench(tmp_path, two_workers, url):
    bench = Bench(tmp_path, two_workers, url=url)
    yield bench
    bench.close()


@pytest.fixture
def ladder(bench):
    """Five agents, the first the best."""
    agents = [bench.enter(f"owner{n}") for n in range(5)]
    for better, worse in itertools.pairwise(agents):
        for _ in range(6):
            bench.end(bench.match(better, worse))
    fold = Fold(bench.store, GAME, bench.season.id)
    fold.advance()
    bench.standings.refit(fold)
    return agents


def scored(bench, owner, score, kind=SubmissionKind.VERIFIED):
    made = bench.store.submissions.add(
        owner, POLE, algorithm="A", digest="0" * 64, main_file="agent.py", quota=DefaultQuota()
    )
    bench.store.submissions.check(made.id, kind)
    bench.store.submissions.move(made.id, Event.QUEUE)
    bench.store.submissions.move(made.id, Event.START)
    return bench.store.submissions.rank(made.id, EvaluationOutcome(score=score))


def order(bench, season):
    return [line.submission_id for line in bench.standings.standings(GAME, season_id=season.id)]


def test_a_ladder_that_ended_is_kept_and_the_next_season_is_empty(bench, ladder):
    season = bench.season
    before = bench.standings.standings(GAME)
    late = bench.match(*ladder[:2])
    ended = bench.seasons.end(season.id)
    assert ended.ended_at is not None
    assert bench.store.seasons.live(GAME) is None
    assert bench.standings.standings(GAME, season_id=season.id) == before
    assert len(before) == 5
    assert bench.standings.standings(GAME) == []
    assert bench.store.matches.get(late.id).state is MatchState.CANCELLED
    assert bench.queue.counts()[("match", JobState.CANCELLED)] == 25
    bench.seasons.start(GAME, "season 2")
    bench.matchmaker.step()
    assert bench.standings.standings(GAME) == []
    assert bench.store.matches.open() == []
    assert bench.store.roster.live(bench.season.id) == []
    bench.enter("owner0")
    assert [agent.version for agent in bench.store.roster.live(bench.season.id)] == [2]
    assert bench.standings.standings(GAME, season_id=season.id) == before


def test_a_kept_board_follows_from_the_log_though_an_agent_was_deleted_since(bench, ladder):
    season = bench.season
    bench.seasons.end(season.id)
    bench.store.submissions.delete(ladder[2])
    assert rebuild(bench.store, GAME, season.id, check=True).same
    assert len(order(bench, season)) == 5


def test_the_secret_is_told_in_the_end_and_is_the_one_that_was_promised(bench):
    season = bench.season
    promised = bench.seasons.commitment(season.id)
    assert bench.seasons.reveal(season.id) is None
    bench.seasons.end(season.id)
    secret = bench.seasons.reveal(season.id)
    assert secret is not None
    assert evaluate.commitment(secret) == promised
    assert secret.hex() not in repr(bench.store.events.after(0, limit=1000))
    assert bench.store.seasons.secret(bench.seasons.start(GAME, "season 2").id) != secret


def test_boards_of_scores_are_kept_apart_and_the_live_ones_emptied(bench):
    bench.store.environments.put(POLE, EnvironmentKind.VERIFIED)
    season = bench.seasons.start(POLE, "season 1")
    for owner, score in (("ann", 10.0), ("bob", 30.0), ("cyd", 10.0), ("dan", 20.0)):
        scored(bench, owner, score)
        bench.clock.now += 1
    scored(bench, "eve", 1e9, SubmissionKind.SELF_REPORTED)
    bench.seasons.end(season.id, without_finals=True)
    lines = bench.standings.standings(POLE, board=BoardKind.VERIFIED, season_id=season.id)
    assert [(line.owner, line.rank, line.place, line.score) for line in lines] == [
        ("bob", 1, 1, 30.0),
        ("dan", 2, 2, 20.0),
        ("ann", 3, 3, 10.0),
        ("cyd", 3, 4, 10.0),
    ]
    self_reported = bench.standings.standings(POLE, board=BoardKind.SELF_REPORTED, season_id=season.id)
    assert [line.owner for line in self_reported] == ["eve"]
    assert bench.store.boards.top(POLE) == [] == bench.store.boards.top(POLE, kind=SubmissionKind.SELF_REPORTED)
    bench.seasons.start(POLE, "season 2")
    scored(bench, "bob", 5.0)
    assert [(entry.owner, entry.score) for entry in bench.store.boards.top(POLE)] == [("bob", 5.0)]


def test_what_was_not_evaluated_in_time_is_called_off_and_costs_nothing(bench):
    made = bench.store.submissions.add(
        "ann", GAME, algorithm="A", digest="0" * 64, main_file="agent.py", quota=DefaultQuota()
    )
    bench.store.submissions.check(made.id, SubmissionKind.VERIFIED)
    bench.store.submissions.move(made.id, Event.QUEUE)
    job = bench.queue.enqueue("enter", {"submission_id": made.id})
    bench.store.submissions.set_job(made.id, job)
    bench.seasons.end(bench.season.id)
    after = bench.store.submissions.get(made.id)
    assert after.state is State.CANCELLED
    assert "next" in after.reason
    assert bench.store.quotas.used("ann") == (0, 0)
    assert bench.queue.get(job).state is JobState.CANCELLED


def finals(bench, season, winner, **more):
    made = bench.seasons.finals(season.id, **more)
    for _ in range(100):
        bench.tournaments.advance()
        if bench.tournaments.get(made.id).state is TournamentState.FINISHED:
            return bench.tournaments.get(made.id)
        for match in bench.store.matches.open():
            bench.end(match, [float(seat.submission_id == winner) for seat in match.seats])
    raise AssertionError


def test_finals_decide_the_order_of_the_finalists_and_the_ladder_that_of_the_others(bench, ladder):
    season = bench.season
    bench.seasons.freeze(season.id)
    made = finals(bench, season, ladder[2], top=3, games=2)
    assert made.finals
    assert set(made.participants) == set(ladder[:3])
    bench.seasons.end(season.id)
    lines = bench.standings.standings(GAME, season_id=season.id)
    assert next(line.submission_id for line in lines) == ladder[2]
    assert {line.submission_id for line in lines[:3]} == set(ladder[:3])
    assert [line.submission_id for line in lines[3:]] == ladder[3:]
    assert [line.place for line in lines] == [1, 2, 3, 4, 5]
    assert [line.rank for line in lines[:3]] == [1, 2, 2]
    assert min(line.rank for line in lines[3:]) == 4
    assert rebuild(bench.store, GAME, season.id, check=True).same


def test_finals_want_a_frozen_season_and_come_once(bench, ladder):
    season = bench.season
    with pytest.raises(Conflict, match="freeze"):
        bench.seasons.finals(season.id)
    assert bench.seasons.freeze(season.id).frozen
    first = bench.seasons.finals(season.id, top=2)
    with pytest.raises(Conflict, match="already"):
        bench.seasons.finals(season.id)
    with pytest.raises(Conflict, match="being played"):
        bench.seasons.end(season.id)
    assert bench.store.seasons.live(GAME) is not None
    bench.tournaments.cancel(first.id)
    bench.tournaments.cancel(bench.seasons.finals(season.id, top=99).id)
    bench.seasons.end(season.id)
    for call in (bench.seasons.end, bench.seasons.finals, bench.seasons.freeze):
        with pytest.raises(Conflict, match="ended"):
            call(season.id)
    assert order(bench, season) == ladder


def test_the_seeds_of_the_finals_are_new(bench, ladder):
    seeds = []
    for _ in range(2):
        bench.seasons.freeze(bench.season.id)
        made = bench.seasons.finals(bench.season.id)
        bench.tournaments.advance()
        seeds += [match.seed for match in bench.store.matches.open()]
        bench.tournaments.cancel(made.id)
    assert len(set(seeds)) > 1


def test_another_tournament_does_not_outlive_its_season(bench, ladder):
    made = bench.tournaments.create(GAME, "cup", participants=ladder)
    bench.tournaments.advance()
    bench.seasons.end(bench.season.id)
    assert bench.tournaments.get(made.id).state is TournamentState.CANCELLED
    assert bench.store.matches.open() == []


def test_a_matchmaker_that_looked_before_the_end_makes_no_match_after_it(bench, ladder):
    bench.matchmaker.step()
    (chosen,) = bench.matchmaker._live_ladders()
    bench.seasons.end(bench.season.id)
    assert not chosen.make_one()
    assert bench.store.matches.open() == []


def test_an_end_that_fails_half_way_has_not_happened(bench, ladder, monkeypatch):
    season = bench.season
    monkeypatch.setattr(bench.store.seasons, "end", lambda season_id: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.seasons.end(season.id)
    assert bench.store.seasons.live(GAME) == season
    assert len(bench.standings.standings(GAME)) == 5
