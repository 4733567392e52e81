"""Journals of real boxes: everything that crosses the border is there, and runs again the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harena import BoxError, Limits, Sandbox, SandboxPool, Spec, SpecError, cli
from harena.errors import JournalError, Unsupported
from harena.journal import Journal, steps, verify
from harena.sandbox.border.observed import ObservedBox
from harena.sandbox.border.replay import contents_of, replay

Capture = pytest.CaptureFixture[str]


def test_box_without_a_journal_is_not_wrapped() -> None:
    """So it costs nothing: the box that the sandbox asks is the backend's own."""
    with Sandbox() as box, SandboxPool(warm=1, max_live=1) as pool:
        assert not isinstance(box._box, ObservedBox)
        assert box.journal is None
        assert not isinstance(pool.ready[0]._box, ObservedBox)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of a box that did a bit of everything that can be replayed."""
    path = tmp_path_factory.mktemp("recorded") / "a.jsonl"
    with Sandbox(journal=path) as box:
        box.exec(["sh", "-c", "cat; echo $X >&2; pwd; exit 3"], stdin=b"in\xff", env={"X": "1"}, cwd="/tmp")
        box.write("dir/a.txt", b"long " * 2000)
        box.exec(["sh", "-c", "echo more >> dir/a.txt"])
        assert box.read("dir/a.txt").endswith(b"more\n")
        box.run("x = 6")
        box.run("print(x * 7)")
        box.run("while True: pass", limits=Limits(wall_s=0.2))
        box.call("def f(a, b=1): return [a, b]", "f", [1], {"b": {"c": None}})
        with box.shell() as shell:
            shell.exec("cd dir; A=1")
            shell.exec("pwd; echo $A")
        box.snapshot()
        box.remove("dir/a.txt")
        journal = box.journal
        assert journal is not None
        journal.reward(0.5, done=True)
    return path


def test_everything_is_in_the_journal_in_full(recorded: Path) -> None:
    found = list(steps(recorded))
    assert verify(recorded).ok
    first = found[0]
    assert first["action"]["argv"] == ["sh", "-c", "cat; echo $X >&2; pwd; exit 3"]
    assert (first["action"]["env"], first["action"]["cwd"], first["action"]["stdin"]) == ({"X": "1"}, "/tmp", "in�")
    assert (first["observation"]["exit_code"], first["observation"]["stderr"]) == (3, "1\n")
    assert first["usage"]["wall_s"] > 0
    assert [one["action"]["verb"] for one in found] == [
        *("exec", "files", "exec", "files", "run", "run", "run", "call", "command", "command", "files")
    ]
    assert found[1]["action"]["data"] == "long " * 2000
    assert found[3]["observation"]["data"] == "long " * 2000 + "more\n"
    assert (found[5]["observation"]["stdout"], found[6]["observation"]["verdict"]) == ("42\n", "time")
    assert found[7]["observation"]["value"] == [1, {"c": None}]
    assert found[9]["observation"]["stdout"] == "/workspace/dir\n1\n"
    assert (found[10]["reward"], found[10]["done"], found[9]["reward"]) == (0.5, True, None)
    assert {one["fault"] for one in found} == {None}


def test_replay_has_the_same_results(recorded: Path) -> None:
    spec, limits = contents_of(recorded)
    with Sandbox(spec, limits=limits) as box:
        ran = replay(recorded, box)
    assert (ran.same, ran.differences, ran.unrecorded) == (True, (), ())
    assert ran.actions > 11


def test_replay_up_to_an_action_is_a_fork_at_that_step(recorded: Path) -> None:
    appended = list(steps(recorded))[2]
    with Sandbox() as box:
        replay(recorded, box, until=appended["seq"])
        assert box.read("dir/a.txt") == b"long " * 2000 + b"more\n"
        assert b"NameError" in box.run("x").stderr  # that came later
    with Sandbox() as box:
        replay(recorded, box, until=list(steps(recorded))[5]["seq"])
        assert box.run("print(x)").stdout == b"6\n"


def test_replay_names_the_first_result_that_differs(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Sandbox(journal=path) as box:
        box.exec(["echo", "same"])
        box.exec(["sh", "-c", "od -An -N8 -tx1 /dev/urandom"])
    with Sandbox() as box:
        ran = replay(path, box)
    assert not ran.same
    assert [(one.seq, one.verb, one.field) for one in ran.differences] == [(3, "exec", "stdout")]


def test_streams_of_a_process_are_recorded_and_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Sandbox(journal=path) as box:
        with box.start(["sh", "-c", "read a; echo got $a; echo err >&2"]) as process:
            process.write(b"hello\n")
            assert process.wait().stdout == b"got hello\n"
        with box.start(["sleep", "60"]):
            pass
    ended, closed = steps(path)
    pieces = [(one["stream"], one["data"]) for one in ended["observation"]["pieces"]]
    assert sorted(pieces) == [("stderr", "err\n"), ("stdin", "hello\n"), ("stdout", "got hello\n")]
    assert (ended["observation"]["verdict"], closed["fault"]["kind"]) == ("ok", "BoxClosed")
    with Sandbox() as box, pytest.raises(Unsupported, match="entry 1: start"):
        replay(path, box)


def test_packets_of_a_conversation_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    source = "import os\nos.write(5, os.read(5, 100)[::-1])\nos.read(5, 1)"
    with Sandbox(journal=path) as box:
        talk = box.converse(source).met()
        talk.send(b"abc")
        packet = None
        while packet is None:
            packet = talk.receive(60)
        assert packet == b"cba"
        talk.end()
    [step] = steps(path)
    pieces = [(one["stream"], one["data"]) for one in step["observation"]["pieces"]]
    assert ("in", "abc") in pieces
    assert ("out", "cba") in pieces


def test_pool_records_programs_of_every_box(tmp_path: Path) -> None:
    with SandboxPool(warm=1, max_live=2, journal=tmp_path / "pool") as pool:
        pool.map([f"print({number})" for number in range(6)])
        pool.map(["print('a')", "1/0", "print('c')"], group=3)
        with pool.lease() as box:
            box.exec(["true"])
    paths = list((tmp_path / "pool").glob("*.jsonl"))
    assert all(verify(path).ok and verify(path).closed for path in paths)
    found = [step for path in paths for step in steps(path)]
    programs = [step["action"]["sources"] for step in found if step["action"]["verb"] == "program"]
    assert sorted(one[0]["source"] for one in programs if len(one) == 1) == [f"print({n})" for n in range(6)]
    [group] = [step for step in found if len(step["action"].get("sources", ())) == 3]
    assert [one["verdict"] for one in group["observation"]["results"]] == ["ok", "exit", "ok"]
    for path in paths:
        with Sandbox() as box:
            assert replay(path, box).same


def test_fork_has_a_journal_that_names_where_it_began(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Sandbox(journal=path) as box:
        box.run("x = 1")
        [fork] = box.fork()
        with fork:
            fork.run("print(x)")
            assert fork.journal is not None
            forked = fork.journal.path
        box.run("x = 2")
    opened = json.loads(forked.read_text().splitlines()[0])
    lines = path.read_bytes().splitlines()
    import hashlib

    assert hashlib.sha256(lines[opened["parent"]["seq"]]).hexdigest() == opened["parent"]["sha256"]
    assert [step["observation"]["stdout"] for step in steps(forked)] == ["1\n"]
    assert verify(forked).ok


def close_when_it_runs(box: Sandbox, path: Path) -> None:
    while b'"exec"' not in path.read_bytes():
        time.sleep(0.01)
    box.close()


def test_lost_box_is_a_platform_fault_and_a_guests_failure_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    box = Sandbox(journal=path)
    box.run("import os; os.abort()")
    closer = threading.Thread(target=close_when_it_runs, args=(box, path))
    closer.start()
    with pytest.raises(BoxError):
        box.exec(["sleep", "600"], limits=Limits(wall_s=600))
    closer.join()
    crashed, lost = steps(path)
    assert (crashed["fault"], crashed["mask"], crashed["observation"]["verdict"]) == (None, False, "signal")
    assert (lost["mask"], lost["reward"]) == (True, None)
    assert lost["fault"]["party"] == "platform"


def test_nothing_runs_once_the_journal_is_full(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl", max_bytes=200_000)
    with Sandbox(journal=journal) as box:
        box.exec(["head", "-c", "300000", "/dev/urandom"])
        for refused in (lambda: box.exec(["touch", "ran"]), lambda: box.write("ran", b""), lambda: box.run("1")):
            with pytest.raises(JournalError, match="nothing was run"):
                refused()
    assert [step["action"]["verb"] for step in steps(tmp_path / "a.jsonl")] == ["exec"]


def test_journal_that_cannot_be_created_leaves_no_box(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(SpecError, match="exists already"):
        Sandbox(journal=tmp_path / "a.jsonl")
    journal = Journal(tmp_path / "b.jsonl")
    with Sandbox(journal=journal), pytest.raises(SpecError, match="has a box already"):
        Sandbox(journal=journal)


def test_replay_takes_nothing_of_the_host_from_a_journal(tmp_path: Path) -> None:
    """The file may be somebody else's: a mount that it names is refused."""
    path = tmp_path / "a.jsonl"
    from harena import Mount

    with Sandbox(Spec(mounts=(Mount(source="/etc", target="/mnt"),)), journal=path) as box:
        box.exec(["ls", "/mnt"])
    with pytest.raises(SpecError, match="names mounts"):
        contents_of(path)
    assert cli.main(["journal", "replay", str(path)]) == 2


