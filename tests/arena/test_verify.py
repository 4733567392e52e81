"""A real ladder in real boxes, from submission to the end of its season, and its results checked again."""

from __future__ import annotations

import json
import time

import pytest

from harena import cli
from harena.arena.arena import Arena
from harena.arena.db import models
from harena.arena.db.models import BoardKind, EnvironmentKind, MatchKind, MatchState, Scope, State
from harena.arena.ladder.rebuild import rebuild
from harena.arena.lock import FolderInUse
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload
from harena.arena.submissions.verify import Agreement, ResultVerifier
from harena.errors import SpecError
from harena.match.registry import UnknownGame
from harena.match.replay.replay import Replay

RPS, POLE = "rps-v1", "CartPole-v1"
SOON_S = 60.0
ALWAYS = "def act(observation):\n    return {}\n"
BEATS_THE_LAST = "def act(observation):\n    return (observation['theirs'] + 1) % 3 if observation['round'] else 1\n"
# Throws dice when it no longer matters: the order of the four is sure, their games are not the same twice.
DICE = """
import random
rolls = random.SystemRandom()
print("DICE LOG")
def act(observation):
    return 2 if observation["round"] < 80 else rolls.randrange(3)
"""
# Plays on against itself, as in the game that every agent has to get through first, and against nobody else.
CRASHES = """
def act(observation):
    if observation["theirs"] not in (0, 3):
        raise ValueError("MY SECRET")
    return 0
"""
pytestmark = pytest.mark.serial
"""One arena from its first day to its last: the tests below follow one another, so they stay together."""
AGENTS = {"counter": BEATS_THE_LAST, "paper": ALWAYS.format(1), "dice": DICE, "crash": CRASHES}


