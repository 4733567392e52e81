"""harena submit, status, logs, leaderboard, watch, challenge, export: what they print, where, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from harena import cli
from harena.client import ArenaClient
from harena.client import cli as client_cli
from support.client_hostile import Server, answer, stream
from support.client_world import CARTPOLE, LEFT, TICTACTOE

EVIL = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m\r"


@pytest.fixture
def run(served, capsys):
    def run(*words: str, url: str | None = None):
        code = cli.main([*words, "--url", url or served.url])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def fake():
    servers = []

    def start(make):
        servers.append(Server(make))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


def test_submit_waits_and_tells_score_and_page(run, write, served):
    code, out, err = run("submit", str(write(LEFT)), "--env", CARTPOLE, "--algorithm", "left", "--owner", "carla")
    assert code == 0, err
    assert re.search(r"carla#[0-9a-f]{8}/left v1 for CartPole-v1", out)
    assert "ranked: " in out
    assert f"{served.url}/submission/" in out
    assert err.startswith("submitted ")


def test_submit_without_waiting_then_status_and_logs(run, write):
    code, out, _ = run("submit", str(write(LEFT)), "--env", CARTPOLE, "--algorithm", "later", "--no-wait", "--json")
    assert code == 0
    sent = json.loads(out)
    code, out, _ = run("status", sent["id"], "--watch")
    assert code == 0
    assert "ranked" in out
    code, out, _ = run("status", sent["id"][:8], "--json")
    assert json.loads(out)["id"] == sent["id"]
    code, out, _ = run("status", sent["id"], "--json")
    found = json.loads(out)
    assert (found["state"], found["mine"], found["created_at"][-1]) == ("ranked", True, "Z")
    assert run("logs", sent["id"])[0] == 0
    assert json.loads(run("logs", sent["id"], "--json")[1])["id"] == sent["id"]


def test_a_submission_that_fails_is_exit_code_1_with_its_reason(run, write):
    path = write("print('hello \\033[2J')\ndef act(observation):\n    raise ValueError('no idea \\033[2J')\n")
    code, out, err = run("submit", str(path), "--env", TICTACTOE, "--algorithm", "crashing")
    assert code == 1
    assert "\x1b" not in out + err
    submission = err.split()[1].rstrip(":")
    code, log, _ = run("logs", submission)
    assert code == 0
    assert "hello" in log
    assert "no idea" in out + log
    assert "\x1b" not in log


def test_a_folder_is_submitted(run, tmp_path):
    (tmp_path / "bot").mkdir()
    (tmp_path / "bot" / "agent.py").write_text(LEFT)
    code, out, _ = run("submit", str(tmp_path / "bot"), "--env", CARTPOLE, "--algorithm", "bot")
    assert (code, "ranked" in out) == (0, True)


def test_the_board_is_a_table_or_json(run, players):
    code, out, _ = run("leaderboard", TICTACTOE)
    assert code == 0
    assert re.search(r"of-first#[0-9a-f]{8}/first v1", out)
    assert "tictactoe-v1, ladder:" in out.splitlines()[0]
    board = json.loads(run("leaderboard", "tictactoe", "--user", "of-last", "--limit", "1", "--json")[1])
    assert [entry["owner"].partition("#")[0] for entry in board["entries"]] == ["of-last"]
    code, out, _ = run("leaderboard")
    assert code == 0
    assert CARTPOLE in out


def test_a_challenge_is_made_and_watched_to_its_result(run, served, players, monkeypatch):
    client, ids = players
    code, _, err = run("challenge", ids[0], ids[1])
    assert code == 1
    assert "owner" in err
    monkeypatch.setattr(
        "harena.client.commands.ArenaClient", lambda *a, **k: ArenaClient(*a, client_id="players-of-all-tests", **k)
    )
    code, out, _ = run("challenge", ids[0], ids[1], "--games", "2", "--json")
    assert code == 0
    first, second = (match["id"] for match in json.loads(out))
    code, out, _ = run("watch", first)
    assert code == 0
    assert "match" in out
    assert f"{served.url}/match/{first}" in out
    list(client.live(second))
    code, out, _ = run("watch", second, "--json")
    assert json.loads(out.splitlines()[-1])["state"] == "finished"


def test_a_running_match_is_drawn(run, players, slow):
    client, ids = players
    (match,) = client.challenge(slow, ids[1])
    code, out, _ = run("watch", match.id)
    assert code == 0
    assert ", step 1" in out
    assert re.search(r"slow#[0-9a-f]{8}/thinking v1", out)


def test_exports_go_to_stdout_or_a_file(tmp_path, capfdbinary, served, players):
    assert cli.main(["export", "board", "--env", TICTACTOE, "--url", served.url]) == 0
    assert capfdbinary.readouterr().out.startswith(b"rank,submission_id,owner")
    target = tmp_path / "board.jsonl"
    assert (
        cli.main(["export", "board", "--env", TICTACTOE, "--format", "jsonl", "-o", str(target), "--url", served.url])
        == 0
    )
    assert "of-first" in target.read_text()
    assert cli.main(["export", "board", "--env", "nothing", "-o", str(tmp_path / "x"), "--url", served.url]) == 1
    assert cli.main(["export", "board", "--env", TICTACTOE, "-o", str(tmp_path / "no" / "x"), "--url", served.url]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board.jsonl"]


def test_nobody_there_is_exit_code_3_and_names_the_command(run):
    code, _, err = run("leaderboard", CARTPOLE, url="http://127.0.0.1:1")
    assert code == 3
    assert "http://127.0.0.1:1" in err
    assert "harena up" in err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["status", "../../etc"], 2),
        (["status", "0" * 32], 1),
        (["submit", "/no/such/file.py", "--env", "x"], 2),
        (["leaderboard", "no-such-env"], 1),
        (["watch", "f" * 32], 1),
        (["leaderboard", "x", "--key", "a b"], 2),
    ],
)
def test_a_mistake_is_one_line_with_its_exit_code(run, words, code):
    found, out, err = run(*words)
    assert found == code
    assert out == ""
    assert err.startswith("harena: ")
    assert err.count("\n") == 1


def test_a_server_that_fails_or_talks_nonsense_is_exit_code_125(run, fake):
    assert run("leaderboard", "x", url=fake(lambda *_: answer(b"<html>")))[0] == 125
    assert run("status", "a1", url=fake(lambda *_: answer(b"{}", status="500 Oops")))[0] == 125


def test_words_after_two_hyphens_are_a_mistake(run):
    assert cli.main(["status", "a1", "--", "x"]) == 2


def without(packages: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, where these are not installed."""
    program = f"import sys; sys.modules.update(dict.fromkeys({packages.split()!r})); from harena import cli; sys.exit(cli.main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=30, check=False
    )