# ---- the command ----


def test_show_prints_nothing_that_a_terminal_obeys(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.jsonl"
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08"
    with Sandbox(journal=path) as box:
        box.exec(["printf", "%s", evil])
        box.exec(["sh", "-c", f": '{evil}'"])
        box.write("n\x1b[2Jame", evil)
    assert cli.main(["journal", "show", str(path), "--full", "--all"]) == 0
    shown = capsys.readouterr()
    assert "owned" in shown.out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.out + shown.err)


def test_verify_ends_with_a_code_and_names_the_entry(recorded: Path, tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["journal", "verify", str(recorded)]) == 0
    assert "entries intact, unsigned, closed" in capsys.readouterr().out
    lines = recorded.read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_bytes(b"".join([*lines[:2], *lines[3:]]))
    assert cli.main(["journal", "verify", str(tmp_path / "b.jsonl"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["entries"] == 2
    (tmp_path / "c.jsonl").write_bytes(lines[0] + lines[1][:10])
    assert cli.main(["journal", "verify", str(tmp_path / "c.jsonl")]) == 1
    assert "torn: 10 bytes of entry 1" in capsys.readouterr().out
    assert cli.main(["journal", "verify", str(tmp_path / "missing")]) == 2
    assert cli.main(["journal", "verify", str(recorded), "--head", "zz"]) == 2
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    os.chmod(key, 0o644)
    assert cli.main(["journal", "verify", str(recorded), "--key", str(key)]) == 2
    os.chmod(key, 0o600)
    assert cli.main(["journal", "verify", str(recorded), "--key", str(key)]) == 1


def test_export_prints_the_trajectory(recorded: Path) -> None:
    command = [sys.executable, "-m", "harena", "journal", "export", str(recorded)]
    shown = subprocess.run(command, check=True, capture_output=True).stdout.splitlines()
    assert [json.loads(line) for line in shown] == list(steps(recorded))
    fields = {"step", "seq", "at", "journal", "labels", "action", "observation", "reward", "done", "usage"}
    assert {frozenset(json.loads(line)) for line in shown} == {frozenset(fields | {"fault", "mask"})}


def test_replay_command_compares(recorded: Path, capsys: Capture) -> None:
    assert cli.main(["journal", "replay", str(recorded)]) == 0
    assert " 0 differences" in capsys.readouterr().out


def test_lost_box_in_a_batch_is_recorded(tmp_path: Path) -> None:
    """A program that the batch gives to another box is in the journals of both."""
    with SandboxPool(warm=1, max_live=1, journal=tmp_path) as pool:
        [box] = pool.ready
        begin = box._box.observer.begin

        def begin_and_die(*args: object) -> int:
            of = begin(*args)
            box._box.inner.close()
            return of

        box._box.observer.begin = begin_and_die
        [result] = pool.map(["print('done')"])
        assert result.stdout == b"done\n"
    found = [step for path in tmp_path.glob("*.jsonl") for step in steps(path)]
    assert sorted(step["mask"] for step in found) == [False, True]
