"""harena match, envs, replay, validate, executor: what they print, where, and with which exit code. Real boxes."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harena import cli, terminal
from harena.cli.host import live_boxes
from harena.match.cli import commands as match_cli
from harena.match.cli import match as cli_match
from harena.match.cli import replay as cli_replay
from harena.match.replay.replay import Replay

COMMAND = [sys.executable, "-m", "harena.cli"]
Capture = pytest.CaptureFixture[str]

FIRST_FREE = """
def act(observation):
    return next(cell for cell in range(9) if observation[cell] == 0)
"""
LAST_FREE = """
def act(observation):
    return max(cell for cell in range(9) if observation[cell] == 0)
"""
CRASHING = """
print("about to fail \\033[2J")

def act(observation):
    raise ValueError("no idea \\033]0;owned\\007")
"""
SLOW = """
import time

def act(observation):
    time.sleep(0.05)
    return next(cell for cell in range(9) if observation[cell] == 0)
"""


@pytest.fixture
def agents(tmp_path: Path) -> dict[str, str]:
    sources = {"first": FIRST_FREE, "last": LAST_FREE, "crashing": CRASHING, "slow": SLOW}
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    return {name: str(tmp_path / f"{name}.py") for name in sources}


def run(*words: str) -> int:
    return cli.main(list(words))


def run_json(capfd: Capture, *words: str) -> Any:
    assert run(*words, "--json") == 0
    return json.loads(capfd.readouterr().out)


def eventually(claim: Callable[[], bool], within_s: float) -> bool:
    end = time.monotonic() + within_s
    while not claim() and time.monotonic() < end:
        time.sleep(0.02)
    return claim()


# ---- help ----


def test_help_loads_nothing_of_the_matches() -> None:
    source = "import sys\nfrom harena import cli\ntry: cli.main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout
    loaded = set(shown.splitlines()[-1].split())
    assert not {name for name in loaded if name.startswith(("harena.match", "numpy", "msgspec", "grpc"))}


@pytest.mark.parametrize("command", ["envs", "match", "replay", "replay verify", "validate", "executor"])
def test_every_command_has_help_without_loading_packages(command: str) -> None:
    source = f"import sys\nfrom harena import cli\ntry: cli.main({[*command.split(), '--help']!r})\nexcept SystemExit: print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout
    assert shown.startswith(f"usage: harena {command}")
    assert not {"numpy", "msgspec", "grpc", "harena.sandbox"} & set(shown.splitlines()[-1].split())


def test_exit_codes_are_in_the_help(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        run("match", "--help")
    shown = capsys.readouterr().out
    codes = (
        match_cli.OK,
        match_cli.USAGE,
        match_cli.UNAVAILABLE,
        match_cli.TIMEOUT,
        match_cli.PLATFORM,
        match_cli.INTERRUPTED,
    )
    assert all(re.search(rf"^  {code} ", shown, re.MULTILINE) for code in codes)


# ---- wrong arguments ----


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tictactoe", "{first}"], "tictactoe-v1 has 2 seats; 1 agent was given: give 2; "),
        (
            ["tictactoe", "{first}", "{first}", "{first}"],
            "tictactoe-v1 has 2 seats; 3 agents were given: leave some out, or play them all with --tournament round-robin",
        ),
        (
            ["tron", "{first}", "{last}", "--tournament", "round-robin"],
            "tron-v1 has 4 seats; 2 agents were given: a round robin needs at least 4",
        ),
        (["tron", *["{first}"] * 4, "--tournament", "swiss"], "swiss needs a game with 2 seats; tron-v1 has 4: "),
        (
            ["tictactoe", "{first}", "--tournament", "elimination"],
            "tictactoe-v1 has 2 seats; 1 agent was given: a tournament needs at least 2",
        ),
        (["tictactoo", "{first}", "{last}"], "no game 'tictactoo': did you mean tictactoe-v1"),
        (["tictactoe", "{first}", "/nowhere.py"], "/nowhere.py: cannot be read (No such file or directory); "),
        (["tictactoe", "{first}", "{last}", "--games", "0"], "--games 0: must be at least 1"),
        (["tictactoe", "{first}", "{last}", "--workers", "0"], "--workers 0: must be at least 1"),
        (["tictactoe", "{first}", "{last}", "--rounds", "3"], "--rounds only works with --tournament swiss"),
        (["tictactoe", "{first}", "{last}", "--move", "0"], "clock move_s=0.0: must be above 0 "),
        (["tictactoe", "{first}", "{last}", "--memory", "3"], "memory_mb=3: must be a number from 16 to "),
        (["tictactoe", "{first}", "{last}", "--set", "depth"], "--set depth: give it as KEY=VALUE"),
        (["tictactoe", "{first}", "{last}", "--set", "depth=3"], "tictactoe-v1 has no config 'depth'; "),
        (["tictactoe", "{first}", "{last}", "--log", "2"], "--log 2: agents are numbered from 0 to 1"),
        (["tictactoe", "{first}", "{last}", "--fps", "0"], "--fps 0: must be above 0 "),
        (["tictactoe", "{first}", "{last}", "--replay", "/nowhere/x"], "cannot write /nowhere/x: "),
        (["tictactoe", "{first}", "{last}", "--lockstep", "--watch"], "--lockstep plays many games at once"),
        (["tictactoe", "{first}", "{last}", "--", "more.py"], "unexpected argument 'more.py' after --: "),
        (["no_module:factory", "{first}"], "no_module:factory could not be imported: "),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    words: list[str], said: str, agents: dict[str, str], capsys: Capture
) -> None:
    assert run("match", *(word.format(**agents) for word in words)) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"harena: {said}")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_seed_out_of_range_is_refused(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        run("match", "pong", "a.py", "b.py", "--seed", "-1")
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("missing", "words", "line"),
    [
        ("numpy", ["match", "tictactoe", "a.py", "b.py"], "pip install 'harena[match]'"),
        ("msgspec", ["match", "tictactoe", "a.py", "b.py"], "pip install 'harena[match]'"),
        ("zstandard", ["replay", "verify", "x"], "pip install 'harena[match]'"),
        ("grpc", ["executor"], "pip install 'harena[executor]'"),
        ("yaml", ["executor"], "pip install 'harena[executor]'"),
    ],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(missing: str, words: list[str], line: str) -> None:
    source = f"import sys\nsys.modules[{missing!r}] = None\nfrom harena import cli\nsys.exit(cli.main({words!r}))"
    shown = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 3
    assert line in shown.stderr
    assert shown.stderr.count("\n") == 1


# ---- one match ----


def test_json_is_one_object_with_what_the_contract_names(agents: dict[str, str], capfd: Capture) -> None:
    data = run_json(capfd, "match", "tictactoe", agents["first"], agents["last"], "--seed", "7")
    assert (data["environment"], data["seed"], data["winner"], data["status"]) == ("tictactoe-v1", 7, 0, "finished")
    assert data["scores"] == [1.0, -1.0]
    assert data["steps"] == sum(seat["moves"] for seat in data["seats"]) == 5
    assert [(seat["agent"], seat["status"], seat["reason"]) for seat in data["seats"]] == [
        ("first", "ok", ""),
        ("last", "ok", ""),
    ]
    assert all(seat["cpu_s"] > 0 for seat in data["seats"])


def test_a_result_in_words(agents: dict[str, str], capfd: Capture) -> None:
    assert run("match", "tictactoe", agents["first"], agents["last"], "--seed", "7") == 0
    lines = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"tictactoe-v1, seed 7: first wins \(three in a row\) after 5 steps, \d\.\d\d s", lines[0])
    assert lines[2].split() == ["seat", "agent", "status", "score", "moves", "cpu"]
    assert lines[3].split()[:5] == ["0", "first", "ok", "1", "3"]


def test_a_seed_of_its_own_is_told(agents: dict[str, str], capfd: Capture) -> None:
    seeds = {run_json(capfd, "match", "tictactoe", agents["first"], agents["last"])["seed"] for _ in range(2)}
    assert len(seeds) == 2


def test_who_crashes_loses_and_cannot_draw_on_the_terminal(agents: dict[str, str], capfd: Capture) -> None:
    assert run("match", "tictactoe", agents["crashing"], agents["last"], "--log", "0") == 0
    shown = capfd.readouterr().out
    assert "last wins" in shown
    assert "crash" in shown
    assert "no idea" in shown
    assert "--- printed by crashing\nabout to fail " in shown
    assert "\033" not in shown
    assert "\007" not in shown


def test_the_log_that_was_asked_for_is_in_the_json(agents: dict[str, str], capfd: Capture) -> None:
    data = run_json(capfd, "match", "tictactoe", agents["crashing"], agents["last"], "--log", "0")
    assert (data["winner"], data["seats"][0]["status"]) == (1, "crash")
    assert data["seats"][0]["log"].startswith("about to fail")
    assert "log" not in data["seats"][1]


def test_a_match_that_takes_too_long_is_124(agents: dict[str, str], capfd: Capture) -> None:
    assert run("match", "tictactoe", agents["slow"], agents["slow"], "--match-time", "0.2") == 124
    assert "timeout, no result" in capfd.readouterr().out


def test_a_setting_reaches_the_game(capfd: Capture, tmp_path: Path) -> None:
    (tmp_path / "rock.py").write_text("def act(observation):\n    return 0\n")
    rock = str(tmp_path / "rock.py")
    data = run_json(capfd, "match", "rps", rock, rock, "--set", "rounds=4")
    assert (data["steps"], data["winner"]) == (4, None)


# ---- several games ----


def test_the_winner_is_the_agents_index_wherever_it_sat(agents: dict[str, str], capfd: Capture) -> None:
    data = run_json(
        capfd, "match", "tictactoe", agents["crashing"], agents["last"], "--games", "4", "--mirror", "--seed", "3"
    )
    assert [game["winner"] for game in data["games"]] == [1, 1, 1, 1]
    assert [game["scores"] for game in data["games"]] == [[-1.0, 1.0]] * 4
    assert [[seat["seat"] for seat in game["seats"]] for game in data["games"]] == [[0, 1], [1, 0]] * 2
    assert [[seat["agent"] for seat in game["seats"]] for game in data["games"]] == [["crashing", "last"]] * 4
    seeds = [game["seed"] for game in data["games"]]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert (data["environment"], data["seed"], data["winner"], data["scores"]) == ("tictactoe-v1", 3, 1, [0.0, 4.0])
    assert [(row["agent"], row["index"], row["rank"], row["faults"]) for row in data["table"]] == [
        ("last", 1, 1, 0),
        ("crashing", 0, 2, 4),
    ]
    assert data["comparisons"][0]["rate"]["low"] < 0.5  # two seeds prove nothing


def test_lockstep_gives_the_same_games(agents: dict[str, str], capfd: Capture) -> None:
    words = ["match", "tictactoe", agents["first"], agents["last"], "--games", "6", "--mirror", "--seed", "3"]
    one, many = (run_json(capfd, *words, *more) for more in ([], ["--lockstep"]))
    assert [(game["seed"], game["winner"], game["steps"]) for game in one["games"]] == [
        (game["seed"], game["winner"], game["steps"]) for game in many["games"]
    ]
    assert one["scores"] == many["scores"]


RANDOM = """
import random
def act(observation):
    return random.choice([cell for cell in range(9) if observation[cell] == 0])
