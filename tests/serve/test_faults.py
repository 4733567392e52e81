"""Faults: servers, nodes and clients that are killed, connections that are cut or slow, disks that are full. Nothing is
left behind, and every operation ends in one true state. `make soak` runs the large numbers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import BoxError, BoxLost, HarenaError, Limits, Retry, Sandbox, SandboxPool, SandboxSession
from harena.testing.boxserver import BoxServer, box_server
from harena.testing.contract.conftest import processes_with
from support.leaks import alive, descendants, settle

SMALL = Limits(memory_mb=64, processes=8, wall_s=60)


def marker() -> str:
    return f"{40000 + int.from_bytes(os.urandom(3))}.{os.getpid()}"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BoxServer]:
    with box_server(tmp_path, "--max-boxes", "400", "--max-clients", "2000") as server:
        yield server


def steps(*argv: str) -> list[dict[str, object]]:
    return [{"name": "one", "type": "Command", "command": [*argv]}]


def kill_amid_sessions(server: BoxServer, sessions: int, programs: int) -> None:
    """Kill the server while sessions execute and a batch runs; check how each operation ended."""
    mark = marker()
    ended: list[str] = []
    lock = threading.Lock()

    def session(number: int) -> None:
        try:
            with SandboxSession(server=server.url, token=server.token) as one:
                for turn in range(10_000):
                    argv = ["sleep", mark] if turn else ["echo", str(number)]
                    status = one.execute(steps(*argv), operation_id=f"{number}-{turn}")["status"]
                    assert status["stdout"] == f"{number}\n"
            kind = "finished"
        except HarenaError as error:
            kind = type(error).__name__
        except Exception as error:
            kind = f"unexpected {type(error).__name__}: {error}"
        with lock:
            ended.append(kind)

    def batch() -> None:
        try:
            with SandboxPool(server.url, token=server.token, warm=1) as pool:
                pool.map(["import time; time.sleep(0.01)"] * programs)
            kind = "finished"
        except HarenaError as error:
            kind = f"batch {type(error).__name__}"
        except Exception as error:
            kind = f"unexpected {type(error).__name__}: {error}"
        with lock:
            ended.append(kind)

    threads = [threading.Thread(target=session, args=(number,)) for number in range(sessions)]
    threads.append(threading.Thread(target=batch))
    for thread in threads:
        thread.start()
    assert settle(lambda: len(processes_with(mark)) >= sessions // 2, True, within_s=90)
    below = descendants(server.process.pid)
    assert len(below) > sessions
    server.process.kill()
    server.process.wait(60)
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    assert len(ended) == sessions + 1
    assert not [kind for kind in ended if kind == "finished" or kind.startswith("unexpected")], Counter(ended)
    assert settle(lambda: processes_with(mark), [], within_s=60) == []
    assert settle(lambda: alive(below), set(), within_s=60) == set()


def test_server_killed_amid_sessions_and_a_batch_leaves_nothing(own: BoxServer) -> None:
    kill_amid_sessions(own, 8, 2000)


@pytest.mark.soak
def test_server_killed_amid_200_sessions_and_a_batch_of_10000_leaves_nothing(own: BoxServer) -> None:
    kill_amid_sessions(own, 200, 10_000)


def test_client_killed_amid_a_batch_leaves_nothing(own: BoxServer) -> None:
    mark = marker()
    source = (
        "from harena import SandboxPool, Limits\n"
        f"pool = SandboxPool({own.url!r}, token={own.token!r}, warm=1)\n"
        "import sys; print('ready', flush=True)\n"
        f"pool.map([\"import subprocess; subprocess.run(['sleep', {mark!r}])\"] * 50, limits=Limits(wall_s=100))\n"
    )
    client = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    assert settle(lambda: any(pid != client.pid for pid in processes_with(mark)), True, within_s=60)
    client.send_signal(signal.SIGKILL)
    client.wait(60)
    client.stdout.close()
    assert settle(lambda: processes_with(mark), [], within_s=60) == []
    with Sandbox(own.url, token=own.token) as box:
        assert box.exec(["echo", "still here"]).stdout == b"still here\n"


class Proxy:
    """Passes bytes between clients and a server, until it is told to cut or to slow them."""

    def __init__(self, server: BoxServer) -> None:
        self.delay_s = 0.0
        self._target = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                with self._lock:
                    self._pairs.append((client, server))
                    for one, other in ((client, server), (server, client)):
                        self._threads.append(threading.Thread(target=self._pass, args=(one, other)))
                        self._threads[-1].start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(4096):
                time.sleep(self.delay_s)
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        with self._lock:
            for one in (one for pair in self._pairs for one in pair):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        for pair in self._pairs:
            for one in pair:
                one.close()


@pytest.fixture
def proxy(server: BoxServer) -> Iterator[Proxy]:
    with contextlib.closing(Proxy(server)) as proxy:
        yield proxy


def test_cut_connection_loses_its_boxes_and_the_next_box_works(server: BoxServer, proxy: Proxy) -> None:
    mark = marker()
    box = Sandbox(proxy.url, token=server.token)
    errors: list[BoxError] = []

    def run() -> None:
        try:
            box.exec(["sleep", mark], limits=SMALL)
        except BoxError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert settle(lambda: bool(processes_with(mark)), True, within_s=60)
    proxy.cut()
    thread.join(60)
    assert [(type(error), error.retry) for error in errors] == [(BoxLost, Retry.UNKNOWN)]
    assert settle(lambda: processes_with(mark), [], within_s=60) == []
    with Sandbox(proxy.url, token=server.token) as other:
        assert other.exec(["echo", "hi"]).stdout == b"hi\n"


def test_batch_goes_on_after_a_cut_connection(server: BoxServer, proxy: Proxy) -> None:
    with SandboxPool(proxy.url, token=server.token, warm=1) as pool:

        def progress(done: int, of: int) -> None:
            if done in (30, 90):
                proxy.cut()

        results = pool.map([f"print({number})" for number in range(150)], progress=progress)
    assert [int(result.stdout) for result in results] == list(range(150))


def test_operation_of_a_session_runs_once_whatever_is_cut(server: BoxServer, proxy: Proxy) -> None:
    """Requests are sent again with the same id after each cut."""
    with SandboxSession(server=proxy.url, token=server.token) as session:
        cutting = threading.Event()

        def cut() -> None:
            while not cutting.wait(0.05):
                proxy.cut()

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            for number in range(5):
                line = f"echo {number} >> /workspace/log; sleep 0.2"
                for _ in range(60):
                    with contextlib.suppress(HarenaError):
                        session.execute(steps("sh", "-c", line), operation_id=f"operation-{number}")
                        break
                else:
                    raise AssertionError("no request came through")
                time.sleep(0.01)
                if number == 3:
                    cutting.set()
        finally:
            cutting.set()
            thread.join()
        found = session.execute(steps("cat", "/workspace/log"))["status"]["stdout"]
    assert found == "0\n1\n2\n3\n4\n"


def test_slow_connection_costs_time_and_no_verdict(server: BoxServer, proxy: Proxy) -> None:
    """The clocks of an execution run on the server."""
    with Sandbox(proxy.url, token=server.token) as box:
        box.exec(["true"])
        proxy.delay_s = 0.3
        result = box.exec(["sleep", "0.1"], limits=Limits(wall_s=30))
        assert result.ok
        assert box.exec(["sh", "-c", "head -c 100000 /dev/zero"]).stdout == bytes(100_000)
        proxy.delay_s = 0.0


def test_full_disk_of_the_server_is_an_error_and_not_a_wrong_answer(tmp_path: Path) -> None:
    """The box's own disk is full: what runs there is told so, and the server serves on."""
    with box_server(tmp_path) as server, Sandbox(server.url, token=server.token) as box:
        filled = box.exec(["sh", "-c", "head -c 4000000000 /dev/zero > /workspace/full"])
        assert not filled.ok
        with pytest.raises(HarenaError):
            box.write("more", b"x" * (1 << 20))
        assert box.exec(["sh", "-c", "rm /workspace/full && echo again"]).stdout == b"again\n"
        box.write("more", b"x" * (1 << 20))
        assert len(box.read("more")) == 1 << 20


