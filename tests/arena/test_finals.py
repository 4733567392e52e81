"""Draws, practice and finals: what an owner gets told, and what decides a verified season."""

from __future__ import annotations

import struct

import pytest

from support.entries import ENV, names, ranked, started

pytest.importorskip("gymnasium")

from harena.arena.db.models import BoardKind, Conflict, EnvironmentKind, FinalState, State
from harena.arena.db.records import EvaluationOutcome
from harena.arena.events.bus import Hub
from harena.arena.ladder.matches import MatchService
from harena.arena.ladder.standings import Standings
from harena.arena.ladder.tournaments import TournamentService
from harena.arena.seasons import finals
from harena.arena.seasons.service import Seasons
from harena.arena.submissions import draws
from harena.arena.submissions import service as module
from harena.arena.submissions.verify import Agreement, ResultVerifier
from harena.arena.work.perform import RELEASE_S, release_s
from harena.match import registry
from harena.match.replay.replay import Replay
from harena.match.run.runner import Runner
from support.submitting import AGENT, POLE, Bench

DICE = b"import os\ndef act(observation): return os.urandom(1)[0] % 2\n"
# Fails where the cart starts on the right.
PICKY = b"""
first = True
def act(observation):
    global first
    if first and observation[0] > 0.0:
        raise Saw[0]("at %r" % observation[0])
    first = False
    return 0
class Saw_it_on_the_right(Exception): pass
Saw = [Saw_it_on_the_right]
print("MY LOG")
"""


@pytest.fixture(scope="module")
def runner():
    with Runner(1) as runner:
        yield runner


@pytest.fixture
def bench(tmp_path, runner):
    bench = Bench(tmp_path, runner)
    bench.standings = Standings(bench.store)
    hub = Hub(bench.store)
    matches = MatchService(bench.store, bench.queue, bench.files, hub, runner, bench.submissions)
    tournaments = TournamentService(bench.store, bench.standings, matches)
    bench.seasons = Seasons(bench.store, bench.queue, bench.standings, matches, tournaments)
    yield bench
    hub.close()
    bench.close()


def scored(store, owner, score, digest, algorithm="DQN"):
    """A submission with its own code and this score."""
    store.database.clock.now += 1
    made = started(store, owner, algorithm)
    with store.begin() as connection:
        connection.exec_driver_sql(f"UPDATE submissions SET digest = '{digest * 64}' WHERE id = '{made.id}'")
    return store.submissions.rank(made.id, EvaluationOutcome(score=score, low=score - 1, high=score + 1, episodes=20))


# ---- one draw for each code ----


def test_the_same_code_keeps_its_first_result_whoever_sends_it(bench):
    bench.work()
    first = bench.until(bench.send(DICE))
    again = [bench.until(bench.send(DICE, owner=owner)) for owner in ("ann", "bob", "cyd")]
    assert {one.score for one in again} == {first.score}
    assert {bench.until(bench.submissions.reevaluate(one.id)).score for one in again} == {first.score}
    season = first.season_id
    assert bench.store.draws.tries(season, [first.owner_id]) == {first.owner_id: 1}
    bench.until(bench.send(DICE + b"# other code\n"))
    bench.submissions.delete(first.id)
    assert bench.store.draws.tries(season, [first.owner_id]) == {first.owner_id: 2}


def test_the_best_of_many_tries_is_discounted_by_what_luck_gives():
    assert draws.discounted(0.5, 0.3, 0.7, 1) == 0.5
    spread = 0.4 / (2 * draws.Z95)
    for tries, luck in ((2, 0.564), (10, 1.539), (100, 2.508)):  # expected maxima of so many normal values
        assert (0.5 - draws.discounted(0.5, 0.3, 0.7, tries)) / spread == pytest.approx(luck, abs=0.03)
    assert draws.discounted(0.5, None, None, 9) is None