"""


def test_lockstep_gives_the_same_games_to_agents_that_throw_dice(
    agents: dict[str, str], tmp_path: Path, capfd: Capture
) -> None:
    (tmp_path / "random.py").write_text(RANDOM)
    words = ["match", "tictactoe", str(tmp_path / "random.py"), agents["first"], "--games", "20", "--seed", "1"]
    one, many = (
        run_json(capfd, *words, "--replay", str(tmp_path / f"{name}.replay"), *more)
        for name, more in (("one", []), ("many", ["--lockstep"]))
    )
    shown = [
        [
            (game["seed"], game["winner"], game["fingerprint"], [seat["moves"] for seat in game["seats"]])
            for game in data["games"]
        ]
        for data in (one, many)
    ]
    assert shown[0] == shown[1]
    assert one["distinct_games"] == many["distinct_games"] > 5
    for number in range(1, 21):
        pair = [Replay.load(tmp_path / f"{name}-{number:02}.replay").game_part() for name in ("one", "many")]
        assert pair[0] == pair[1]


def test_games_that_repeat_are_said_to(agents: dict[str, str], capfd: Capture) -> None:
    words = ["match", "tictactoe", agents["first"], agents["last"], "--games", "20", "--mirror", "--seed", "3"]
    assert run(*words) == 0
    shown = capfd.readouterr().out
    assert "20 games, 2 distinct" in shown
    assert "2 of 20 games differ" in shown


def test_a_setting_that_the_game_stumbles_over_is_one_line(
    agents: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    (tmp_path / "nim_like.py").write_text(NIM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARENA_GAMES", "")
    assert run("match", "nim_like:Nim", agents["first"], agents["last"], "--set", "heap=abc") == 2
    shown = capfd.readouterr().err
    assert "heap='abc'" in shown
    assert "Traceback" not in shown


NIM = """
from harena.match.game import BaseGame, Outcome
from harena.match.spaces import Discrete

