"""Tournaments go on from the match log, whatever happened in between."""

from __future__ import annotations

import itertools
import json

import pytest

from harena.arena.db.models import Conflict, EnvironmentKind, MatchKind, MatchState, NotFound, TournamentState
from harena.arena.ladder import tournaments as module
from harena.arena.ladder.fold import Fold
from harena.arena.ladder.tournaments import FORMATS, TournamentService
from harena.errors import SpecError
from support.ladders import GAME, Bench

FINISHED, RUNNING, CANCELLED = TournamentState.FINISHED, TournamentState.RUNNING, TournamentState.CANCELLED


@pytest.fixture
def bench(tmp_path, two_workers, monkeypatch):
    monkeypatch.setattr(module, "TELL_S", 0.0)
    bench = Bench(tmp_path, two_workers)
    yield bench
    bench.close()


def finish(bench, made, *, restart=False, steps=300):
    """Plays it to its end: the lower index wins, neighbours draw now and then."""
    number = {key: at for at, key in enumerate(made.participants)}
    tournaments = bench.tournaments
    for _ in range(steps):
        if restart:
            tournaments = TournamentService(bench.store, bench.standings, bench.matches)
        tournaments.advance()
        if tournaments.get(made.id).state is not RUNNING:
            return tournaments.get(made.id)
        open_ = bench.store.matches.open()
        assert 0 < len(open_) <= module.AHEAD * bench.matches.at_once
        match = open_[-1]  # the latest first: the order of the ends must not matter
        one, other = (number[seat.submission_id] for seat in match.seats)
        drawn = abs(one - other) == 1 and (match.pairing or 0) % 3 == 0
        bench.end(match, (0.5, 0.5) if drawn else (float(one < other), float(other < one)))
    raise AssertionError("it did not end")


def without_ids(result):
    """The same for two tournaments of the same settings."""
    return json.dumps(
        [[{**tie, "matches": len(tie["matches"])} for tie in part["ties"]] for part in result["rounds"]]
        + [result["standings"]]
    )


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_played_to_its_end_and_a_restart_at_any_moment_changes_nothing(bench, format):
    agents = [bench.enter(f"owner{n}") for n in range(5)]
    ended = []
    for restart in (False, True):
        made = bench.tournaments.create(GAME, "cup", format, participants=agents, games=2, seed=7)
        assert made.state is RUNNING
        ended.append(finish(bench, made, restart=restart))
    one, other = ended
    assert one.state is FINISHED
    assert one.finished_at is not None
    assert without_ids(one.result) == without_ids(other.result)
    standings = one.result["standings"]
    assert [standings[0]["agent"], standings[0]["rank"]] == [0, 1]
    assert len(standings) == 5
    ids = [key for part in one.result["rounds"] for tie in part["ties"] for key in tie["matches"]]
    assert len(ids) == len(set(ids)) == len(bench.store.matches.where(tournament_id=one.id, limit=1000))
    for part in one.result["rounds"]:
        for tie in part["ties"]:
            assert set(tie) == {"agents", "matches", "scores", "winner"}
            assert len(tie["scores"]) == len(tie["agents"])
            assert tie["winner"] is None or tie["winner"] in tie["agents"]


def test_a_round_robin_lets_all_meet_in_both_seats_on_the_same_seeds_and_moves_no_rating(bench):
    agents = [bench.enter(f"owner{n}") for n in range(4)]
    made = finish(bench, bench.tournaments.create(GAME, "cup", participants=agents, games=2))
    played = bench.store.matches.where(tournament_id=made.id, limit=100)
    tables = {tuple(seat.submission_id for seat in match.seats) for match in played}
    assert len(played) == len(tables) == 12
    assert len({match.seed for match in played}) == 1
    assert all(match.kind is MatchKind.TOURNAMENT and not match.rated for match in played)
    Fold(bench.store, GAME, bench.season.id).advance()
    assert bench.store.ratings.latest(GAME) == {}


def test_a_bracket_has_a_bye_and_a_final(bench):
    agents = [bench.enter(f"owner{n}") for n in range(3)]
    rounds = finish(bench, bench.tournaments.create(GAME, "cup", "elimination", participants=agents)).result["rounds"]
    assert [part["name"] for part in rounds] == ["round 1", "round 2"]
    assert {"agents": [0], "matches": [], "scores": [0.0], "winner": 0} in rounds[0]["ties"]
    assert rounds[1]["ties"][0]["agents"] == [0, 1]
    assert rounds[1]["ties"][0]["winner"] == 0


