"""The client against a real arena: every verb, and what it answers."""

from __future__ import annotations

import io
import json
import threading
import zipfile

import pytest

from harena.client import ArenaClient, ArenaError, Unreachable, WaitTimeout
from harena.match.replay.replay import Replay
from support.client_world import CARTPOLE, LEANING, LEFT, TICTACTOE


@pytest.fixture(scope="session")
def ranked(served, tmp_path_factory):
    """A ranked submission, and the client that owns it."""
    with ArenaClient(served.url, client_id="owner-of-the-ranked-one") as client:
        sent = client.submit(LEANING.encode(), CARTPOLE, algorithm="leaning", owner="rana")
        yield client, client.wait(sent.id, 60)


def test_an_arena_says_what_it_is(client):
    about = client.about()
    assert (about.anonymous_submit, about.me) == (True, None)
    assert client.health()["status"] == "healthy"
    assert {environment.env_id for environment in client.environments()} >= {CARTPOLE, TICTACTOE}


def test_an_environment_comes_with_its_rules_and_limits(client):
    found = client.environment(CARTPOLE)
    assert (found.kind, found.rules, found.sample_agent) == ("verified", "Keep it up.", LEFT)
    assert found.limits is not None
    assert found.limits["episodes"] == 2
    assert found.season is not None
    assert found.seasons[0].commitment


def test_a_submission_is_ranked_and_on_the_board(client, ranked):
    _, found = ranked
    assert found.state == "ranked"
    assert found.score is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.score <= found.high
    assert found.evaluation is not None
    assert (found.evaluation.hidden, found.evaluation.episodes, found.evaluation.returns) == (True, 2, ())
    owner, _ = ranked
    assert [one.episode for one in owner.practice(found.id)] == [0, 1, 2, 3, 4]
    assert owner.practice_replay(found.id, 0)
    assert owner.choose_finalist(found.id).finalist
    assert not owner.choose_finalist(found.id, False).finalist
    board = client.leaderboard(CARTPOLE, user="rana")
    assert [entry.submission_id for entry in board.entries] == [found.id]
    assert client.leaderboard(CARTPOLE, user="nobody").entries == ()
    assert client.agent("rana", "leaning", CARTPOLE).versions[0].id == found.id
    assert found.id in [one.id for one in client.submissions(owner="rana")]


def test_code_and_log_are_the_owners_alone(client, ranked):
    owner, found = ranked
    with zipfile.ZipFile(io.BytesIO(owner.code(found.id))) as archive:
        assert LEANING.encode() in [archive.read(name) for name in archive.namelist()]
    assert isinstance(owner.logs(found.id), str)
    assert owner.status(found.id).mine
    assert not client.status(found.id).mine
    for verb in (client.code, client.logs, client.delete, client.cancel, client.reevaluate):
        with pytest.raises(ArenaError) as caught:
            verb(found.id)
        assert caught.value.status == 401
        assert caught.value.code == "not_yours"
        assert caught.value.request_id


def test_folders_zips_and_several_files_are_taken(client, tmp_path):
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "agent.py").write_text("from helper import act\n")
    (folder / "helper.py").write_text(LEFT)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("agent.py", LEFT)
    sent = [
        client.submit(folder, CARTPOLE, algorithm="folder"),
        client.submit(packed.getvalue(), CARTPOLE, algorithm="zip"),
        client.submit([folder / "helper.py", folder / "agent.py"], CARTPOLE, algorithm="files", main_file="agent.py"),
    ]
    assert [client.wait(one.id, 60).state for one in sent] == ["ranked"] * 3


def test_a_name_that_has_a_key_is_only_for_who_has_it(served, client):
    with pytest.raises(ArenaError) as caught:
        client.submit(LEFT.encode(), CARTPOLE, owner="alice")
    assert caught.value.status == 401
    with ArenaClient(served.url, key=served.alice) as alice:
        assert alice.me().owner == "alice"
        sent = alice.submit(LEFT.encode(), CARTPOLE)
        assert sent.owner == "alice"
        assert alice.wait(sent.id, 60).state == "ranked"


