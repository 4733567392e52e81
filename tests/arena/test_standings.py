"""Ratings and boards follow from the match log, and from nothing else."""

from __future__ import annotations

import dataclasses
import random

import pytest
import sqlalchemy as sa

from harena.arena.db import models
from harena.arena.db.models import MatchKind, MatchState
from harena.arena.db.records import Filter, Sort
from harena.arena.ladder import fold as fold_module
from harena.arena.ladder import ratings
from harena.arena.ladder.fold import Fold
from harena.arena.ladder.rebuild import rebuild
from support.ladders import GAME, Bench


@pytest.fixture
def bench(tmp_path, two_workers):
    bench = Bench(tmp_path, two_workers)
    yield bench
    bench.close()


def settle(bench):
    fold = Fold(bench.store, GAME, bench.season.id)
    fold.advance()
    bench.standings.refit(fold)
    return fold


def stored(bench):
    every = bench.store.ratings.all(GAME, season_id=bench.season.id)
    return [(one.match_number, one.submission_id, one.mu, one.sigma) for one in every]


def board(bench, **more):
    return [
        (line.owner, line.version, line.wins, line.draws, line.losses)
        for line in bench.standings.standings(GAME, **more)
    ]


def a_wild_season(bench, *, folds, seed=1):
    """Late results, void and cancelled and unrated matches, timeouts, new versions in between."""
    rng = random.Random(seed)
    agents = [bench.enter(f"owner{n}") for n in range(5)]
    strength = {agent: rng.random() for agent in agents}
    open_ = []
    for step in range(45):
        if step in (20, 35):
            agents[0] = bench.enter("owner0")
            strength[agents[0]] = rng.random()
        kind = MatchKind.CHALLENGE if step % 7 == 3 else MatchKind.LADDER
        open_.append(bench.match(*rng.sample(agents, 2), kind=kind))
        while len(open_) > rng.randrange(1, 6):
            match = open_.pop(rng.randrange(len(open_)))
            state = rng.choice([MatchState.FINISHED] * 6 + [MatchState.VOID, MatchState.TIMEOUT, MatchState.CANCELLED])
            scores = [strength[seat.submission_id] + rng.gauss(0, 0.3) for seat in match.seats]
            bench.end(match, [1.0, 1.0] if step % 11 == 0 else scores, state=state)
            if folds:
                folds(bench)
    for match in open_:
        bench.end(match)
    return agents


def test_late_void_and_unrated_matches_and_new_versions_give_the_same_ratings_whenever_they_are_folded(
    tmp_path, two_workers
):
    found = []
    for name, folds in (("never", None), ("always anew", settle), ("as a ladder does", "kept")):
        (tmp_path / name).mkdir()
        bench = Bench(tmp_path / name, two_workers)
        kept = Fold(bench.store, GAME, bench.season.id)
        a_wild_season(bench, folds=(lambda bench: kept.advance()) if folds == "kept" else folds)  # noqa: B023
        settle(bench)
        names = {key: (one.owner, one.version) for key, one in bench.store.roster.agents(kept.tallies).items()}
        names |= {agent.submission_id: (agent.owner, agent.version) for agent in _all_agents(bench)}
        found.append([(number, names[key], mu, sigma) for number, key, mu, sigma in sorted(stored(bench))])
        for check in (True, False):
            again = rebuild(bench.store, GAME, bench.season.id, check=check)
            assert (again.same, again.behind, again.rating, again.line) == (True, 0, "", "")
            assert again.matches == len({number for number, *_ in stored(bench)})
        bench.close()
    by_version = [sorted(one) for one in found]
    assert by_version[0] == by_version[1] == by_version[2]
    assert len(found[0]) >= 30


def _all_agents(bench):
    rows = bench.store.database.rows(sa.select(models.submissions.c.id))
    return bench.store.roster.agents([row["id"] for row in rows]).values()


def test_a_fold_that_dies_half_way_has_done_nothing_and_goes_on_as_if_nothing_had_been(bench, monkeypatch):
    one, other = bench.enter("ann"), bench.enter("bob")
    for _ in range(5):
        bench.end(bench.match(one, other))
    fold = Fold(bench.store, GAME, bench.season.id)
    real, calls = bench.store.ratings.record, []

    def dies(after):
        calls.append(after)
        real(after)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(fold_module, "BATCH", 2)
    monkeypatch.setattr(bench.store.ratings, "record", dies)
    with pytest.raises(KeyboardInterrupt):
        fold.advance()
    assert len(stored(bench)) == 4  # the second pair of matches is not there
    monkeypatch.undo()
    assert len(fold.advance()) == 3
    assert rebuild(bench.store, GAME, bench.season.id, check=True).rating == ""
    assert len(fold.log) == 5
    assert fold.tallies[one].wins == 5