def test_a_failure_in_a_hidden_episode_tells_its_kind_and_nothing_else(bench, monkeypatch):
    monkeypatch.setattr(module.evaluate, "practice_seeds", lambda environment, episodes: LEFT_STARTS[:episodes])
    # So many that one of them starts on the right: half of all do.
    many = {"episodes": 60, "practice_episodes": 2, "move_s": 5.0}
    bench.store.environments.put(POLE, EnvironmentKind.VERIFIED, settings=many)
    bench.work()
    done = bench.until(bench.send(PICKY))
    assert done.state is State.FAILED
    assert done.reason == module.HIDDEN_FAULT.format("crash")
    assert bench.submissions.log(done) == "MY LOG\n"
    seen = str(bench.store.events.after(0, limit=1000)) + done.reason + bench.submissions.log(done)
    assert not any(word in seen for word in ("Saw", "right", " at ", "episode 1", "episode 2", "episode 3"))
    again = bench.until(bench.send(PICKY, owner="bob"))
    assert (again.state, again.reason) == (done.state, done.reason)
    kept = bench.store.draws.find(done.season_id, done.digest, draws.conditions(bench.submissions._play_settings(done)))
    assert kept is not None
    assert (kept.fault, "Saw_it_on_the_right" in kept.metrics["reason"]) == ("crash", True)


def left_starts():
    found = []
    for seed in range(100):
        game = registry.make(POLE)
        game.reset(seed)
        if struct.unpack("f", bytes(game.observe(0))[:4])[0] < 0:
            found.append(seed)
    return found


LEFT_STARTS = left_starts()


def test_practice_gives_the_owner_returns_logs_and_replays_of_public_seeds(bench):
    bench.work()
    done = bench.until(bench.send(AGENT))
    report = bench.store.draws.practice(done.id)
    assert report is not None
    assert len(report["episodes"]) == 2
    for one in report["episodes"]:
        replay = Replay.load(bench.files.get(one["replay"]))
        assert (str(replay.seed), replay.scores) == (one["seed"], (one["score"],))
        assert bench.submissions.kept_log(one["log"]) == "hello\n"


def test_results_are_published_at_a_few_moments_only():
    moments = sorted({release_s(n / 1000) for n in range(300_000)})
    assert moments[0] == RELEASE_S
    assert len(moments) < 24
    assert all(release_s(n / 1000) >= n / 1000 for n in range(300_000))
    assert all(release_s(one) == pytest.approx(one) for one in moments)


# ---- who is a finalist ----


@pytest.fixture
def season(store):
    return store.seasons.start(ENV, "season 1")


def test_an_owner_chooses_two_and_can_take_one_back(store, season):
    one, two, three = (scored(store, "ann", score, digit) for score, digit in ((3.0, "a"), (2.0, "b"), (1.0, "c")))
    finals.choose(store, two)
    finals.choose(store, two)
    finals.choose(store, three)
    with pytest.raises(Conflict, match="2 finalists are chosen"):
        finals.choose(store, one)
    finals.choose(store, three, chosen=False)
    finals.choose(store, one)
    assert {*store.finalists.of_owner(season.id, one.owner_id)} == {two.id, one.id}
    with pytest.raises(Conflict, match="verified score"):
        finals.choose(store, started(store, "ann"))


def test_without_a_choice_an_owners_two_best_programs_are_finalists(store, season):
    ann = [scored(store, "ann", score, digit) for score, digit in ((9.0, "a"), (9.0, "a"), (8.0, "b"), (7.0, "c"))]
    bob = [scored(store, "bob", score, digit) for score, digit in ((6.0, "d"), (5.0, "e"))]
    finals.choose(store, bob[1])
    started_ = finals.start(store, store.jobs, season)
    assert {(one.submission_id, one.chosen) for one in started_} == {
        (ann[0].id, False),
        (ann[2].id, False),
        (bob[1].id, True),
    }
    assert {one.state for one in started_} == {FinalState.QUEUED}
    assert store.finalists.progress(season.id) == (0, 3)
    with pytest.raises(Conflict, match="have begun"):
        finals.choose(store, bob[0])
    with pytest.raises(Conflict, match="already"):
        finals.start(store, store.jobs, season)


def test_finals_of_the_best_owners_only(store, season):
    best = scored(store, "ann", 9.0, "a")
    scored(store, "bob", 8.0, "b")
    assert [one.submission_id for one in finals.start(store, store.jobs, season, top=1)] == [best.id]


def test_finals_wait_for_what_is_still_to_be_evaluated(store, season):
    ranked(store, 1.0)
    started(store, "bob")
    with pytest.raises(Conflict, match="1 submissions"):
        finals.start(store, store.jobs, season)


def test_finalists_that_the_platform_failed_at_are_started_again(store, season):
    ranked(store, 1.0)
    (one,) = finals.start(store, store.jobs, season)
    store.finalists.give_up(season.id, one.submission_id, one.job_id + 1)  # an older job's word
    assert store.finalists.progress(season.id) == (0, 1)
    store.finalists.give_up(season.id, one.submission_id, one.job_id)
    (again,) = finals.start(store, store.jobs, season)
    assert (again.state, again.job_id != one.job_id) == (FinalState.QUEUED, True)


