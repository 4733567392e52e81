"""The matchmaker makes the matches that are due, no more, and benches who keeps failing."""

from __future__ import annotations

from collections import Counter

import pytest

from harena.arena.db.events import EventNotice
from harena.arena.db.models import Conflict, EnvironmentKind, JobState, MatchKind, MatchState
from harena.arena.ladder import matchmaker as module
from harena.arena.ladder import pairing
from support.ladders import GAME, Bench


@pytest.fixture
def bench(tmp_path, two_workers, monkeypatch):
    monkeypatch.setattr(module, "TICK_S", 0.0)  # sweeps each time
    monkeypatch.setattr(module, "REFIT_S", 0.0)
    bench = Bench(tmp_path, two_workers, settings={"games_target": 4, "upkeep_s": 30, "provisional_games": 2})
    yield bench
    bench.close()


def play(bench, steps, strength=lambda agent: 0, **end):
    """Lets the matchmaker and imaginary workers take turns; what was played."""
    played = []
    for _ in range(steps):
        bench.matchmaker.step()
        ended = bench.store.matches.open()
        for match in ended:
            scores = [float(strength(seat.submission_id)) for seat in match.seats]
            bench.end(match, **({"scores": scores} | end))
        played += ended
    bench.matchmaker.step()
    for match in bench.store.matches.open():
        bench.end(match)
    return played


def test_no_more_matches_are_open_than_can_be_played_and_nobody_sits_in_two(bench):
    for n in range(10):
        bench.enter(f"owner{n}")
    open_ = []
    for _ in range(3):
        bench.matchmaker.step()
        open_ = bench.store.matches.open()
        assert len(open_) == bench.matches.at_once == 2
        assert max(Counter(seat.submission_id for match in open_ for seat in match.seats).values()) == 1
    assert all(match.rated and match.season_id == bench.season.id for match in open_)
    assert all(0 < match.seed < 1 << 63 for match in open_)
    assert len({match.seed for match in open_}) == 2
    assert bench.queue.counts() == {("match", JobState.QUEUED): 2}


def test_a_challenge_that_is_open_takes_the_place_of_a_ladder_match(bench):
    agents = [bench.enter(f"owner{n}") for n in range(6)]
    bench.challenges.challenge(agents[0], agents[1], 2)
    bench.matchmaker.step()
    assert {match.kind for match in bench.store.matches.open()} == {MatchKind.CHALLENGE}


@pytest.mark.parametrize("kind", ["evaluate", "enter", "script"])
def test_ladders_play_on_while_submissions_wait(bench, kind):
    for n in range(8):
        bench.enter(f"owner{n}")
    bench.queue.enqueue(kind, {"submission_id": "x"})
    for _ in range(3):
        bench.matchmaker.step()
        assert len(bench.store.matches.open()) == 2  # one that is played, and the next
        bench.end_all(lambda agent: 0)


def test_everybody_gets_the_target_then_one_match_each_upkeep(bench):
    agents = [bench.enter(f"owner{n}") for n in range(4)]
    played = play(bench, 20)
    games = Counter(seat.submission_id for match in played for seat in match.seats)
    assert set(games) == set(agents)
    assert min(games.values()) >= 4
    assert len(played) <= 12
    assert play(bench, 3) == []
    bench.clock.now += 31
    assert len(play(bench, 3)) == 1
    newcomer = bench.enter("late")
    bench.clock.now += 0.5
    assert sum(newcomer in [seat.submission_id for seat in match.seats] for match in play(bench, 10)) >= 4


def test_who_has_played_enough_is_remembered_after_a_restart(bench):
    for n in range(3):
        bench.enter(f"owner{n}")
    play(bench, 20)
    bench.matchmaker = bench.new_matchmaker()
    assert play(bench, 3) == []
    lines = bench.standings.standings(GAME)
    assert len(lines) == 3
    assert all(line.games >= 4 for line in lines)


@pytest.mark.parametrize("state", [MatchState.VOID, MatchState.TIMEOUT])
def test_matches_that_give_no_result_are_not_made_for_ever_and_move_no_rating(bench, state):
    for n in range(2):
        bench.enter(f"owner{n}")
    played = play(bench, 30, state=state)
    assert len(played) == 4
    assert bench.store.ratings.latest(GAME) == {}
    assert bench.standings.standings(GAME) == []


def test_a_match_whose_job_was_called_off_is_void_and_holds_nobody_up(bench):
    agents = [bench.enter(f"owner{n}") for n in range(4)]
    bench.matchmaker.step()
    first, second = bench.store.matches.open()
    job = bench.queue.find(f"match:{first.id}")
    bench.queue.cancel(job.id)
    bench.end(second)
    bench.matchmaker.step()
    assert bench.store.matches.get(first.id).state is MatchState.VOID
    assert set(bench.store.ratings.latest(GAME)) == {seat.submission_id for seat in second.seats} <= set(agents)


def test_an_environment_that_is_off_plays_on_what_is_open_but_starts_nothing(bench):
    for n in range(2):
        bench.enter(f"owner{n}")
    bench.matchmaker.step()
    bench.store.environments.put(GAME, EnvironmentKind.LADDER, enabled=False)
    bench.end_all(lambda agent: 0)
    bench.matchmaker.step()
    assert bench.store.matches.open() == []
    assert len(bench.store.ratings.latest(GAME)) == 2