def test_what_cannot_be_evaluated_says_why(client):
    sent = client.submit(b"def act(observation):\n    raise ValueError('no idea')\n", TICTACTOE, algorithm="crashing")
    found = client.wait(sent.id, 60)
    assert found.state in ("failed", "rejected")
    assert "no idea" in (found.reason or "") + client.logs(sent.id)


def test_an_upload_that_is_refused_says_what_to_change(client):
    with pytest.raises(ArenaError) as caught:
        client.submit(b"def act(:\n", CARTPOLE)
    assert caught.value.status == 422
    assert caught.value.hint


def test_a_submission_can_be_evaluated_again_and_deleted(client):
    sent = client.wait(client.submit(LEFT.encode(), CARTPOLE, algorithm="gone").id, 60)
    assert client.reevaluate(sent.id).state in ("queued", "running", "ranked")
    assert client.wait(sent.id, 60).state == "ranked"
    assert client.delete(sent.id) is None
    with pytest.raises(ArenaError) as caught:
        client.status(sent.id)
    assert caught.value.status == 404


def test_waiting_tells_every_change_and_ends_when_the_time_is_over(client):
    sleepy = "import time\n" + LEFT.replace("return", "time.sleep(0.3)\n    return")
    sent = client.submit(sleepy.encode(), CARTPOLE, algorithm="sleepy")
    states: list[str] = []
    with pytest.raises(WaitTimeout, match="still"):
        client.wait(sent.id, 0.5, on_change=lambda found: states.append(found.state))
    assert states
    assert client.cancel(sent.id).state in ("running", "cancelled")
    assert client.wait(sent.id, 30).state == "cancelled"


def test_boards_are_followed_as_they_change(client):
    heard: list[str] = []
    news = client.watch([f"board:{CARTPOLE}", "queue"])

    opened = threading.Event()

    def listen() -> None:
        for notice in news:
            opened.set()
            heard.append(notice.topic)
            if notice.topic == f"board:{CARTPOLE}":
                return

    thread = threading.Thread(target=listen)
    thread.start()
    assert opened.wait(30)
    client.wait(client.submit(LEFT.encode(), CARTPOLE, algorithm="news").id, 60)
    thread.join(30)
    assert heard[-1] == f"board:{CARTPOLE}"


def test_matches_have_replays_and_logs(players):
    client, ids = players
    (match,) = client.challenge(ids[0], ids[1], 1)
    assert [frame.event for frame in client.live(match.id)][-1] == "finished"
    found = client.match(match.id)
    assert (found.state, found.kind, found.rated) == ("finished", "challenge", False)
    assert {seat.submission_id for seat in found.seats} == set(ids)
    assert Replay.load(client.replay(found.id)).verify().ok
    assert b"<html" in client.replay(found.id, "html")
    assert Replay.load(client.replay(found.id, "compact")).environment == TICTACTOE
    assert isinstance(client.match_log(found.id, 0), str)
    assert found.id in [one.id for one in client.matches(submission=ids[0])]


def test_a_running_match_is_watched_step_by_step(players, slow):
    client, ids = players
    (match,) = client.challenge(slow, ids[1], 1)
    frames = list(client.live(match.id))
    steps = [frame.body["step"] for frame in frames if "step" in frame.body]
    assert steps == sorted(set(steps))
    assert any(frame.text for frame in frames)


def test_ratings_and_opponents_are_told(players):
    client, ids = players
    point = client.ratings(ids[0])[0]
    assert point.match > 0
    assert ids[1] in [one.submission_id for one in client.opponents(ids[0])]
    board = client.leaderboard(TICTACTOE)
    assert board.board == "ladder"
    assert {entry.submission_id for entry in board.entries} >= set(ids)


