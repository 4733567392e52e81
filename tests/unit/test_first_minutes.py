"""What a newcomer meets: the greeting, help, completion, the manual, and one line for every mistake."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harena import cli
from harena.cli import greet, host, reference
from harena.errors import IsolationUnavailable
from harena.sandbox.doctor import Report
from harena.sandbox.doctor.probes import ProbeResult
from harena.terminal import Screen

Capture = pytest.CaptureFixture[str]

WITHOUT_JSON = {
    "shell": "a terminal",
    "demo": "a show for people",
    "up": "a server; --json-logs",
    "worker": "a server; --json-logs",
    "serve": "a server",
    "executor": "a server",
    "mcp": "a server",
    "operator run": "a server",
    "gradio": "a server",
    "export": "--format json",
    "journal show": "`journal export` prints JSON lines",
    "journal export": "prints JSON lines",
    "replay show": "`replay json`",
    "replay html": "writes a page",
    "replay json": "prints JSON",
    "operator crds": "writes YAML files",
    "operator lay-out": "writes files",
    "azr export": "writes JSON lines",
    "azr pretrain": "writes a model",
    "azr report": "writes a page",
    "azr study": "writes a report",
    "completion": "prints a script",
    "man": "prints a page",
}


def leaves() -> list[reference.Command]:
    return [command for command in reference.commands() if not command.children]


def test_without_arguments_the_four_doors_and_this_machine_are_shown(capsys: Capture) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {door.name} " in shown for door in greet.DOORS)
    assert "Boxes work on this machine" in shown
    assert cli.main(["--json"]) == 0
    assert [door["name"] for door in json.loads(capsys.readouterr().out)["doors"]] == ["run", "match", "rank", "train"]


def test_the_greeting_says_why_no_box_can_be_made(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise IsolationUnavailable("user namespaces are off", fix="turn them on")

    monkeypatch.setattr("harena.sandbox.box.Sandbox.__init__", refuse)
    assert cli.main([]) == 0
    assert "No box can be made on this machine: user namespaces are off\nFix: turn them on" in capsys.readouterr().out


def test_a_door_whose_packages_are_missing_names_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(greet.importlib.util, "find_spec", lambda name: None)
    installs = [door["install"] for door in greet.greeting()["doors"]]
    assert installs == ["", *(f"pip install 'harena[{name}]'" for name in ("match", "arena", "azr"))]


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            Report(ok=True, enforcement={"isolation": "full"}, probes=(ProbeResult(name="a.b", held=True, detail=""),)),
            "Fine: all 1 ",
        ),
        (
            Report(
                ok=False, enforcement={"isolation": "full"}, probes=(ProbeResult(name="a.b", held=False, detail=""),)
            ),
            "Not fine: 1 of 1",
        ),
        (Report(ok=False, enforcement={}, missing="namespaces"), "Not fine: no box can be created"),
    ],
)
def test_the_first_line_of_the_doctor_says_whether_it_is_fine(report: Report, line: str) -> None:
    assert host.doctor_text(report).startswith(line)


def test_every_command_prints_json_or_says_why_not() -> None:
    without = {
        " ".join(command.words)
        for command in leaves()
        if "--json" not in [name for action in command.options for name in action.option_strings]
    }
    assert without == set(WITHOUT_JSON)


@pytest.mark.parametrize("words", [" ".join(command.words) for command in leaves()])
def test_a_wrong_option_is_one_line_and_exit_code_2(words: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*words.split(), "--no-such-option"])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "line",
    [
        "run missing.py",
        "run -c pass --wall x",
        "run -c pass --memory -1",
        "run -c pass --allow nonsense",
        "run -c pass --forward 99999999",
        "exec",
        "exec -- /no/such/program",
        "match connect_four missing.py other.py",
        "match no_such_game missing.py other.py",
        "match connect_four",
        "replay show missing.replay",
        "replay html missing.replay",
        "replay json missing.replay",
        "replay verify missing.replay",
        "replay verify ../text",
        "journal show missing.jsonl",
        "journal verify missing.jsonl",
        "journal export missing.jsonl",
        "journal replay missing.jsonl",
        "image import missing.tar",
        "image import ../text",
        "image inspect nothing:here",
        "image build missing",
        "usage missing.db",
        "usage ../text",
        "executor --config missing.yaml",
        "executor --config ../text",
        "status 00000000-0000-0000-0000-000000000000 --url http://127.0.0.1:9",
        "logs x --url http://127.0.0.1:9",
        "leaderboard --url http://127.0.0.1:9",
        "leaderboard --url nonsense",
        "submit missing.py --env pong-v1 --url http://127.0.0.1:9",
        "backup out.tar.gz --data missing",
        "restore missing.tar.gz --data new",
        "restore ../text --data new",
        "arena verify --data missing",
        "ratings rebuild --data missing",
        "keys list --data missing",
        "azr eval --run missing",
        "azr buffer show missing",
        "azr report missing",
    ],
)
def test_bad_input_is_one_line_with_what_to_do_and_never_a_traceback(
    line: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("neither a replay, nor a journal, nor an archive\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    try:
        code = cli.main(line.split())
    except SystemExit as ended:
        code = ended.code
    shown = capfd.readouterr()
    assert code not in (0, None), shown
    said = [text for text in shown.err.splitlines() if re.match(r"harena[\w ]*: ", text)]
    assert said, shown
    assert "Traceback" not in shown.err + shown.out
    assert "unexpected error" not in shown.err


def test_what_no_command_foresaw_is_one_line_too(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(args: object) -> int:
        raise ZeroDivisionError("a bug\x1b[2J")

    monkeypatch.setattr(host, "version", break_down)
    assert cli.main(["version"]) == cli.PLATFORM
    said = capsys.readouterr().err
    assert said.startswith("harena: unexpected error: ZeroDivisionError: a bug")
    assert "\x1b" not in said
    assert said.count("\n") == 1
    monkeypatch.setenv("HARENA_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["version"])


def test_a_missing_part_names_the_extra(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "harena.azr.cli.commands", None)
    assert cli.main(["azr", "train"]) == cli.UNAVAILABLE
    assert capsys.readouterr().err == "harena: this needs harena-azr: pip install 'harena[azr]'\n"
    monkeypatch.setitem(sys.modules, "harena.api.cli", None)
    assert cli.main(["up"]) == cli.UNAVAILABLE
    assert capsys.readouterr().err == "harena: this needs harena-arena: pip install 'harena[arena]'\n"
    assert "azr" in {command.words[0] for command in reference.commands() if command.words}


def test_games_are_listed_without_the_arena(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "harena.arena.host_cli", None)
    assert cli.main(["envs"]) == 0
    assert "connect_four" in capsys.readouterr().out


def test_colours_of_a_game_stay_only_on_a_terminal_that_wants_them(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    Screen(None).draw("head", "\033[31mred\033[0m")
    assert capsys.readouterr().out == "head\n\nred\n\n"


# ---- texts from the parser ----


def completed(line: str) -> list[str]:
    script = f"{reference.completion('bash')}\nCOMP_WORDS=({line} '')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}}-1))\n_harena\n"
    done = subprocess.run(["bash", "-c", script + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_subcommands_and_options() -> None:
    assert {"run", "doctor", "azr"} <= set(completed("harena"))
    assert {"pull", "build"} <= set(completed("harena image"))
    assert "--file" in completed("harena image build")
    assert {"--wall", "--json"} <= set(completed("harena run"))
    assert {"bash", "fish"} <= set(completed("harena completion"))


@pytest.mark.parametrize("shell", reference.SHELLS)
def test_completion_is_valid_for_its_shell(shell: str) -> None:
    text = reference.completion(shell)
    assert "doctor" in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


def test_the_manual_names_every_option_and_groff_accepts_it() -> None:
    text = reference.man()
    plain = text.replace("\\-", "-")
    for command in leaves():
        assert f'.SS "harena {" ".join(command.words)}"' in text
        assert all(name in plain for action in command.options for name in action.option_strings)
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8"], input=text, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")