def connect_many(server: BoxServer, clients: int) -> None:
    from support.wire_client import raw_client

    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(raw_client(server)) for _ in range(clients)]
        handles = [client.ask("load")["value"]["cores"] for client in opened]
        assert len(handles) == clients
        assert opened[0].ask("exec", handle=opened[1].box(), argv=["true"], env={}, cwd="", limits=limits())["error"]
        with Sandbox(server.url, token=server.token) as box:
            assert box.exec(["echo", "hi"]).stdout == b"hi\n"


def limits() -> dict[str, object]:
    from harena.node import messages

    return messages.limits_out(SMALL)


def test_hundred_clients_are_served_and_kept_apart(own: BoxServer) -> None:
    connect_many(own, 100)


@pytest.mark.soak
def test_thousand_clients_are_served_and_kept_apart(own: BoxServer) -> None:
    connect_many(own, 1000)


@pytest.mark.soak
def test_memory_stays_flat_over_50000_sessions(own: BoxServer) -> None:
    count = int(os.environ.get("HARENA_SOAK_SESSIONS", "50000"))

    def some(number: int) -> None:
        def work() -> None:
            for _ in range(number // 8):
                with SandboxSession(server=own.url, token=own.token) as session:
                    assert session.execute(steps("true"))["status"]["exitCode"] == 0

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    some(max(400, count // 20))
    before = resident_mb(own.process.pid)
    some(count)
    assert resident_mb(own.process.pid) < before * 1.25 + 20


def resident_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS"))