def test_hosts_run_seasons_and_tournaments(host, players):
    _, ids = players
    made = host.create_tournament(TICTACTOE, "cup", participants=ids, games=2, seed=1)
    assert made.format == "round-robin"
    assert [one.submission_id for one in made.participants] == ids
    assert made.id in [one.id for one in host.tournaments(TICTACTOE)]
    assert host.tournament(made.id).name == "cup"
    host.put_environment("connect_four", settings={"title": "Four"})
    season = host.seasons("connect_four-v1")[0]
    assert host.season(season.id).secret is None
    assert host.freeze_season(season.id).frozen
    ended = host.end_season(season.id)
    assert ended.ended_at is not None
    assert host.start_season("connect_four-v1", "season 2").name == "season 2"


def test_a_tournament_can_be_called_off(host, players):
    _, ids = players
    made = host.create_tournament(TICTACTOE, "never", participants=ids, games=100, seed=1)
    assert host.cancel_tournament(made.id).state == "cancelled"


def test_keys_are_made_rotated_and_revoked(served, host):
    made = host.create_key("bob", scopes=["read", "submit"], label="laptop")
    assert made.token not in repr(made)
    listed = host.keys()
    assert made.key.id in [key.id for key in listed]
    with ArenaClient(served.url, key=made.token) as bob:
        assert bob.me().scopes == ("read", "submit")
        with pytest.raises(ArenaError) as caught:
            bob.queue()
        assert caught.value.status == 403
    changed = host.rotate_key(made.key.id)
    with ArenaClient(served.url, key=made.token) as bob, pytest.raises(ArenaError) as caught:
        bob.me()
    assert caught.value.status == 401
    assert host.revoke_key(changed.key.id) is None


def test_a_host_sees_the_queue_benches_and_owners(host, players):
    _, ids = players
    assert {"counts", "running", "dead"} <= set(host.queue())
    host.bench(ids[0], "looks odd")
    assert ids[0] in [one["submission_id"] for one in host.benched()["benched"]]
    assert host.status(ids[0]).benched == "looks odd"
    host.unbench(ids[0])
    assert host.status(ids[0]).benched is None
    host.set_quota("of-first", per_day=5)
    assert any(one["owner"] == "of-first" and one["per_day"] == 5 for one in host.owners()["owners"])
    with pytest.raises(ArenaError):
        host.revive_job(10**9)


@pytest.mark.parametrize("what", ["board", "matches", "ratings", "submissions"])
def test_exports_come_whole_and_in_pieces(client, ranked, what):
    text = client.export(what, CARTPOLE)
    assert b"".join(client.export_stream(what, CARTPOLE)) == text
    assert text.count(b"\n") >= 1


def test_exports_have_three_formats(client, ranked):
    lines = client.export("board", CARTPOLE, "jsonl").splitlines()
    assert ranked[1].id in [json.loads(line)["submission_id"] for line in lines]
    assert client.export("board", CARTPOLE, "parquet").startswith(b"PAR1")
    with pytest.raises(ValueError, match="format of an export"):
        client.export("board", CARTPOLE, "xlsx")
    with pytest.raises(ArenaError):
        b"".join(client.export_stream("board", "no-such-env"))


def test_filters_of_a_board_are_those_of_the_arena(client, ranked):
    assert client.leaderboard(CARTPOLE, score_min=1e9).total == 0
    assert client.leaderboard(CARTPOLE, date_from="2001-01-01", sort="date_desc", limit=1).entries
    with pytest.raises(ArenaError) as caught:
        client.leaderboard(CARTPOLE, sort="no such order")
    assert caught.value.status == 422


def test_nobody_there_is_said_with_the_command_that_starts_an_arena():
    with ArenaClient("http://127.0.0.1:1") as client, pytest.raises(Unreachable, match="harena up") as caught:
        client.about()
    assert caught.value.url == "http://127.0.0.1:1"


def test_one_client_serves_several_threads(client):
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(client.about().name)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8


def test_a_watch_that_is_left_closes_its_connection(client):
    news = client.watch("queue")
    assert next(news).kind == "reset"
    news.close()
    with pytest.raises(StopIteration):
        next(news)
