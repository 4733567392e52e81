"""The disk of a server is full: journals and usage cannot be written. Every operation ends in one true state, the server
goes on, says that it is degraded, and recovers when there is space again."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harena import Retry, Sandbox, SandboxSession
from harena.errors import HarenaError, JournalError
from harena.journal import verify
from harena.testing.boxserver import BoxServer, box_server
from support.leaks import settle
from support.lines import in_thread

pytestmark = pytest.mark.root

CLONE_NEWNS = 0x00020000
LONG = "x" * 20_000
"""Too long for a line of a journal, so that its action needs space of its own."""


@dataclass(frozen=True)
class Disk:
    """A disk of three megabytes, which only the server sees as such."""

    server: BoxServer
    folder: Path

    def fill(self) -> None:
        with contextlib.suppress(OSError), open(self.folder / "filler", "ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def ask(self, path: str) -> Any:
        connection = http.client.HTTPConnection(self.server.url.removeprefix("http://"), timeout=60)
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.server.token}"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        assert response.status == 200, text
        return json.loads(text) if path != "/metrics" else text.decode()

    def boxes(self) -> int:
        return self.ask("/v1/stats")["boxes"]

    def session(self) -> SandboxSession:
        return SandboxSession(server=self.server.url, token=self.server.token)


@pytest.fixture(scope="module")
def only_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    own, mounted = tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("disk")

    def start() -> BoxServer:
        """In a mount namespace of the thread, which the server inherits."""
        if ctypes.CDLL(None).unshare(CLONE_NEWNS):
            pytest.skip("host: no mount namespace can be made")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", mounted], check=False).returncode:
            pytest.skip("host: tmpfs cannot be mounted")
        options = "--journal", str(mounted / "journals"), "--usage", str(mounted / "usage.db")
        return stack.enter_context(box_server(own, *options))

    with contextlib.ExitStack() as stack:
        server = in_thread(start)
        yield Disk(server, Path(f"/proc/{server.process.pid}/root") / mounted.relative_to("/"))


@pytest.fixture
def disk(only_disk: Disk) -> Iterator[Disk]:
    yield only_disk
    with contextlib.suppress(FileNotFoundError):
        only_disk.free()
    assert settle(lambda: only_disk.ask("/healthz")["status"], "healthy", within_s=60) == "healthy"


def step(*command: str) -> list[dict[str, Any]]:
    return [{"name": "step", "command": [*command]}]


def test_action_that_cannot_be_recorded_does_not_run_and_may_be_sent_again(disk: Disk) -> None:
    with disk.session() as session:
        disk.fill()
        for _ in range(2):
            with pytest.raises(JournalError, match="nothing was run") as failed:
                session.execute(step("sh", "-c", "echo ran >> /workspace/log", LONG), operation_id="once")
            assert failed.value.retry is Retry.SAFE
        with pytest.raises(JournalError, match="nothing was run"):
            session.upload("file", LONG.encode())
        disk.free()
        done = session.execute(step("sh", "-c", "echo ran >> /workspace/log", LONG), operation_id="once")
        assert done["status"]["state"] == "Succeeded"
        again = session.execute(step("sh", "-c", "cat /workspace/log; ls /workspace"))["status"]
        assert again["stdout"] == "ran\nlog\n"
        [journal] = (disk.folder / "journals").rglob(f"{session.session_id}.jsonl")
        assert [one["mask"] for one in session.trajectory()] == [False, False]
        kept = journal.read_bytes()
    assert verify(journal).ok
    assert journal.read_bytes().startswith(kept)


def test_action_whose_result_cannot_be_recorded_is_masked_and_the_last_one(disk: Disk) -> None:
    with disk.session() as session:
        session.execute(step("echo", "first"))
        disk.fill()
        with open(disk.folder / "filler", "r+b") as file:
            file.truncate((disk.folder / "filler").stat().st_size - 65536)  # for the action
        with pytest.raises(JournalError, match="not recorded") as failed:
            session.execute(step("head", "-c", "900000", "/dev/urandom"), operation_id="big")
        assert failed.value.retry is Retry.UNKNOWN
        disk.free()
        with pytest.raises(JournalError, match="not recorded"):  # the same outcome, however often it is asked for
            session.execute(step("head", "-c", "900000", "/dev/urandom"), operation_id="big")
        with pytest.raises(JournalError) as refused:
            session.execute(step("echo", "later"))
        assert refused.value.retry is Retry.NEVER
        assert [one["mask"] for one in session.trajectory()] == [False, True]


def test_sessions_begin_and_end_in_order_on_a_full_disk(disk: Disk) -> None:
    before = disk.boxes()
    with disk.session() as session:
        session.execute(step("true"))
        disk.fill()
        files = {path.name for path in (disk.folder / "journals").rglob("*.jsonl")}
        for _ in range(3):
            with pytest.raises(JournalError), disk.session() as other:
                other.execute(step("echo", LONG))
    assert {path.name for path in (disk.folder / "journals").rglob("*.jsonl")} == files
    assert settle(disk.boxes, before, within_s=30) == before
    disk.free()
    with disk.session() as session:
        assert session.execute(step("echo", "again"))["status"]["stdout"] == "again\n"


def test_server_with_a_full_disk_says_so_and_loses_no_usage(disk: Disk) -> None:
    def executions() -> float:
        return disk.ask("/v1/usage?by=")["usage"][0]["executions"]

    with Sandbox(disk.server.url, token=disk.server.token) as box:
        box.exec(["true"])
        before = executions()
        disk.fill()
        for number in range(20):
            assert box.exec(["echo", str(number)]).stdout == f"{number}\n".encode()  # boxes without a journal run
        with pytest.raises(HarenaError), disk.session() as session:
            session.execute(step("echo", LONG))
        both = {"journals": "No space left on device", "usage": "database or disk is full"}
        assert settle(lambda: disk.ask("/healthz").get("problems"), both, within_s=60) == both
        assert disk.ask("/healthz")["status"] == "degraded"
        assert "harena_serve_degraded 1\n" in disk.ask("/metrics")
        assert executions() == before + 20
        disk.free()
        assert settle(lambda: disk.ask("/healthz")["status"], "healthy", within_s=60) == "healthy"
        assert executions() == before + 20
