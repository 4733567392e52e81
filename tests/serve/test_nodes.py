"""Boxes on several servers: where they go, and what the death of one costs."""

from __future__ import annotations

import contextlib
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import BoxError, BoxLost, Limits, Network, Retry, Sandbox, SandboxPool, Spec, Verdict
from harena.backends.cluster import cluster
from harena.errors import BackendUnavailable, Unsupported
from harena.testing.boxserver import BoxServer, box_server
from support.leaks import settle

TOKEN = "one-token-for-all-of-these-nodes"


@contextlib.contextmanager
def node(folder: Path, *options: str) -> Iterator[BoxServer]:
    folder.mkdir()
    tokens = folder / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"tests {TOKEN}\n")
    with box_server(folder, *options) as server:
        yield server


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[BoxServer]]:
    with node(tmp_path / "a") as a, node(tmp_path / "b") as b:
        yield [a, b]


def url_of(*servers: BoxServer) -> str:
    return "harena://" + ",".join(server.url.removeprefix("http://") for server in servers)


def test_boxes_spread_and_each_stays_where_it_is(two: list[BoxServer]) -> None:
    url = url_of(*two)
    boxes = [Sandbox(url, token=TOKEN) for _ in range(4)]
    try:
        assert sorted(box.node for box in boxes) == sorted(server.url for server in two for _ in range(2))
        for number, box in enumerate(boxes):
            box.write("mine", str(number))
        assert [box.read("mine") for box in boxes] == [b"0", b"1", b"2", b"3"]
        (fork,) = boxes[0].fork()
        with fork:
            assert fork.node == boxes[0].node
            assert fork.read("mine") == b"0"
    finally:
        for box in boxes:
            box.close()


def test_network_is_refused_with_the_reason(two: list[BoxServer]) -> None:
    with pytest.raises(Unsupported, match="no network"):
        Sandbox(Spec(network=Network()), backend=url_of(*two), token=TOKEN)


def test_refused_box_goes_to_another_node(tmp_path: Path) -> None:
    with node(tmp_path / "small", "--max-boxes", "1") as small, node(tmp_path / "large", "--max-boxes", "3") as large:
        url = url_of(small, large)
        boxes = [Sandbox(url, token=TOKEN) for _ in range(4)]
        assert sorted(box.node for box in boxes) == sorted([small.url] + [large.url] * 3)
        with pytest.raises(BoxError, match="none of 2 nodes") as error:
            Sandbox(url, token=TOKEN)
        assert error.value.retry is Retry.SAFE
        boxes.pop().close()
        with Sandbox(url, token=TOKEN) as box:
            assert box.exec(["echo", "hi"]).stdout == b"hi\n"
        for box in boxes:
            box.close()


def test_node_that_dies_costs_only_its_boxes_and_returns(two: list[BoxServer], tmp_path: Path) -> None:
    url = url_of(*two)
    boxes = {box.node: box for box in (Sandbox(url, token=TOKEN) for _ in range(2))}
    lost, kept = boxes[two[0].url], boxes[two[1].url]
    errors: list[Exception] = []

    def run() -> None:
        try:
            lost.exec(["sleep", "100"], limits=Limits(wall_s=200))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert kept.exec(["echo", "before"]).stdout == b"before\n"
    two[0].process.kill()
    thread.join(60)
    assert [(type(error), error.retry) for error in errors if isinstance(error, BoxError)] == [(BoxLost, Retry.UNKNOWN)]
    with pytest.raises(BoxLost, match=two[0].url) as error:  # nothing was sent: it can be run in another box
        lost.exec(["true"])
    assert error.value.retry is Retry.SAFE
    assert kept.exec(["echo", "after"]).stdout == b"after\n"
    for _ in range(3):
        with Sandbox(url, token=TOKEN) as box:
            assert box.node == two[1].url
    port = two[0].url.rpartition(":")[2]
    with box_server(tmp_path / "a", listen=f"127.0.0.1:{port}"):

        def found_again() -> bool:
            with Sandbox(url, token=TOKEN) as first, Sandbox(url, token=TOKEN) as second:
                return two[0].url in (first.node, second.node)

        assert settle(found_again, True, within_s=60)
    lost.close()
    kept.close()


def test_batch_survives_the_death_of_a_node(two: list[BoxServer]) -> None:
    programs = [f"print({number})" for number in range(400)]
    programs[7] = "while True: pass"
    with SandboxPool(url_of(*two), token=TOKEN) as pool:
        killed: list[str] = []

        def progress(done: int, of: int) -> None:
            if done == 60 and not killed:
                killed.append(two[0].url)
                two[0].process.kill()

        results = pool.map(programs, limits=Limits(wall_s=5), progress=progress)
        assert killed
        assert results[7].verdict is Verdict.TIME
        wrong = [at for at, result in enumerate(results) if at != 7 and result.stdout != b"%d\n" % at]
        assert wrong == []
        assert pool.map(["print(1)"])[0].ok
        with pool.lease() as box:
            assert box.node == two[1].url


def test_nodes_join_and_leave_while_a_batch_runs(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    programs = ["import time; time.sleep(0.05); print(1)"] * 3000
    with node(tmp_path / "a") as a, node(tmp_path / "b") as b:
        file.write_text(f"{a.url}\n")
        with SandboxPool(f"nodes:{file}", token=TOKEN) as pool:
            assert {box.node for box in pool.ready} == {a.url}
            state = "alone"

            def progress(done: int, of: int) -> None:
                nonlocal state
                if done == 10:
                    file.write_text(f"{a.url}\n{b.url}\n")
                    state = "joining"
                if state == "joining" and done % 20 == 0 and boxes_of(b):
                    file.write_text(f"{b.url}\n")
                    state = "leaving"
                if state == "leaving" and done % 20 == 0 and not boxes_of(a):
                    state = "done"
                    raise Enough

            with contextlib.suppress(Enough):
                pool.map(programs, progress=progress)
        assert state == "done"


class Enough(Exception):
    pass


def boxes_of(server: BoxServer) -> int:
    """Boxes that a server has, by its metrics."""
    request = urllib.request.Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("harena_serve_boxes "))


def test_server_that_drains_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ASK_S", 0.1)
    with (
        node(tmp_path / "a", "--drain", "60") as a,
        node(tmp_path / "b") as b,
        SandboxPool(url_of(a, b), token=TOKEN, warm=2) as pool,
    ):

        def progress(done: int, of: int) -> None:
            if done == 20:
                a.process.send_signal(signal.SIGTERM)

        results = pool.map(["import time; time.sleep(0.02); print(1)"] * 400, progress=progress)
        assert all(result.stdout == b"1\n" for result in results)
        assert settle(lambda: a.process.poll(), 0, within_s=90) == 0
        with pool.lease() as box:
            assert box.node == b.url


def test_without_any_node_the_error_names_them(tmp_path: Path) -> None:
    with pytest.raises(BoxError, match=r"none of 2 nodes.*127\.0\.0\.1:1.*cannot connect") as error:
        Sandbox("harena://127.0.0.1:1,127.0.0.1:2", token=TOKEN)
    assert error.value.retry is Retry.SAFE
    with pytest.raises(BoxError, match="cannot connect"):
        SandboxPool("harena://127.0.0.1:1", token=TOKEN)


def test_wrong_token_is_said(two: list[BoxServer]) -> None:
    with pytest.raises(BackendUnavailable, match="token"):
        Sandbox(url_of(*two), token="x" * 30)