def test_agents_of_one_owner_meet_only_where_the_host_lets_them(tmp_path, two_workers):
    for meet, expected in ((True, 1), (False, 0)):
        (tmp_path / str(meet)).mkdir()
        bench = Bench(tmp_path / str(meet), two_workers, settings={"owners_meet": True} if meet else {})
        bench.enter("ann", "one")
        bench.enter("ann", "two")
        bench.matchmaker.step()
        assert len(bench.store.matches.open()) == expected
        bench.close()


def test_of_one_owners_agents_the_latest_three_play(bench):
    other = bench.enter("bob")
    sent = [bench.enter("ann", f"agent {n}") for n in range(5)]
    met = set()
    for _ in range(30):
        bench.matchmaker.step()
        for match in bench.store.matches.open():
            met |= {seat.submission_id for seat in match.seats}
        bench.end_all(lambda agent: agent == other)
    assert met == {other, *sent[2:]}


def test_the_stronger_are_above_and_every_result_counts(bench):
    strength = {bench.enter(f"owner{n}"): n for n in range(6)}
    bench.store.environments.put(GAME, EnvironmentKind.LADDER, settings={"games_target": 12})
    played = play(bench, 60, strength.__getitem__)
    bench.matchmaker.step()
    lines = bench.standings.standings(GAME)
    assert [line.submission_id for line in lines] == sorted(strength, key=strength.__getitem__, reverse=True)
    assert sum(line.games for line in lines) == 2 * len(played)
    assert len(played) >= 36
    assert lines[0].rank == 1
    assert not lines[0].provisional


# ---- the bench ----


def crash(bench, bad, other, times):
    for _ in range(times):
        match = bench.match(bad, other)
        bench.end(match, (0.0, 1.0), ("crash", "ok"))
        bench.matchmaker.step()
        bench.end_all(lambda agent: 0)


def test_an_agent_that_keeps_crashing_is_benched_with_the_reason_and_stays_on_the_board(bench):
    bad, other, third = (bench.enter(name) for name in ("bad", "other", "third"))
    crash(bench, bad, other, pairing.FAULTS)
    benched = bench.store.roster.benched(bad)
    assert benched is not None
    assert "5 crash" in benched.reason
    assert "new version" in benched.reason
    assert [one.submission_id for one in bench.store.roster.all_benched(env_id=GAME)] == [bad]
    bench.clock.now += 1000
    for match in play(bench, 5):
        assert bad not in [seat.submission_id for seat in match.seats]
    marked = {line.submission_id: line.benched for line in bench.standings.standings(GAME)}
    assert marked == {bad: True, other: False, third: False}
    assert bench.matchmaker.step() is None
    assert bench.store.roster.benched(other) is None


def test_crashes_in_challenges_bench_nobody(bench):
    bad, other = bench.enter("bad"), bench.enter("other")
    for _ in range(10):
        bench.end(bench.match(bad, other, kind=MatchKind.CHALLENGE), (0.0, 1.0), ("crash", "ok"))
    bench.matchmaker.step()
    assert bench.store.roster.all_benched() == []


def test_who_was_let_off_the_bench_starts_with_a_clean_record(bench):
    bad, other = bench.enter("bad"), bench.enter("other")
    crash(bench, bad, other, pairing.FAULTS)
    with pytest.raises(Conflict):
        bench.store.roster.bench(bad, "again")
    bench.store.roster.unbench(bad)
    with pytest.raises(Conflict):
        bench.store.roster.unbench(bad)
    assert bench.store.roster.behaviour(bad, 9) == []
    crash(bench, bad, other, pairing.FAULTS - 1)
    assert bench.store.roster.benched(bad) is None
    crash(bench, bad, other, 1)
    assert bench.store.roster.benched(bad) is not None


def test_a_new_version_of_a_benched_agent_plays(bench):
    bad, other = bench.enter("bad"), bench.enter("other")
    crash(bench, bad, other, pairing.FAULTS)
    fixed = bench.enter("bad")
    bench.clock.now += 1000
    bench.matchmaker.step()
    assert fixed in [seat.submission_id for match in bench.store.matches.open() for seat in match.seats]
    assert bench.store.roster.benched(fixed) is None


def test_a_host_can_bench_an_agent_for_another_reason(bench):
    bad = bench.enter("bad")
    bench.enter("other")
    bench.store.roster.bench(bad, "it plays against the spirit of the game")
    bench.matchmaker.step()
    assert bench.store.matches.open() == []


def test_its_own_news_do_not_wake_it_and_those_of_others_do(bench):
    def wakes(topic, kind):
        bench.matchmaker._bell.clear()
        bench.matchmaker._heard(EventNotice(number=1, topic=topic, kind=kind, body={}, created_at=0.0))
        return bench.matchmaker._bell.is_set()

    assert not wakes(f"matches:{GAME}", "scheduled")
    assert not wakes(f"board:{GAME}", "board")
    assert not wakes("queue", "queue")
    assert wakes(f"matches:{GAME}", "finished")
    assert wakes(f"board:{GAME}", "bench")
    assert wakes("submission:x", "state")