def test_void_games_are_played_again_on_the_same_seed_and_given_up_in_the_end(bench):
    agents = [bench.enter("ann"), bench.enter("bob")]
    made = bench.tournaments.create(GAME, "cup", participants=agents, games=2)
    for _ in range(4):
        bench.tournaments.advance()
        for match in bench.store.matches.open():
            bench.end(match, state=MatchState.VOID if match.pairing == 0 else MatchState.FINISHED)
        bench.tournaments = TournamentService(bench.store, bench.standings, bench.matches)
    bench.tournaments.advance()
    assert bench.tournaments.get(made.id).state is FINISHED
    first = [match for match in bench.store.matches.where(tournament_id=made.id) if match.pairing == 0]
    assert len(first) == 4
    assert len({match.seed for match in first}) == 1
    assert {row["agent"]: row["wins"] for row in bench.tournaments.get(made.id).result["standings"]} == {0: 0, 1: 1}


def test_a_match_that_ran_out_of_time_is_a_draw(bench):
    agents = [bench.enter("ann"), bench.enter("bob")]
    made = bench.tournaments.create(GAME, "cup", participants=agents, games=1)
    bench.tournaments.advance()
    for match in bench.store.matches.open():
        bench.end(match, (0.0, 0.0), state=MatchState.TIMEOUT)
    bench.tournaments.advance()
    assert [row["draws"] for row in bench.tournaments.get(made.id).result["standings"]] == [2, 2]


def test_it_can_be_cancelled_and_stays_so(bench):
    agents = [bench.enter(f"owner{n}") for n in range(4)]
    made = bench.tournaments.create(GAME, "cup", participants=agents)
    bench.tournaments.advance()
    first = bench.store.matches.open()[0]
    bench.end(first)
    assert bench.tournaments.cancel(made.id).state is CANCELLED
    assert bench.store.matches.open() == []
    assert bench.queue.due() == []
    bench.tournaments.advance()
    assert bench.store.matches.open() == []
    assert bench.tournaments.get(made.id).state is CANCELLED
    assert bench.store.matches.get(first.id).state is MatchState.FINISHED
    with pytest.raises(Conflict):
        bench.tournaments.cancel(made.id)


def test_the_top_of_the_ladder_is_seeded_by_its_place_without_the_benched(bench):

    agents = [bench.enter(f"owner{n}") for n in range(5)]
    for better, worse in itertools.pairwise(agents):
        for _ in range(4):
            bench.end(bench.match(better, worse))
    fold = Fold(bench.store, GAME, bench.season.id)
    fold.advance()
    bench.standings.refit(fold)
    bench.store.roster.bench(agents[1], "")
    made = bench.tournaments.create(GAME, "cup", top=3)
    assert made.participants == (agents[0], agents[2], agents[3])
    assert [one.id for one in bench.tournaments.list(env_id=GAME)] == [made.id]
    assert bench.tournaments.list(env_id="other") == []


def test_what_makes_no_tournament_is_refused_before_anything_is_stored(bench):
    agents = [bench.enter("ann"), bench.enter("bob")]
    gone = bench.enter("cyd")
    bench.store.submissions.delete(gone)
    for more in (
        {"format": "knockout"},
        {"participants": agents[:1]},
        {"participants": [*agents, agents[0]]},
        {"participants": [*agents, gone]},
        {"games": 0},
        {"games": 101},
        {"top": 2},
        {"participants": None},
        {"participants": None, "top": 1},
        {"format": "swiss", "rounds": 0},
        {"seed": -1},
        {"name": ""},
        {"participants": [f"{n:032}" for n in range(129)]},
    ):
        with pytest.raises(SpecError):
            bench.tournaments.create(**({"env_id": GAME, "name": "cup", "participants": agents} | more))
    with pytest.raises(NotFound):
        bench.tournaments.create(GAME, "cup", participants=[*agents, "nobody"])
    bench.store.environments.put("CartPole-v1", EnvironmentKind.VERIFIED)
    with pytest.raises(SpecError):
        bench.tournaments.create("CartPole-v1", "cup", participants=agents)
    assert bench.tournaments.list() == []
    with pytest.raises(NotFound):
        bench.tournaments.get("nothing")


def test_one_that_cannot_go_on_does_not_stop_the_others(bench, monkeypatch):
    agents = [bench.enter("ann"), bench.enter("bob")]
    broken = bench.tournaments.create(GAME, "broken", participants=agents)
    fine = bench.tournaments.create(GAME, "fine", participants=agents)
    real = bench.tournaments._take_up

    def take_up(row):
        if row["id"] == broken.id:
            raise RuntimeError
        return real(row)

    monkeypatch.setattr(bench.tournaments, "_take_up", take_up)
    bench.tournaments.advance()
    assert {match.tournament_id for match in bench.store.matches.open()} == {fine.id}


def test_nothing_that_is_shown_of_a_tournament_has_its_seed(bench):
    agents = [bench.enter("ann"), bench.enter("bob")]
    seed = 0x1234_5678_9ABC_DEF0
    made = bench.tournaments.create(GAME, "cup", participants=agents, seed=seed)
    bench.tournaments.advance()
    shown = repr(bench.tournaments.get(made.id)) + repr(bench.store.events.after(0, limit=1000))
    assert str(seed) not in shown
    assert "seed" not in shown
    assert all(str(match.seed) not in shown for match in bench.store.matches.open())