def test_ratings_stop_at_an_open_match_and_each_match_moves_them_once(bench):
    agents = [bench.enter(name) for name in ("ann", "bob", "cyd")]
    first, second = bench.match(*agents[:2]), bench.match(*agents[1:])
    bench.end(second)
    fold = settle(bench)
    assert stored(bench) == []
    assert board(bench) == []
    bench.end(first)
    assert [match.number for match in fold.advance()] == [first.number, second.number]
    assert fold.advance() == []
    assert Fold(bench.store, GAME, bench.season.id).ratings == fold.ratings


def test_elo_is_an_option_and_a_change_of_mind_rates_the_season_anew(bench):
    one, other = bench.enter("ann"), bench.enter("bob")
    for _ in range(3):
        bench.end(bench.match(one, other))
    settle(bench)
    before = stored(bench)
    bench.store.environments.put(GAME, models.EnvironmentKind.LADDER, settings={"model": "elo"})
    settle(bench)
    expected = ratings.fold(
        [ratings.RatedOutcome(number=n, agents=(one, other), ranks=(1, 2)) for n in range(3)], model=ratings.Elo()
    )
    latest = bench.store.ratings.latest(GAME, season_id=bench.season.id)
    assert {key: latest[key].mu for key in latest} == {key: one.mu for key, one in expected.ratings.items()}
    bench.store.environments.put(GAME, models.EnvironmentKind.LADDER, settings={})
    settle(bench)
    assert stored(bench) == before


def test_a_new_version_inherits_and_the_old_one_leaves_the_board_but_not_the_log(bench):
    old, other = bench.enter("ann"), bench.enter("bob")
    for _ in range(6):
        bench.end(bench.match(old, other))
    fold = settle(bench)
    assert board(bench) == [("ann", 1, 6, 0, 0), ("bob", 1, 0, 0, 6)]
    new = bench.enter("ann")
    agent = bench.store.roster.agents([new])[new]
    start = fold.rating(agent)
    assert start.mu == fold.ratings[old].mu
    assert start.sigma > fold.ratings[old].sigma
    assert start.games == 0
    bench.end(bench.match(new, other), (0.0, 1.0))
    settle(bench)
    assert board(bench) == [("bob", 1, 1, 0, 6), ("ann", 2, 0, 0, 1)]
    bench.store.submissions.delete(new)
    settle(bench)
    assert board(bench) == [("ann", 1, 6, 0, 0), ("bob", 1, 1, 0, 6)]
    assert rebuild(bench.store, GAME, bench.season.id, check=True).same


def test_who_has_no_key_cannot_retire_the_agent_of_another_of_the_same_name(bench):
    mine = bench.enter("guest", anonymous=True, client_id="mine")
    stranger = bench.enter("guest", anonymous=True, client_id="stranger")
    with_key = bench.enter("guest", client_id="mine")
    assert {agent.submission_id for agent in bench.store.roster.live(bench.season.id)} == {mine, stranger, with_key}
    newer = bench.enter("guest", anonymous=True, client_id="mine")
    assert {agent.submission_id for agent in bench.store.roster.live(bench.season.id)} == {newer, stranger, with_key}


def test_a_changed_rating_or_line_is_found_named_and_repaired(bench):
    a_wild_season(bench, folds=None)
    settle(bench)
    before = stored(bench), bench.standings.standings(GAME)
    number, agent = before[0][7][:2]
    here = (models.ratings.c.match_number == number) & (models.ratings.c.submission_id == agent)
    with bench.store.begin() as connection:
        connection.execute(models.ratings.update().where(here).values(mu=99.0))
        connection.execute(models.standings.update().where(models.standings.c.place == 2).values(score=9999.0))
    found = rebuild(bench.store, GAME, bench.season.id, check=True)
    assert not found.same
    assert f"match {number}: stored 99.0" in found.rating
    assert "9999.0" in found.line
    assert stored(bench) != before[0]
    assert not rebuild(bench.store, GAME, bench.season.id).same
    assert rebuild(bench.store, GAME, bench.season.id).same
    assert (stored(bench), bench.standings.standings(GAME)) == before