# ---- the final board ----


def test_the_finals_decide_the_order_and_nobody_hears_of_them_before(bench):
    season = bench.store.seasons.live(POLE)
    with pytest.raises(Conflict, match="freeze"):
        bench.seasons.evaluate_finalists(season.id)
    bench.work()
    good = bench.until(bench.send(AGENT, owner="good"))
    bad = bench.until(bench.send(b"def act(observation): return 0\n", owner="lucky"))
    with bench.store.begin() as connection:  # lucky in public
        connection.exec_driver_sql(f"UPDATE board SET score = 499 WHERE submission_id = '{bad.id}'")
    with pytest.raises(Conflict, match="finals have not been played"):
        bench.seasons.end(season.id)
    bench.seasons.freeze(season.id)
    bench.seasons.evaluate_finalists(season.id)
    before = bench.store.events.last()
    with pytest.raises(Conflict, match="of 2 are through"):
        bench.seasons.end(season.id)
    for _ in range(3000):
        if bench.store.finalists.progress(season.id) == (2, 2):
            break
        bench.workers._bell.wait(0.01)
    assert bench.store.events.after(before) == []
    assert bench.store.submissions.get(good.id) == good
    secret = bench.store.seasons.final_secret(season.id)
    bench.seasons.end(season.id)
    lines = bench.standings.standings(POLE, board=BoardKind.VERIFIED, season_id=season.id)
    assert [(line.owner, line.final, line.rank, line.public_score) for line in lines] == [
        ("good", True, 1, good.score),
        ("lucky", True, 2, bad.score),
    ]
    found = bench.store.finalists.find(good.id)
    assert (found.episodes, len(found.metrics["returns"])) == (4, 4)
    assert found.metrics["season"] == module.evaluate.commitment(secret)
    verifier = ResultVerifier(bench.store, bench.files, bench.submissions, runner=bench.runner)
    assert {one.verdict for one in verifier.verify_submission(good.id)} == {Agreement.SAME}
    assert len(verifier.verify_submission(good.id)) == 2


def test_others_stand_below_the_finalists_as_the_public_board_had_them(store, season):
    standings = Standings(store)
    lines = [
        scored(store, owner, score, digit)
        for owner, score, digit in (("ann", 9.0, "a"), ("bob", 8.0, "b"), ("cyd", 7.0, "c"), ("dan", 7.0, "d"))
    ]
    (final,) = finals.start(store, store.jobs, season, top=1)
    store.finalists.keep(
        season.id,
        final.submission_id,
        job_id=final.job_id,
        score=1.0,
        low=0.5,
        high=1.5,
        episodes=100,
        metrics={},
    )
    (done,) = store.finalists.every(season.id)
    standings.archive(ENV, season.id, lines[0].kind, [done])
    kept = standings.standings(ENV, board=BoardKind.VERIFIED, season_id=season.id)
    assert [(line.owner, line.rank, line.place, line.score, line.final) for line in kept] == [
        ("ann", 1, 1, 1.0, True),
        ("bob", 2, 2, 8.0, False),
        ("cyd", 3, 3, 7.0, False),
        ("dan", 3, 4, 7.0, False),
    ]
    assert names(store.boards.top(ENV)) == []


def test_a_season_ends_without_finals_only_when_the_host_says_so(bench):
    season = bench.store.seasons.live(POLE)
    bench.work()
    done = bench.until(bench.send(AGENT))
    bench.workers.stop(0)
    bench.seasons.freeze(season.id)
    bench.seasons.evaluate_finalists(season.id)
    bench.seasons.end(season.id, without_finals=True)
    (line,) = bench.standings.standings(POLE, board=BoardKind.VERIFIED, season_id=season.id)
    assert (line.submission_id, line.final, line.score) == (done.id, False, done.score)
    assert bench.queue.claim("final", "worker") is None


def test_only_verified_environments_have_such_finals(bench):
    other = bench.store.seasons.live("tictactoe-v1")
    bench.seasons.freeze(other.id)
    with pytest.raises(Conflict, match="not verified"):
        bench.seasons.evaluate_finalists(other.id)
    assert bench.store.environments.get("tictactoe-v1").kind is EnvironmentKind.LADDER
