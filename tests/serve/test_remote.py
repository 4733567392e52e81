"""Boxes on a server: how connections begin and end, and what is left when either side dies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import (
    AsyncSandbox,
    AsyncSandboxPool,
    BackendUnavailable,
    BoxError,
    BoxLost,
    Limits,
    Network,
    Retry,
    Sandbox,
    SandboxPool,
    Spec,
    SpecError,
    Verdict,
)
from harena.testing.boxserver import BoxServer, box_server
from harena.testing.contract.conftest import processes_with
from support.leaks import settle


def marker() -> str:
    return f"{40000 + int.from_bytes(os.urandom(3))}.{os.getpid()}"


def test_box_and_pool_by_url(server: BoxServer) -> None:
    with Sandbox(server.url, token=server.token) as box:
        assert box.run("print(6 * 7)").stdout == b"42\n"
        box.write("a.txt", "hello")
        assert box.read("a.txt") == b"hello"
    with SandboxPool(server.url, token=server.token, warm=1, max_live=2) as pool:
        hostile = ["print(1)", "while True: pass", "import sys; sys.exit(3)"]
        results = pool.map(hostile, limits=Limits(wall_s=1))
        assert [one.verdict for one in results] == [Verdict.OK, Verdict.TIME, Verdict.EXIT]
        with pool.lease() as box:
            assert box.exec(["echo", "hi"]).stdout == b"hi\n"


def test_async_twins(server: BoxServer) -> None:
    async def main() -> None:
        async with AsyncSandbox(server.url, token=server.token) as box:
            assert (await box.run("print(1)")).stdout == b"1\n"
            started = time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(box.exec(["sleep", "30"]), 0.5)
            assert time.monotonic() - started < 10
            assert (await box.exec(["echo", "still here"])).stdout == b"still here\n"
        async with AsyncSandboxPool(server.url, token=server.token, warm=1, max_live=1) as pool:
            assert [one.stdout for one in await pool.map(["print(1)", "print(2)"])] == [b"1\n", b"2\n"]

    asyncio.run(main())


def test_spec_goes_with_the_url_as_backend(server: BoxServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_TOKEN", server.token)
    with Sandbox(Spec(hostname="remote"), backend=server.url) as box:
        assert box.exec(["hostname"]).stdout == b"remote\n"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org:8700",
        "http://10.0.0.1:8700",
        "https://user:word@host:1",
        "https://host:1/path",
        "https://host:99999",
        "https://",
        "unix:relative",
    ],
)
def test_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(SpecError):
        Sandbox(url, token="x" * 30)


def test_neither_url_nor_spec(server: BoxServer) -> None:
    with pytest.raises(SpecError, match="URL"):
        Sandbox("host:8700")
    with pytest.raises(SpecError, match="no backend"):
        Sandbox(server.url, backend="relay")
    with pytest.raises(SpecError, match="token"):
        Sandbox(token="x" * 30)


def test_server_that_is_not_there_may_be_tried_again() -> None:
    with pytest.raises(BoxError, match="cannot connect") as error:
        Sandbox("http://127.0.0.1:1", token="x" * 30)
    assert error.value.retry is Retry.SAFE


def test_network_is_refused_with_the_reason(server: BoxServer) -> None:
    with pytest.raises(SpecError, match="--allow-network"):
        Sandbox(Spec(network=Network()), backend=server.url, token=server.token)


def test_client_that_dies_leaves_nothing(server: BoxServer) -> None:
    mark = marker()
    source = (
        "import sys, time; from harena import Sandbox\n"
        f"box = Sandbox({server.url!r}, token={server.token!r})\n"
        f"process = box.start(['sleep', {mark!r}])\n"
        "print('started', flush=True); time.sleep(100)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"started\n"
    assert settle(lambda: any(pid != client.pid for pid in processes_with(mark)), True)
    client.kill()
    client.wait()
    client.stdout.close()
    assert settle(lambda: processes_with(mark), [], within_s=60) == []


def test_box_that_is_dropped_ends(server: BoxServer) -> None:
    mark = marker()
    box = Sandbox(server.url, token=server.token)
    process = box.start(["sleep", mark])
    assert settle(lambda: bool(processes_with(mark)), True)
    del box, process
    gc.collect()
    assert settle(lambda: processes_with(mark), [], within_s=60) == []


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[BoxServer]:
    with box_server(tmp_path) as server:
        yield server


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_server_that_ends_is_a_lost_box(own_server: BoxServer, how: signal.Signals) -> None:
    mark = marker()
    box = Sandbox(own_server.url, token=own_server.token)
    errors: list[Exception] = []

    def run() -> None:
        try:
            box.exec(["sleep", mark], limits=Limits(wall_s=60))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert settle(lambda: bool(processes_with(mark)), True)
    own_server.process.send_signal(how)
    thread.join(30)
    assert [type(error) for error in errors] == [BoxLost]
    own_server.process.wait(30)
    assert settle(lambda: processes_with(mark), [], within_s=60) == []
    assert not box.alive
    with pytest.raises(BoxLost):
        box.exec(["true"])
    box.close()
    if how is signal.SIGTERM:
        assert own_server.process.returncode == 0


def test_forked_child_of_a_client_leaves_the_connection_alone(server: BoxServer) -> None:
    source = (
        "import os; from harena import Sandbox\n"
        f"box = Sandbox({server.url!r}, token={server.token!r})\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: box.exec(['true'])\n"
        "    except Exception as error: os._exit(0 if type(error).__name__ == 'WrongProcess' else 1)\n"
        "    os._exit(2)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert box.exec(['echo', 'hi']).stdout == b'hi\\n'\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", source], check=True, timeout=60)


def test_unix_socket_is_its_user_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with box_server(tmp_path, listen=f"unix:{path}") as server:
        assert path.stat().st_mode & 0o777 == 0o600
        with Sandbox(server.url, token=server.token) as box:
            assert box.exec(["echo", "hi"]).stdout == b"hi\n"
        with (
            pytest.raises(AssertionError, match="another server listens there"),
            box_server(tmp_path, listen=f"unix:{path}"),
        ):
            pass
    assert not path.exists()


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert = str(Path(__file__).with_name("loopback.pem"))  # for 127.0.0.1, with its key
    with box_server(tmp_path, "--tls-cert", cert, "--tls-key", cert) as server:
        assert server.url.startswith("https://")
        with pytest.raises(BoxError, match="certificate"):
            Sandbox(server.url, token=server.token)
        monkeypatch.setenv("SSL_CERT_FILE", cert)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with Sandbox(server.url, token=server.token) as box:
            box.write("big", b"x" * (3 << 20))
            assert len(box.read("big")) == 3 << 20


def refusal(*options: str) -> str:
    command = [sys.executable, "-m", "harena", "serve", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    return ended.stderr


def test_server_refuses_to_be_open(tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens")
    assert "--token-file" in refusal()
    assert "in the clear" in refusal("--listen", "0.0.0.0:0", "--token-file", tokens)
    assert "give both" in refusal("--token-file", tokens, "--tls-cert", tokens)
    (tmp_path / "open").write_text("a " + "b" * 30)
    os.chmod(tmp_path / "open", 0o644)
    assert "chmod 600" in refusal("--token-file", str(tmp_path / "open"))
    (tmp_path / "short").write_text("a b")
    os.chmod(tmp_path / "short", 0o600)
    assert "at least" in refusal("--token-file", str(tmp_path / "short"))


def test_allowed_path_can_be_mounted_and_nothing_beside_it(tmp_path: Path) -> None:
    from harena import Mount

    shown, hidden = tmp_path / "shown", tmp_path / "shown-not"
    for folder in (shown, hidden):
        folder.mkdir()
        (folder / "file").write_text("hello")
    (shown / "link").symlink_to(hidden)
    with box_server(tmp_path, "--allow-path", str(shown)) as server:
        with Sandbox(
            Spec(mounts=(Mount(source=str(shown), target="/data"),)), backend=server.url, token=server.token
        ) as box:
            assert box.exec(["cat", "/data/file"]).stdout == b"hello"
        for mount in (
            Mount(source=str(hidden), target="/data"),
            Mount(source=str(shown / "link"), target="/data"),
            Mount(source=str(shown / ".." / "shown-not"), target="/data"),
            Mount(source=str(shown), target="/data", writable=True),
        ):
            with pytest.raises(SpecError, match="--allow-path"):
                Sandbox(Spec(mounts=(mount,)), backend=server.url, token=server.token)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets.sync.client", None)
    with pytest.raises(BackendUnavailable, match=r"harena\[remote\]"):
        Sandbox("http://127.0.0.1:9", token="x" * 30)


def test_writable_path_is_mounted_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """A box could replace a folder inside it by a link to anything, and mount that next."""
    from harena import Mount

    shared = tmp_path / "shared"
    (shared / "inner" / "bin").mkdir(parents=True)
    os.chmod(shared, 0o777)
    with box_server(tmp_path, "--allow-path", "/", "--allow-path", f"{shared}:rw") as server:
        whole = Mount(source=str(shared), target="/data", writable=True)
        with Sandbox(Spec(mounts=(whole,)), backend=server.url, token=server.token) as box:
            assert box.exec(["sh", "-c", "echo hi > /data/new"]).ok
        assert (shared / "new").read_text() == "hi\n"
        for fields in (
            {"mounts": (Mount(source=str(shared / "inner"), target="/data"),)},
            {"mounts": (Mount(source=str(shared / "inner"), target="/data", writable=True),)},
            {"mounts": (Mount(source=str(tmp_path), target="/data", writable=True),)},
            {"rootfs": str(shared)},
            {"rootfs": str(shared / "inner")},
            {"python": str(shared / "inner" / "bin" / "python3")},
            {"python": str(shared / "inner")},
        ):
            with pytest.raises(SpecError, match="--allow-path"):
                Sandbox(Spec(**fields), backend=server.url, token=server.token)


@pytest.mark.parametrize(
    ("image", "pattern", "allowed"),
    [
        ("python:3.11-slim", "python:3.*", True),
        ("python:3.11@sha256:00", "python:*", True),
        ("python@sha256:00", "python:*", True),
        ("python:3.11@sha256:00", "python:3.*", False),
        ("python:3.11@sha256:00", "python:3.11@sha256:*", True),
        ("ghcr.io:80/me/tool:1@sha256:00", "ghcr.io:80/me/*", True),
        ("ghcr.io:80/me/tool:1@sha256:00", "ghcr.io:80/me/tool:1*", False),
        ("evil:3.11", "python:*", False),
        ("python:80/evil:latest", "python:*", False),
        ("ghcr.io/me/tool:1", "ghcr.io/me/*", True),
        ("ghcr.io/me/x/tool:1", "ghcr.io/me/*", False),
        ("ghcr.io.evil.org/me/tool:1", "ghcr.io/me/*", False),
    ],
)
def test_pattern_of_images_crosses_no_slash_and_no_digest(image: str, pattern: str, allowed: bool) -> None:
    from harena.node.rules import Rules

    rules = Rules(images=(pattern,))
    if allowed:
        assert rules.admit(Spec(image=image), Limits()).image == image
    else:
        with pytest.raises(SpecError, match="--allow-image"):
            rules.admit(Spec(image=image), Limits())


def test_interpreter_tells_nothing_of_the_host(server: BoxServer) -> None:
    texts: list[str] = []
    for path in ("/root", "/etc/passwd", "/no/such/place"):
        with pytest.raises(SpecError) as error:
            Sandbox(Spec(python=path), backend=server.url, token=server.token)
        texts.append(str(error.value).replace(path, "PATH"))
    assert len(set(texts)) == 1


def test_pool_has_a_box_for_each_core_of_the_server(tmp_path: Path) -> None:
    """Not of the client, which may be small."""
    one = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("host: one processor only")
    with box_server(tmp_path) as server:
        os.sched_setaffinity(0, {one})
        try:
            with SandboxPool(server.url, token=server.token) as pool:
                assert len(pool.ready) == len(before)
        finally:
            os.sched_setaffinity(0, before)


def test_server_ends_when_idle_after_a_visit_of_a_moment(tmp_path: Path) -> None:
    with box_server(tmp_path, "--end-idle", "1") as server:
        before = server.process.poll()
        request = urllib.request.Request(
            f"{server.url}/v1/sessions/none/execute", b"{}", {"Authorization": f"Bearer {server.token}"}
        )
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=60)
        error.value.close()
        assert (before, server.process.wait(60)) == (None, 0)


def test_server_does_not_end_while_a_request_is_under_way(tmp_path: Path) -> None:
    with box_server(tmp_path, "--end-idle", "1") as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        with contextlib.closing(connection):
            connection.putrequest("POST", "/v1/sessions/none/execute")
            connection.putheader("Authorization", f"Bearer {server.token}")
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", "2")
            connection.endheaders(b"{")
            time.sleep(3)  # three times as long as an idle server stays
            with urllib.request.urlopen(f"{server.url}/readyz", timeout=60) as answer:
                assert answer.status == 200
            connection.send(b"}")
            assert connection.getresponse().status == 400  # the body has no steps
        assert server.process.wait(60) == 0