def test_matches_that_were_not_taken_in_yet_are_behind_and_no_difference(bench):
    one, other = bench.enter("ann"), bench.enter("bob")
    bench.end(bench.match(one, other))
    settle(bench)
    bench.end(bench.match(one, other))
    found = rebuild(bench.store, GAME, bench.season.id, check=True)
    assert (found.same, found.behind, found.matches) == (True, 1, 2)
    rebuild(bench.store, GAME, bench.season.id)
    assert rebuild(bench.store, GAME, bench.season.id).behind == 0
    assert len(stored(bench)) == 4


def test_ranks_are_shared_and_only_agents_that_still_play_count_for_them(bench):
    strong, weak = bench.enter("strong"), bench.enter("weak")
    for _ in range(20):
        bench.end(bench.match(strong, weak))
    settle(bench)
    assert [(line.owner, line.rank) for line in bench.standings.standings(GAME)] == [("strong", 1), ("weak", 2)]
    newer = bench.enter("strong")
    bench.end(bench.match(newer, weak), (1.0, 1.0))
    settle(bench)
    assert [line.rank for line in bench.standings.standings(GAME)] == [1, 1]


def test_a_board_can_be_filtered_sorted_and_paged(bench):
    agents = [bench.enter(name, algorithm) for name in ("ann", "bob") for algorithm in ("a", "b")]
    for n, agent in enumerate(agents[1:], 1):
        for _ in range(n + 1):
            bench.end(bench.match(agent, agents[0]))
    settle(bench)
    lines = bench.standings.standings(GAME)
    assert [line.place for line in lines] == [1, 2, 3, 4]
    assert lines[-1].submission_id == agents[0]
    assert [line.submission_id for line in bench.standings.standings(GAME, limit=2, offset=1)] == [
        line.submission_id for line in lines[1:3]
    ]
    assert {line.owner for line in bench.standings.standings(GAME, user="ann")} == {"ann"}
    assert bench.standings.count(GAME) == 4
    assert bench.standings.count(GAME, user="bob", algorithm="b") == 1
    above = Filter(score_min=lines[1].score)
    assert bench.standings.standings(GAME, where=above) == lines[:2]
    assert bench.standings.count(GAME, where=above) == 2
    by_date = bench.standings.standings(GAME, sort=Sort.DATE_ASC)
    assert [line.submission_id for line in by_date] == agents
    assert all(line.provisional for line in lines)
    assert bench.standings.standing(agents[2]) in lines
    assert bench.standings.standings("unknown") == [] == bench.standings.standings(GAME, season_id=99)


def test_a_spark_has_few_points_and_ends_with_the_latest(bench):
    one, other = bench.enter("ann"), bench.enter("bob")
    for _ in range(70):
        bench.end(bench.match(one, other), (0.0, 1.0))
    settle(bench)
    spark = bench.standings.spark([one, other, "nobody"])
    history = [ratings.points(rating.mu, rating.sigma)[0] for rating in bench.store.ratings.history(one)]
    assert spark[one] == history[::-3][::-1]
    assert len(spark[one]) == 24
    assert spark["nobody"] == []
    assert bench.standings.spark([]) == {}


def test_opponents_are_counted_from_the_agents_own_side_without_challenges(bench):
    me, bob, cyd = (bench.enter(name) for name in ("me", "bob", "cyd"))
    for scores in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        bench.end(bench.match(me, bob), scores)
    bench.end(bench.match(cyd, me), (0.0, 1.0))
    bench.end(bench.match(me, cyd, kind=MatchKind.CHALLENGE))
    bench.end(bench.match(me, cyd), state=MatchState.VOID)
    found = [(one.owner, one.games, one.wins, one.draws, one.losses) for one in bench.standings.opponents(me)]
    assert found == [("bob", 3, 1, 1, 1), ("cyd", 1, 1, 0, 0)]


def test_a_log_longer_than_one_batch_is_folded_and_taken_up_the_same(bench, monkeypatch):
    monkeypatch.setattr(fold_module, "BATCH", 4)
    monkeypatch.setattr(fold_module, "TAKE_UP", 7)
    a_wild_season(bench, folds=None, seed=3)
    fold = settle(bench)
    again = Fold(bench.store, GAME, bench.season.id)
    assert again.log == fold.log
    assert again.ratings == fold.ratings
    assert again.tallies == fold.tallies
    assert len(fold.log) > 20


def test_a_standing_is_a_plain_line(bench):
    one, other = bench.enter("ann"), bench.enter("bob")
    bench.end(bench.match(one, other))
    settle(bench)
    line = bench.standings.standings(GAME)[0]
    assert dataclasses.asdict(line)["board"] == "ladder"
    assert line.low < line.score < line.high