class Nim(BaseGame):
    id = "nim-v1"
    def __init__(self, heap: int = 21):
        self.heap = self.max_steps = heap
        self.reset(0)
    def observation_space(self, seat): return Discrete(self.heap + 1)
    def action_space(self, seat): return Discrete(3, start=1)
    def reset(self, seed): self.left, self.seat = self.heap, 0
    def to_move(self): return (self.seat,) if self.left else ()
    def observe(self, seat): return self.left
    def step(self, actions):
        self.left -= min(self.left, actions[self.seat])
        self.seat = 1 - self.seat
        return {}
    def outcome(self): return Outcome((0.0, 0.0), None)
"""


@pytest.mark.parametrize("kind", ["round-robin", "swiss", "elimination", "double-elimination"])
def test_every_tournament_ends_in_a_table_with_intervals(kind: str, agents: dict[str, str], capfd: Capture) -> None:
    paths = [agents["first"], agents["last"], agents["crashing"]]
    assert run("match", "tictactoe", *paths, "--tournament", kind, "--games", "2", "--mirror", "--seed", "1") == 0
    shown = capfd.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith(f"tictactoe-v1, {kind}, seed 1: ")
    assert "win rate (95 %)" in lines[2]
    assert {line.split()[1] for line in lines[3:6]} == {"first", "last", "crashing"}
    assert re.search(r"crashing: crash: .*no idea.* \(\d games?\)", shown.out)
    assert shown.err == ""


def test_an_agent_that_plays_alone_is_compared_on_the_same_seeds(tmp_path: Path, capfd: Capture) -> None:
    pytest.importorskip("gymnasium")
    (tmp_path / "left.py").write_text("def act(observation):\n    return 0\n")
    (tmp_path / "lean.py").write_text("def act(observation):\n    return int(observation[2] + observation[3] > 0)\n")
    words = [
        "CartPole-v1",
        str(tmp_path / "left.py"),
        str(tmp_path / "lean.py"),
        "--tournament",
        "round-robin",
        "--games",
        "6",
    ]
    assert run("match", *words, "--seed", "2") == 0
    shown = capfd.readouterr().out
    assert "win rate" not in shown
    assert re.search(r"^lean beats left, \d+\.\d\d \[.*\] points a game on the same seeds$", shown, re.MULTILINE)


def test_ctrl_c_ends_the_boxes_and_prints_what_was_finished(agents: dict[str, str], tmp_path: Path) -> None:
    words = ["tictactoe", agents["slow"], agents["slow"], "--games", "1000", "--workers", "1", "--json"]
    command = [*COMMAND, "match", *words, "--replay", str(tmp_path / "x.replay")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert eventually(lambda: (tmp_path / "x-0002.replay").exists(), within_s=60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert err == b""
    data = json.loads(out)
    assert data["interrupted"] is True
    assert 0 < len(data["games"]) < 1000
    assert all(game["status"] == "finished" for game in data["games"])
    assert eventually(lambda: all(box["owner"] != process.pid for box in live_boxes()), within_s=10)


# ---- watching ----


def test_watching_draws_every_step_one_after_the_other(agents: dict[str, str], capfd: Capture) -> None:
    assert run("match", "tictactoe", agents["first"], agents["last"], "--watch", "--seed", "7") == 0
    shown = capfd.readouterr().out
    assert "\033" not in shown
    assert [int(step) for step in re.findall(r"against last, step (\d+)", shown)] == [0, 1, 2, 3, 4, 5]
    assert "X X X" in shown
    assert "first wins" in shown


def test_watching_leaves_stdout_to_the_json(agents: dict[str, str], capfd: Capture) -> None:
    assert run("match", "tictactoe", agents["first"], agents["last"], "--watch", "--json") == 0
    shown = capfd.readouterr()
    assert json.loads(shown.out)["winner"] == 0
    assert "X X X" in shown.err


def test_a_hidden_game_is_shown_when_it_is_over(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "call.py").write_text("def act(observation):\n    return 1\n")
    call = str(tmp_path / "call.py")
    assert run("match", "leduc", call, call, "--set", "hands=1", "--watch") == 0
    shown = capfd.readouterr().out
    assert shown.count(", step ") >= 4
    assert re.search(r"seat 0 \[[JQK]\]", shown)


def test_watching_on_a_terminal_clears_it_and_gives_the_cursor_back(agents: dict[str, str]) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(
            sys.executable, [*COMMAND, "match", "tictactoe", agents["first"], agents["last"], "--watch", "--fps", "100"]
        )
    shown = _all_of(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert shown.count(terminal.CLEAR.encode()) == 6
    assert shown.rindex(terminal.SHOW_CURSOR.encode()) > shown.rindex(terminal.HIDE_CURSOR.encode())


def _all_of(fd: int, keys: list[bytes] | None = None) -> bytes:
    """What a terminal shows until its program ends; a key is pressed after each frame."""
    shown, frames = b"", 0
    while True:
        if not select.select([fd], [], [], 60)[0]:
            raise AssertionError(f"no end in sight: {shown!r}")
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
        while keys and shown.count(b"q quit") > frames:
            frames += 1
            os.write(fd, keys.pop(0))
    os.close(fd)
    return shown


# ---- replays ----


@pytest.fixture
def replays(agents: dict[str, str], tmp_path: Path, capfd: Capture) -> dict[str, Path]:
    files = {"compact": tmp_path / "match.replay", "json": tmp_path / "match.json", "html": tmp_path / "match.html"}
    words = ["match", "tictactoe", agents["first"], agents["last"], "--seed", "7"]
    assert run(*words, "--replay", str(files["compact"]), "--html", str(files["html"])) == 0
    assert run(*words, "--replay", str(files["json"])) == 0
    assert f"written: {files['compact']}, {files['html']}" in capfd.readouterr().out
    return files


@pytest.mark.parametrize("form", ["compact", "json"])
def test_a_replay_is_verified(form: str, replays: dict[str, Path], capfd: Capture) -> None:
    assert run("replay", "verify", str(replays[form])) == 0
    assert capfd.readouterr().out == "verified: 5 steps re-run, the same game and the same result\n"
    assert run_json(capfd, "replay", "verify", str(replays[form]))["ok"] is True


def test_a_forged_replay_diverges_with_exit_code_1_and_names_where(replays: dict[str, Path], capfd: Capture) -> None:
    data = json.loads(replays["json"].read_text())
    data["frames"][1]["actions"]["last"] = 7
    replays["json"].write_text(json.dumps(data))
    assert run("replay", "verify", str(replays["json"])) == 1
    assert capfd.readouterr().out.startswith("diverges at frame ")
    assert run("replay", "verify", str(replays["json"]), "--json") == 1
    assert json.loads(capfd.readouterr().out)["frame"] > 0


@pytest.mark.parametrize("what", ["show", "html", "json", "verify"])
def test_what_is_no_replay_is_one_line_and_exit_code_2(what: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "x").write_bytes(b"\033[2J neither")
    assert run("replay", what, str(tmp_path / "x")) == 2
    assert run("replay", what, str(tmp_path / "none")) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 2
    assert "\033" not in shown.err
    assert shown.out == ""


def test_a_replay_names_no_code_to_import(replays: dict[str, Path], capfd: Capture) -> None:
    data = json.loads(replays["json"].read_text())
    data["metadata"]["environment"] = "os:system"
    replays["json"].write_text(json.dumps(data))
    assert run("replay", "verify", str(replays["json"])) == 2
    assert "names code to import" in capfd.readouterr().err


def test_one_frame_of_a_replay(replays: dict[str, Path], capfd: Capture) -> None:
    assert run("replay", "show", str(replays["compact"]), "--frame", "5") == 0
    shown = capfd.readouterr().out
    assert shown.startswith("tictactoe-v1, seed 7, frame 5 of 5: first against last\n\nX X X\n")
    assert shown.endswith("finished: first wins, scores 1, -1 (three in a row)\n")
    assert run("replay", "show", str(replays["compact"]), "--frame", "6") == 2
    assert capfd.readouterr().err.endswith("has the frames 0 to 5\n")


def test_a_replay_without_a_terminal_is_shown_whole(replays: dict[str, Path], capfd: Capture) -> None:
    assert run("replay", "show", str(replays["compact"])) == 0
    assert re.findall(r"frame (\d) of 5", capfd.readouterr().out) == list("012345")


def test_a_replay_is_stepped_through_with_keys(replays: dict[str, Path]) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*COMMAND, "replay", "show", str(replays["compact"])])
    shown = _all_of(fd, [b"n", b"\033[C", b"p", b"G", b"n", b"q"])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert re.findall(rb"frame (\d) of 5", shown) == [b"0", b"1", b"2", b"1", b"5", b"5"]


@pytest.mark.parametrize(
    ("key", "at", "to"), [("n", 0, 1), ("n", 5, 5), ("p", 0, 0), ("g", 3, 0), ("G", 0, 5), ("x", 2, 2)]
)
def test_keys_stay_within_the_replay(key: str, at: int, to: int) -> None:
    assert cli_replay.moved(key, at, 5) == to


def test_a_replay_becomes_a_page_and_json(replays: dict[str, Path], tmp_path: Path, capfd: Capture) -> None:
    assert run("replay", "html", str(replays["compact"]), "-o", str(tmp_path / "again.html")) == 0
    assert capfd.readouterr().out == f"{tmp_path / 'again.html'}\n"
    for page in (tmp_path / "again.html", replays["html"]):
        assert "<script" in page.read_text()
    assert run("replay", "json", str(replays["compact"])) == 0
    data = json.loads(capfd.readouterr().out)
    assert (data["metadata"]["environment"], data["metadata"]["total_steps"], len(data["frames"])) == (
        "tictactoe-v1",
        5,
        5,
    )
    assert run("replay", "json", str(replays["compact"]), "-o", "/nowhere/x") == 2


def test_replays_of_several_games_are_numbered(agents: dict[str, str], tmp_path: Path, capfd: Capture) -> None:
    target = tmp_path / "out.replay"
    data = run_json(
        capfd, "match", "tictactoe", agents["first"], agents["last"], "--games", "2", "--replay", str(target)
    )
    assert data["files"] == [str(tmp_path / "out-1.replay"), str(tmp_path / "out-2.replay")]
    assert run("replay", "verify", data["files"][1]) == 0


# ---- the others ----


def test_envs_lists_the_games(capfd: Capture) -> None:
    assert run("envs") == 0
    shown = capfd.readouterr().out
    assert re.search(r"^pong-v1 +2  at once ", shown, re.MULTILINE)
    assert "harena[openspiel]" in shown
    games = {game["id"]: game for game in run_json(capfd, "envs")}
    assert games["tron-v1"]["seats"] == 4
    assert games["leduc-v1"]["hidden"] is True


def test_validate_says_what_is_wrong(agents: dict[str, str], tmp_path: Path, capfd: Capture) -> None:
    assert run("validate", agents["first"], "--env", "tictactoe") == 0
    assert capfd.readouterr().out == "valid\n"
    assert run("validate", agents["crashing"], "--env", "tictactoe") == 1
    shown = capfd.readouterr().out
    assert shown.startswith("error: the agent failed ")
    assert shown.endswith("not valid\n")
    assert "\033" not in shown
    assert run("validate", str(tmp_path / "none.py"), "--env", "tictactoe", "--json") == 1
    assert json.loads(capfd.readouterr().out)["valid"] is False
    assert run("validate", agents["first"], "--env", "nosuch") == 2


def test_the_executor_says_which_port_it_took_and_ends_in_order() -> None:
    command = [*COMMAND, "executor", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert re.search(r"127\.0\.0\.1 port [1-9]\d+", process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


# ---- names, tables, bars ----


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a.py", "b.zip", "folder"], ["a", "b", "folder"]),
        (["/x/anna/agent.py", "/x/ben/agent.py", "c.py"], ["anna/agent", "ben/agent", "c"]),
        (["/x/1/anna/agent.py", "/x/2/anna/agent.py"], ["1/anna/agent", "2/anna/agent"]),
        (["/x/a.py", "/x/a.py"], ["a #1", "a #2"]),
        (["/x/a.py", "/x/../x/a.py", "/y/a.py"], ["x/a #1", "x/a #2", "y/a"]),
        (["/a.py", "/a.zip"], ["a #1", "a #2"]),
    ],
)
def test_agents_get_names_that_tell_them_apart(paths: list[str], names: list[str]) -> None:
    assert cli_match.distinct_names(paths) == names


def test_a_table_leaves_out_empty_columns() -> None:
    assert terminal.table(("name", "n", "void"), [("a\nb", "1", ""), ("c", "10", "")], left=("name",)) == (
        "name   n\na b    1\nc     10"
    )


def test_a_game_may_draw_in_colour_but_not_move_the_cursor() -> None:
    assert terminal.safe_picture("a\033[31mred\033[0m\n\033[2Jb\033]0;x\007") == "a\033[31mred\033[0m\n?[2Jb?]0;x?"


def test_a_bar_says_how_far_and_how_long() -> None:
    assert terminal.bar("playing", 0, 10, 0.0) == "playing [..............................] 0/10"
    assert terminal.bar("playing", 5, 10, 2.5) == "playing [###############...............] 5/10  2/s  2 s left"
    assert terminal.bar("playing", 1, 10001, 1.0).endswith("1/s  2.8 h left")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals_alone() -> None:
    for stream, shown in ((_Terminal(), True), (io.StringIO(), False)):
        with terminal.Progress("playing", 10, stream=stream) as progress:
            progress(10, 10)
        assert ("10/10" in stream.getvalue()) is shown


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"kind": "discrete", "n": 3, "start": 0}, "0 to 2"),
        ({"kind": "multi_discrete", "nvec": [2, 3]}, "2 numbers"),
        ({"kind": "box", "shape": [8], "dtype": "float32"}, "float32[8]"),
        ({"kind": "text", "max_length": 9}, "text up to 9"),
        ({"kind": "dict", "spaces": {"a": {}, "b": {}}}, "{a, b}"),
        ({"kind": "tuple", "spaces": [{}, {}]}, "2 parts"),
    ],
)
def test_spaces_in_few_words(space: dict[str, Any], words: str) -> None:
    assert match_cli.space_words(space) == words
