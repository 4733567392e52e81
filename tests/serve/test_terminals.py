"""Interactive shells of sessions: a terminal here and over a WebSocket, and clients that abuse it."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from harena import BoxClosed, BoxError, BoxLost, Process, SandboxSession, Verdict
from harena.sessions.errors import NotFound
from harena.testing.boxserver import BoxServer
from support.leaks import settle

Keywords = dict[str, Any]
FIRST, SECOND = "a" * 30, "b" * 30


def until(process: Process, wanted: bytes) -> bytes:
    """What appears up to some text."""
    seen, end = b"", time.monotonic() + 60
    while wanted not in seen:
        assert time.monotonic() < end, seen
        with contextlib.suppress(TimeoutError):
            data = process.stdout.read(timeout_s=5)
            assert data, seen
            seen += data
    return seen


def test_shell_keeps_its_state_and_has_the_size_of_its_terminal(where: Keywords) -> None:
    with SandboxSession(**where) as session, session.create_interactive_shell(rows=30, cols=100) as shell:
        shell.write(b"cd /tmp; X=7; stty size\n")
        until(shell, b"30 100")
        shell.resize(40, 120)
        shell.write(b"stty size; echo value-$X $(pwd)\n")
        seen = until(shell, b"value-7 /tmp")
        assert b"40 120" in seen
        shell.write(b"exit 5\n")
        result = shell.wait(60)
        assert (result.verdict, result.exit_code) == (Verdict.EXIT, 5)


def test_interrupt_ends_the_command_and_not_the_shell(where: Keywords) -> None:
    with SandboxSession(**where) as session, session.create_interactive_shell() as shell:
        shell.write(b"echo started; sleep 1000\n")
        until(shell, b"started\r\n")
        seen, end = b"", time.monotonic() + 60
        while b"alive-42" not in seen:  # one that comes while the shell hands its terminal over may be lost
            assert time.monotonic() < end, seen
            shell.write(b"\x03")
            shell.write(b"echo alive-$((40+2))\n")
            with contextlib.suppress(TimeoutError):
                seen += shell.stdout.read(timeout_s=2)


def test_command_of_its_own_sees_the_files_of_the_session(where: Keywords) -> None:
    with SandboxSession(**where) as session:
        session.upload("src/a", b"content")
        with session.create_interactive_shell(["cat", "a"], cwd="src") as cat:
            result = cat.wait(60)
            assert (result.stdout, result.exit_code) == (b"content", 0)
        with session.create_interactive_shell(["sleep", "1000"]) as sleeping:
            sleeping.kill()
            assert sleeping.wait(60).verdict is Verdict.SIGNAL


def test_shell_ends_with_its_session(where: Keywords) -> None:
    with SandboxSession(**where) as session:
        shell = session.create_interactive_shell()
        shell.write(b"echo here\n")
        until(shell, b"here")
    end = time.monotonic() + 60
    with contextlib.suppress(TimeoutError):
        while shell.stdout.read(timeout_s=max(0.0, end - time.monotonic())):
            pass
    assert time.monotonic() < end
    with contextlib.suppress(BoxLost, BoxClosed, BoxError):
        assert shell.wait(60).verdict is not Verdict.OK
    shell.close()


def test_open_shell_is_no_idle_time(where: Keywords) -> None:
    with SandboxSession(idle_s=0.5, **where) as session:
        with session.create_interactive_shell() as shell:
            time.sleep(1.5)
            shell.write(b"echo still-$((1+1))\n")
            until(shell, b"still-2")
        assert settle(lambda: _ended(session), True, within_s=60)


def _ended(session: SandboxSession) -> bool:
    try:
        session.history()
    except (NotFound, BoxClosed):
        return True
    return False


def test_session_has_only_so_many_terminals(where: Keywords) -> None:
    with SandboxSession(**where) as session:
        shells = [session.create_interactive_shell() for _ in range(8)]
        with pytest.raises(BoxError, match="terminals"):
            session.create_interactive_shell()
        for shell in shells:
            shell.close()
        assert settle(lambda: _opens(session), True, within_s=60)


def _opens(session: SandboxSession) -> bool:
    try:
        session.create_interactive_shell().close()
    except BoxError:
        return False
    return True


# ---- the server alone ----


def dial(server: BoxServer, session_id: str, query: str = "", token: str = FIRST, **more: Any) -> ClientConnection:
    url = f"{server.url.replace('http', 'ws', 1)}/v1/sessions/{session_id}/shell{query}"
    headers = {"Authorization": f"Bearer {token}", **more}
    return connect(url, additional_headers=headers, compression=None, proxy=None, close_timeout=1)


def test_forged_and_wrong_terminals_are_refused(owners: BoxServer) -> None:
    with SandboxSession(server=owners.url, token=FIRST) as session:
        mine = session.session_id
        cases: list[tuple[int, str, str, str, dict[str, str]]] = [
            (404, mine, "", SECOND, {}),
            (401, mine, "", "x" * 30, {}),
            (404, "0" * 24, "", FIRST, {}),
            (404, f"../{mine}", "", FIRST, {}),
            (403, mine, "", FIRST, {"Origin": "http://evil"}),
            (400, mine, "?rows=0", FIRST, {}),
            (400, mine, "?rows=99999999999999999999", FIRST, {}),
            (400, mine, "?typo=1", FIRST, {}),
            (400, mine, "?command=a%00b", FIRST, {}),
            (431, mine, "?" + "&".join(["command=x"] * 2000), FIRST, {}),
            (431, mine, "", FIRST, {"X-Long": "x" * 9000}),
            (400, mine, "?" + "&".join(["rows=1"] * 1001), FIRST, {}),
        ]
        for status, session_id, query, token, headers in cases:
            with pytest.raises(InvalidStatus) as refused:
                dial(owners, session_id, query, token, **headers)
            assert (query[:50], refused.value.response.status_code) == (query[:50], status)
        with pytest.raises(NotFound):
            stolen = SandboxSession(server=owners.url, token=SECOND)
            stolen.sandbox = session.sandbox
            stolen.create_interactive_shell()


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "null", '{"rows": 1}', '{"rows": -1, "cols": 1}', '{"signal": 65}', '{"a":' * 50, "9" * 5000],
)
def test_wrong_text_ends_the_terminal(owners: BoxServer, text: str) -> None:
    with SandboxSession(server=owners.url, token=FIRST) as session, dial(owners, session.session_id) as raw:
        raw.send(text)
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                raw.recv(60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert session.execute([{"command": ["echo", "hi"]}])["status"]["stdout"] == "hi\n"


def test_client_that_types_what_nobody_reads_disturbs_nobody(owners: BoxServer) -> None:
    query = "?command=sh&command=-c&command=stty+raw+-echo;echo+ok;sleep+100"
    with SandboxSession(server=owners.url, token=FIRST) as session, dial(owners, session.session_id, query) as raw:
        seen = b""
        while b"ok" not in seen:
            data = raw.recv(60)
            assert isinstance(data, bytes)
            seen += data
        raw.socket.settimeout(1)
        with contextlib.suppress(TimeoutError, ConnectionClosed, OSError):
            for _ in range(40):
                raw.socket.sendall(b"x")  # a broken frame, if it is ever read
                raw.send(b"y" * 500_000)
        with SandboxSession(server=owners.url, token=SECOND) as other, other.create_interactive_shell() as shell:
            shell.write(b"echo works-$((2+3))\n")
            until(shell, b"works-5")


def test_terminal_that_is_not_read_makes_its_program_wait(owners: BoxServer) -> None:
    with SandboxSession(server=owners.url, token=FIRST) as session:
        with dial(owners, session.session_id, "?command=yes") as raw:
            time.sleep(0.5)
            assert session.execute([{"command": ["echo", "hi"]}])["status"]["stdout"] == "hi\n"
            raw.socket.shutdown(2)
        gone = ["sh", "-c", "for p in /proc/[0-9]*/comm; do cat $p; done 2>/dev/null"]
        assert settle(lambda: not re.search("^yes$", _stdout(session, gone), re.M), True, within_s=60)


def _stdout(session: SandboxSession, command: list[str]) -> str:
    return session.execute([{"command": command}])["status"]["stdout"]