def test_a_missing_package_is_named_with_the_line_that_installs_it():
    found = without("httpx", "status", "a1")
    assert (found.returncode, found.stdout) == (3, "")
    assert "pip install 'harena[client]'" in found.stderr
    found = without("gradio", "gradio")
    assert found.returncode == 3
    assert "pip install 'harena[gradio]'" in found.stderr


def test_httpx_is_all_that_the_commands_need(served):
    found = without(
        "numpy msgspec zstandard fastapi sqlalchemy pydantic uvicorn gradio", "leaderboard", "--url", served.url
    )
    assert found.returncode == 0, found.stderr
    assert CARTPOLE in found.stdout


def test_nothing_that_others_wrote_steers_the_terminal(run, fake):
    entry = {"rank": 1, "submission_id": EVIL, "owner": f"mallory{EVIL}", "algorithm": EVIL, "score": 1.0}
    seat = {"seat": 0, "owner": EVIL, "algorithm": EVIL, "status": EVIL, "reason": EVIL}

    def make(request: bytes, number: int) -> bytes:
        path = request.split()[1].decode()
        if path.endswith("/live"):
            frame = json.dumps({"step": EVIL, "text": f"board {EVIL}"})
            return stream(f"event: frame\ndata: {frame}\n\n", "event: finished\ndata: {}\n\n")
        if path.endswith("/log"):
            return answer(EVIL.encode())
        if path.startswith("/v1/boards"):
            return answer(json.dumps({"env_id": EVIL, "board": EVIL, "total": 1, "entries": [entry]}).encode())
        if path.startswith("/v1/environments"):
            return answer(json.dumps({"environments": [{"env_id": EVIL, "kind": EVIL, "title": EVIL}]}).encode())
        if path.startswith("/v1/matches"):
            state = "scheduled" if number % 3 == 0 else "finished"
            return answer(
                json.dumps(
                    {
                        "id": "a1",
                        "env_id": EVIL,
                        "state": state,
                        "reason": EVIL,
                        "kind": EVIL,
                        "seats": [seat],
                        "winner": 0,
                    }
                ).encode()
            )
        if path.startswith("/v1/challenges"):
            return answer(json.dumps({"matches": [{"id": EVIL}]}).encode())
        if path.startswith("/v1/export"):
            return answer(json.dumps({"detail": EVIL, "hint": EVIL}).encode(), status="400 Bad")
        return answer(
            json.dumps(
                {
                    "id": EVIL,
                    "owner": EVIL,
                    "env_id": EVIL,
                    "algorithm": EVIL,
                    "state": f"failed{EVIL}",
                    "reason": f"a\n{EVIL}",
                    "warnings": [EVIL],
                    "has_log": True,
                    "benched": EVIL,
                    "score": 1.0,
                }
            ).encode()
        )

    url = fake(make)
    for words in (
        ["leaderboard", "x"],
        ["leaderboard"],
        ["status", "a1"],
        ["logs", "a1"],
        ["watch", "a1"],
        ["watch", "a1"],
        ["challenge", "a1", "a2"],
        ["export", "board", "--env", "x"],
        ["leaderboard", "x", "--json"],
        ["status", "a1", "--json"],
    ):
        code, out, err = run(*words, url=url)
        shown = out + err
        assert all(letter.isprintable() or letter in "\n\t" for letter in shown), (words, shown)
        assert shown
        assert code in (0, 1)


def test_following_a_board_draws_it_again_when_it_changes(served, write, players, tmp_path):
    command = [sys.executable, "-m", "harena.cli", "leaderboard", CARTPOLE, "--watch", "--json", "--url", served.url]
    environ = {**os.environ, "HARENA_CONFIG": str(tmp_path / "other")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        assert process.stdout is not None
        before = json.loads(process.stdout.readline())
        with ArenaClient(served.url) as client:
            client.wait(client.submit(write(LEFT), CARTPOLE, algorithm="drawn").id, 60)
        after = json.loads(process.stdout.readline())
        assert after["total"] == before["total"] + 1
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == client_cli.INTERRUPTED


def test_the_results_of_all_matches_are_told_as_they_come(served, players, tmp_path):
    client, ids = players
    command = [sys.executable, "-m", "harena.cli", "watch", "--url", served.url]
    environ = {**os.environ, "HARENA_CONFIG": str(tmp_path / "other"), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        assert process.stdout is not None
        deadline = time.monotonic() + 60
        while not select.select([process.stdout], [], [], 0.5)[0]:  # it says nothing before the first result
            assert time.monotonic() < deadline
            client.challenge(ids[0], ids[1])
        line = process.stdout.readline()
        assert f"{served.url}/match/" in line
        assert re.search(r"of-first#[0-9a-f]{8}/first v1", line)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
