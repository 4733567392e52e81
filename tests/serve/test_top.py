"""`harena top`: on a terminal, in a pipe, for a server and for this machine."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from harena import Sandbox, SandboxSession, cli
from harena.cli.top import BOLD, ENTER, LEAVE, local_text, server_text
from harena.errors import WireError
from harena.terminal import SHOW_CURSOR
from harena.testing.boxserver import BoxServer

COMMAND = [sys.executable, "-m", "harena", "top"]
Capture = pytest.CaptureFixture[str]


@contextlib.contextmanager
def terminal(*options: str, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """The command on a terminal of its own, with both ends of it."""
    outside, inside = pty.openpty()
    termios.tcsetwinsize(inside, (20, 60))
    environment = {**os.environ, "TERM": "xterm", **env}
    process = subprocess.Popen(
        [*COMMAND, *options], stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
    )
    try:
        yield process, outside, inside
    finally:
        process.kill()
        process.wait()
        os.close(outside)
        os.close(inside)


def read_until(outside: int, wanted: bytes, seen: bytes = b"") -> bytes:
    end = time.monotonic() + 60
    while wanted not in seen and time.monotonic() < end:
        if select.select([outside], [], [], 0.1)[0]:
            seen += os.read(outside, 65536)
    assert wanted in seen, seen
    return seen


@pytest.mark.parametrize("how", ["q", "SIGTERM", "SIGINT"])
def test_terminal_is_restored(how: str) -> None:
    with terminal("--local", "--interval", "0.1") as (process, outside, inside):
        before = termios.tcgetattr(inside)
        seen = read_until(outside, b"processes")
        assert seen.startswith(ENTER.encode())
        assert BOLD.encode() in seen
        assert termios.tcgetattr(inside) != before
        if how == "q":
            os.write(outside, b"q")
        else:
            process.send_signal(getattr(signal, how))
        seen = read_until(outside, LEAVE.encode(), seen)
        assert SHOW_CURSOR.encode() in seen
        assert process.wait(60) == (0 if how == "q" else 130)
        assert termios.tcgetattr(inside) == before
    for line in seen.decode("utf-8", "replace").split("\r\n"):
        assert len(re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", line)) < 60


def test_no_color_is_respected() -> None:
    with terminal("--local", "--interval", "0.1", NO_COLOR="1") as (_, outside, _inside):
        assert BOLD.encode() not in read_until(outside, b"processes")


def test_pipe_gets_plain_lines() -> None:
    with subprocess.Popen([*COMMAND, "--local", "--interval", "0.1"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen, heads = b"", 0
        while heads < 2:
            line = process.stdout.readline()
            seen, heads = seen + line, heads + (b" processes " in line)
        process.terminate()
    assert b"\x1b" not in seen


def test_boxes_of_this_machine_are_shown_once(capsys: Capture) -> None:
    with Sandbox() as box:
        assert cli.main(["top", "--local", "--once", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
    assert {"id": box.id, "owner": os.getpid()} in found["boxes"]
    [mine] = [one for one in found["owners"] if one["pid"] == os.getpid()]
    assert mine["boxes"] >= 1
    assert mine["memory_mb"] > 1
    assert mine["processes"] >= 2


def test_server_is_shown(server: BoxServer, capsys: Capture) -> None:
    with SandboxSession(server=server.url, token=server.token) as session:
        session.execute([{"command": ["true"]}, {"command": ["false"]}])
        assert cli.main(["top", "--server", server.url, "--token", server.token, "--once"]) == 0
        shown = capsys.readouterr().out
        assert session.session_id in shown
        assert "exit 1  ok 1" in shown
        assert "p95" in shown
        assert cli.main(["top", "--server", server.url, "--token", server.token, "--once", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["verdicts"] == {"exit": 1, "ok": 1}
        assert cli.main(["usage", "--server", server.url, "--token", server.token]) == 0
        assert "executions" in capsys.readouterr().out
    assert cli.main(["top", "--server", server.url, "--token", "x" * 30, "--once"]) == 3


def test_hostile_server_moves_no_cursor() -> None:
    evil = "\x1b[2J\x9b\r\n"
    frame = {
        "owner": evil,
        "boxes": evil,
        "sessions": [{"id": evil, "image": evil * 1000}],
        "pools": [{"name": evil, "ready": evil}],
        "verdicts": {evil: evil},
        "latency_ms": {evil: 1.0},
        "usage": {evil: [evil]},
        "budget": {evil: evil},
    }
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", server_text(frame))
    boxes = {"boxes": [{"id": evil, "owner": 1}], "owners": []}
    assert "\x1b" not in local_text(boxes)
    for wrong in ({}, {"sessions": 1}, {"sessions": [1], "pools": []}, {**frame, "verdicts": []}):
        with pytest.raises(WireError):
            server_text(wrong)