def wait(until, seconds=SOON_S):
    end = time.monotonic() + seconds
    while not (found := until()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
    return found


def hand_in(arena, env_id, owner, code):
    return arena.submissions.submit([Upload(name="agent.py", data=code.encode())], owner=owner, env_id=env_id).id


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return Settings.from_env(tmp_path_factory.mktemp("arena"), {})


@pytest.fixture(scope="module")
def arena(settings):
    with Arena(settings) as arena:
        yield arena


@pytest.fixture(scope="module")
def ladder(arena):
    """The ids of four agents that have played their games."""
    arena.put_environment("rps", settings={"games_target": 10, "upkeep_s": 3600, "provisional_games": 3})
    ids = {owner: hand_in(arena, RPS, owner, code) for owner, code in AGENTS.items()}
    wait(lambda: arena.store.roster.benched(ids["crash"]))

    def rested():
        lines = {line.submission_id: line for line in arena.standings.standings(RPS)}
        enough = all(ids[owner] in lines and lines[ids[owner]].games >= 10 for owner in ("counter", "paper", "dice"))
        folded = arena.store.ratings.rated_up_to(RPS) == max(
            one.number for one in arena.store.matches.where(env_id=RPS)
        )
        return enough and folded and not arena.store.matches.open() and lines

    wait(rested)
    wait(lambda: not arena.matchmaker._ladders[1].stale)
    return ids


def verifier(arena):
    return ResultVerifier(arena.store, arena.files, arena.submissions, runner=arena.runner)


def test_a_ladder_of_real_agents_orders_them_and_counts_every_match(arena, ladder):
    lines = arena.standings.standings(RPS)
    order = [line.owner for line in lines]  # where the others end up is a matter of luck
    assert order.index("counter") < order.index("paper")
    assert order[0] != "crash"
    played = arena.store.matches.where(env_id=RPS, limit=1000)
    assert len(played) >= 15
    assert {match.state for match in played} == {MatchState.FINISHED}
    assert sum(line.games for line in lines) == 2 * len(played)
    assert all(len(arena.store.ratings.history(line.submission_id)) == line.games for line in lines)
    season = arena.store.seasons.live(RPS)
    found = rebuild(arena.store, RPS, season.id, check=True)
    assert (found.same, found.matches) == (True, len(played))


def test_the_agent_that_crashes_sits_on_the_bench_and_its_owner_is_told_why(arena, ladder):
    benched = arena.store.roster.benched(ladder["crash"])
    assert benched is not None
    assert "crash" in benched.reason
    line = arena.standings.standing(ladder["crash"])
    assert line is not None
    assert line.benched
    games = len(arena.store.matches.of(ladder["crash"]))
    assert 5 <= games <= 6  # one more may have been under way


def test_what_belongs_to_an_owner_is_in_no_replay_event_or_frame(arena, ladder):
    match = next(one for one in arena.store.matches.of(ladder["crash"]) if one.winner is not None)
    seat = next(seat for seat in match.seats if seat.submission_id == ladder["crash"])
    assert seat.status == "crash"
    assert "MY SECRET" in seat.reason
    assert b"MY SECRET" in arena.files.get(seat.log_digest)
    replay = Replay.load(arena.files.get(match.replay_digest))
    assert "MY SECRET" not in json.dumps(replay.to_json())
    assert replay.verify().ok
    assert match.reason == replay.reason == "crash Custom v1: crash"
    with arena.store.database.read() as connection:
        bodies = connection.exec_driver_sql("select body from events").scalars().all()
    assert bodies
    assert not any("SECRET" in body or "seed" in body for body in bodies)
    dice = arena.store.matches.of(ladder["dice"], limit=1)[0]
    log = next(seat.log_digest for seat in dice.seats if seat.submission_id == ladder["dice"])
    assert b"DICE LOG" in arena.files.get(log)


def test_a_challenge_is_watched_live_and_moves_no_rating(arena, ladder):
    before = arena.standings.standings(RPS), arena.store.ratings.latest(RPS)
    with arena.hub.subscribe([f"matches:{RPS}"]) as news:
        (match,) = arena.challenges.challenge(ladder["crash"], ladder["paper"], 1)
        with arena.hub.subscribe([f"frames:{match.id}", f"match:{match.id}"]) as frames:
            done = wait(lambda: (one := arena.store.matches.get(match.id)).state is not MatchState.SCHEDULED and one)
            seen, kinds = [], []
            while "end" not in kinds:
                came = frames.get(10)
                assert came, "no more news"
                seen += [notice.body for notice in came if notice.kind == "frame"]
                kinds += [notice.kind for notice in came]
        heard = wait(lambda: [notice.kind for notice in news.get(10)])
    assert done.state is MatchState.FINISHED
    assert done.kind is MatchKind.CHALLENGE
    assert done.seats[0].status == "crash"
    assert "scheduled" in heard or "finished" in heard
    assert "finished" in kinds
    assert "MY SECRET" not in json.dumps(seen)
    assert arena.hub.frames(match.id) == []
    assert (arena.standings.standings(RPS), arena.store.ratings.latest(RPS)) == before


def test_matches_are_verified_by_their_replays_and_by_playing_them_again(arena, ladder):
    check = verifier(arena)
    fixed = next(
        match
        for match in arena.store.matches.of(ladder["counter"])
        if {seat.submission_id for seat in match.seats} == {ladder["counter"], ladder["paper"]}
    )
    assert [one.verdict for one in check.verify_match(fixed.id, replay=True)] == [Agreement.SAME, Agreement.SAME]
    dice = arena.store.matches.of(ladder["dice"], limit=1)[0]
    first, again = check.verify_match(dice.id, replay=True)
    assert first.verdict is Agreement.SAME
    assert again.verdict is Agreement.UNLIKE
    assert "dice" in again.detail
    found = check.verify_submission(ladder["crash"])
    assert len(found) >= 5
    assert {one.verdict for one in found} == {Agreement.SAME}
    assert {one.verdict for one in check.sample(5)} == {Agreement.SAME}


def test_a_result_that_was_changed_in_the_database_is_found(arena, ladder):
    match = arena.store.matches.where(env_id=RPS, state=MatchState.FINISHED, limit=1)[0]
    changes = [
        (models.matches, models.matches.c.id == match.id, {"winner": 1 - (match.winner or 0)}, "winner"),
        (models.matches, models.matches.c.id == match.id, {"seed": "7"}, "seed"),
        (models.seats, models.seats.c.match_number == match.number, {"score": 77.0}, "scores"),
    ]
    for table, where, change, named in changes:
        with arena.store.begin() as connection:
            before = connection.execute(table.select().where(where)).mappings().all()
            connection.execute(table.update().where(where).values(change))
        (found,) = verifier(arena).verify_match(match.id)
        assert found.verdict is Agreement.DIFFERS
        assert named in found.detail
        with arena.store.begin() as connection:
            for row in before:
                keys = [table.c[key.name] == row[key.name] for key in table.primary_key]
                connection.execute(table.update().where(*keys).values({name: row[name] for name in change}))
    assert verifier(arena).verify_match(match.id)[0].verdict is Agreement.SAME


def test_verified_scores_are_evaluated_again_and_scripts_are_not(arena):
    pytest.importorskip("gymnasium")
    arena.put_environment(POLE, settings={"episodes": 4})
    good = hand_in(arena, POLE, "ann", "def act(observation):\n    return int(observation[2] > 0)\n")
    wait(lambda: arena.store.submissions.get(good).state is State.RANKED)
    check = verifier(arena)
    (found,) = check.verify_submission(good)
    assert found.verdict is Agreement.SAME
    assert "4 episodes" in found.detail
    for change, named in (({"score": 500.0}, "board"), ({"state": State.RANKED}, "")):
        with arena.store.begin() as connection:
            here = models.submissions.c.id == good
            score = arena.store.submissions.get(good).score
            connection.execute(models.submissions.update().where(here).values(change))
        (found,) = check.verify_submission(good)
        assert (found.verdict is Agreement.DIFFERS) is bool(named)
        assert named in found.detail
        with arena.store.begin() as connection:
            connection.execute(models.submissions.update().where(here).values(score=score))
    kept = arena.store.submissions.evaluations(good)[-1].metrics
    inflated = {"returns": [500.0] * 4, "replays": [{**kept["replays"][0], "roles": ["first", "best", "worst"]}]}
    for change, score in (({}, 499.0), ({"returns": [500.0] * 4}, 500.0), (inflated, 500.0)):
        with arena.store.begin() as connection:
            connection.execute(models.evaluations.update().values(score=score, metrics=kept | change))
            connection.execute(models.submissions.update().where(models.submissions.c.id == good).values(score=score))
        assert check.verify_submission(good)[0].verdict is Agreement.DIFFERS


def test_an_arena_refuses_a_second_process_and_what_is_no_environment(arena, settings):
    with pytest.raises(FolderInUse):
        Arena(settings)
    with pytest.raises(UnknownGame):
        arena.put_environment("no-such-game")
    for more in ({"kind": EnvironmentKind.VERIFIED}, {"settings": {"episods": 1}}, {"settings": {"model": "glicko"}}):
        with pytest.raises(SpecError):
            arena.put_environment("tictactoe", **more)
    made = arena.put_environment("my-simulator", kind=EnvironmentKind.SCRIPT_ONLY)
    assert made.kind is EnvironmentKind.SCRIPT_ONLY
    assert arena.store.seasons.live("my-simulator").name == "season 1"
    kept = arena.put_environment("my-simulator", enabled=False, kind=EnvironmentKind.SCRIPT_ONLY)
    assert not kept.enabled
    assert len(arena.store.seasons.all("my-simulator")) == 1


def test_the_command_line_checks_rebuilds_and_makes_keys(arena, ladder, settings, capsys):
    data = ["--data", str(settings.data), "--json"]

    def harena(*words):
        code = cli.main([*words, *data])
        out = capsys.readouterr()
        return code, json.loads(out.out) if out.out else out.err

    match = arena.store.matches.where(env_id=RPS, state=MatchState.FINISHED, limit=1)[0]
    code, found = harena("arena", "verify", "--match", match.id)
    assert code == 0
    assert [(one["id"], one["verdict"]) for one in found] == [(match.id, "same")]
    code, found = harena("ratings", "rebuild", "--check", "--env", RPS)
    assert code == 0
    assert found[0]["same"]
    assert found[0]["matches"] >= 15
    code, error = harena("ratings", "rebuild")
    assert code == 2
    assert "served by process" in error
    code, made = harena("keys", "create", "--owner", "ann", "--scopes", "read,host", "--label", "lap", "--days", "2")
    assert code == 0
    assert arena.store.keys.authenticate(made["token"], Scope.HOST).owner == "ann"
    code, rotated = harena("keys", "rotate", made["key"]["id"])
    assert code == 0
    assert rotated["token"] != made["token"]
    code, keys = harena("keys", "list")
    assert code == 0
    assert len(keys) == 2
    assert "token" not in repr(keys)
    assert keys[0]["scopes"] == ["host", "read"]
    assert harena("keys", "revoke", rotated["key"]["id"])[0] == 0
    assert harena("keys", "list", "--owner", "ann")[1][1]["revoked_at"] is not None
    for words in (
        ("keys", "create", "--owner", "ann", "--scopes", "root"),
        ("keys", "revoke", "nothing"),
        ("keys", "create", "--owner", "ann", "--days", "0"),
        ("arena", "verify", "--match", "nothing"),
        ("ratings", "rebuild", "--check", "--env", "chess"),
    ):
        code, error = harena(*words)
        assert code == 2
        assert error.startswith("harena: ")
        assert error.count("\n") == 1


def test_the_season_ends_with_finals_on_real_boxes_and_the_next_one_is_empty(arena, ladder):
    season = arena.store.seasons.live(RPS)
    arena.seasons.freeze(season.id)
    finals = arena.seasons.finals(season.id, top=2, games=2)
    wait(lambda: arena.tournaments.get(finals.id).state is models.TournamentState.FINISHED)
    arena.seasons.end(season.id)
    archived = arena.standings.standings(RPS, board=BoardKind.LADDER, season_id=season.id)
    assert [line.place for line in archived] == [1, 2, 3, 4]
    assert archived[0].owner == "counter"
    secret = arena.seasons.reveal(season.id)
    assert secret is not None
    assert len(secret) == 32
    assert rebuild(arena.store, RPS, season.id, check=True).same
    arena.seasons.start(RPS, "season 2")
    time.sleep(0.3)
    assert arena.standings.standings(RPS) == []
    assert arena.store.matches.open() == []
    again = hand_in(arena, RPS, "counter", BEATS_THE_LAST)
    wait(lambda: arena.store.submissions.get(again).state is State.RANKED)
    assert arena.standings.standings(RPS, season_id=season.id) == archived
