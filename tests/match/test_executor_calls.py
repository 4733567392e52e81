"""Limits, cancelling, watching, shutting down: calls in time, with a runner that waits for the test."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from harena.match.executor import config, replays, server, service
from harena.match.executor.orders import CallRefused
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.executor.watchers import BACKLOG, Watcher
from support.executor_client import FIRST_FREE, Client, FakeRunner, refusal, request, result, serving, two, types, until

Code = grpc.StatusCode


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def client(runner: FakeRunner, tmp_path: Path) -> Iterator[Client]:
    with serving(runner, tmp_path) as running, Client(running.port) as made:
        yield made
        runner.release()


# ---- limits ----


def test_matches_above_the_limit_are_refused_with_the_limit(client: Client, runner: FakeRunner) -> None:
    runner.hold()
    running = [client.run_later(two()) for _ in range(2)]
    runner.started(2)
    assert client.health().active_matches == 2
    code, text = refusal(client.run, two())
    assert (code, "2 matches" in text, "max_matches" in text) == (Code.RESOURCE_EXHAUSTED, True, True)
    assert refusal(client.validate, code_zip=FIRST_FREE, environment="tictactoe")[0] is Code.RESOURCE_EXHAUSTED
    runner.release()
    assert [call.result().status for call in running] == [pb.STATUS_SUCCESS] * 2
    assert client.run(two()).status == pb.STATUS_SUCCESS


def test_a_running_match_id_is_refused_and_free_again_afterwards(client: Client, runner: FakeRunner) -> None:
    runner.hold()
    running = client.run_later(two(match_id="m"))
    runner.started()
    assert refusal(client.run, two(match_id="m"))[0] is Code.ALREADY_EXISTS
    runner.release()
    assert running.result().match_id == "m"
    assert client.run(two(match_id="m")).match_id == "m"


def test_a_message_above_the_limit_is_refused(runner: FakeRunner, tmp_path: Path) -> None:
    text = "executor: {port: 0, max_message_mb: 1}"
    with serving(runner, tmp_path, text) as running, Client(running.port) as client:
        assert refusal(client.run, request(FIRST_FREE, b"#" * (1 << 20)))[0] is Code.RESOURCE_EXHAUSTED
        assert client.run(two()).status == pb.STATUS_SUCCESS


# ---- cancelling ----


def test_a_cancelled_call_ends_its_game_and_frees_its_place(client: Client, runner: FakeRunner) -> None:
    runner.hold()
    call = client.run_later(two(games=5))
    handle = runner.started()
    call.cancel()
    assert handle.cancelled.wait(30)
    assert until(lambda: client.health().active_matches == 0)
    assert len(runner.submitted) == 1


def test_a_deadline_ends_the_match(client: Client, runner: FakeRunner) -> None:
    runner.hold()
    assert refusal(client.run, two(), timeout=1.0)[0] is Code.DEADLINE_EXCEEDED
    assert runner.started().cancelled.wait(30)
    assert until(lambda: client.health().active_matches == 0)


def test_cancel_match_ends_it_and_the_call_says_so(client: Client, runner: FakeRunner) -> None:
    runner.hold()
    call = client.run_later(two(match_id="m"))
    runner.started()
    assert client.cancel("m")
    answer = call.result()
    assert (answer.status, answer.winner_agent_id) == (pb.STATUS_CANCELLED, "")
    assert "CancelMatch" in answer.error_message
    assert not client.cancel("m")


def test_a_closed_channel_ends_the_match(runner: FakeRunner, tmp_path: Path) -> None:
    runner.hold()
    with serving(runner, tmp_path) as running, Client(running.port) as client:
        with Client(running.port) as leaving:
            call = leaving.run_later(two())
            handle = runner.started()
        assert handle.cancelled.wait(30)
        assert until(lambda: client.health().active_matches == 0)
        assert call.cancelled() or call.exception() is not None


# ---- watching ----


def step(number: int, **more: Any) -> dict[str, Any]:
    clocks = [{"cpu_s": 0.1, "bank_s": 2.0, "moves": 1}] * 2
    return {"type": "step", "step": number, "rewards": {0: 1.0}, "clocks": clocks, **more}


def test_a_match_can_be_started_and_watched_in_one_call(client: Client, runner: FakeRunner) -> None:
    runner.hold()
    events = client.watch(pb.WatchRequest(match=two(match_id="m", games=2)))
    first = next(events)
    assert (first.type, first.match_id, list(first.seats)) == ("started", "m", ["agent-0", "agent-1"])
    handle = runner.started()
    assert handle.on_event is not None
    handle.on_event({"type": "started"})
    handle.on_event(step(1, actions={0: 4}, view={"board": [1]}, text="X"))
    seen = next(events)
    assert (seen.type, seen.step, dict(seen.actions), dict(seen.rewards)) == ("step", 1, {0: "4"}, {0: 1.0})
    assert (json.loads(seen.view), seen.text, seen.clocks[0].bank_sec) == ({"board": [1]}, "X", 2.0)
    handle.on_event(step(2))  # of a game with hidden information
    assert not next(events).view
    runner.release()
    rest = list(events)
    assert types(iter(rest)) == ["finished", "started", "finished", "result"]
    assert rest[0].game_result.winner_agent_id == "agent-0"
    assert (rest[1].game, list(rest[1].seats)) == (1, ["agent-1", "agent-0"])
    assert rest[-1].result.status == pb.STATUS_SUCCESS
    assert client.health().active_matches == 0


def test_who_starts_by_watching_and_leaves_ends_the_match(client: Client, runner: FakeRunner) -> None:
    runner.hold()
    events = client.watch(pb.WatchRequest(match=two()))
    next(events)
    handle = runner.started()
    events.cancel()
    assert handle.cancelled.wait(30)
    assert until(lambda: client.health().active_matches == 0)


def test_others_look_on_without_logs_and_leave_without_harm(client: Client, runner: FakeRunner) -> None:
    runner.answer = lambda spec: result(spec, logs={0: "mine"})
    runner.hold()
    call = client.run_later(two(match_id="m", watchable=True, include_logs=True))
    handle = runner.started()
    leaving = client.watch(pb.WatchRequest(match_id="m"))
    staying = client.watch(pb.WatchRequest(match_id="m"))
    assert [next(leaving).type, next(staying).type] == ["started", "started"]
    assert handle.on_event is not None
    handle.on_event(step(1))
    assert [next(leaving).step, next(staying).step] == [1, 1]
    late = client.watch(pb.WatchRequest(match_id="m"))
    assert [next(late).type, next(late).step] == ["started", 1]
    leaving.cancel()
    assert not handle.cancelled.wait(0.1)
    runner.release()
    last = list(staying)[-1]
    assert last.result.status == pb.STATUS_SUCCESS
    assert not last.result.agent_results[0].log_tail
    assert not last.result.agent_results[0].log
    assert call.result().agent_results[0].log == "mine"


def test_a_match_that_fails_ends_its_streams_with_an_error(client: Client, runner: FakeRunner) -> None:
    runner.answer = lambda spec: 1 / 0  # type: ignore[assignment,return-value]
    runner.hold()
    own = client.watch(pb.WatchRequest(match=two(match_id="m")))
    next(own)
    other = client.watch(pb.WatchRequest(match_id="m"))
    next(other)
    runner.release()
    assert [refusal(list, own)[0], refusal(list, other)[0]] == [Code.INTERNAL, Code.INTERNAL]
    assert client.health().active_matches == 0


def test_a_slow_watcher_loses_steps_and_is_told() -> None:
    watcher = Watcher()
    for number in range(BACKLOG + 10):
        watcher.put("step", 0, number)
    watcher.put("finished", 0, None)
    watcher.end()
    told = list(watcher)
    assert [entry.data for entry in told[:-1]] == list(range(BACKLOG))
    assert (told[-1].kind, told[-1].skipped) == ("finished", 10)


def test_watchers_above_the_limit_are_refused(runner: FakeRunner, tmp_path: Path) -> None:
    text = "executor: {port: 0, max_matches: 1, max_watchers: 1}"
    with serving(runner, tmp_path, text) as running, Client(running.port) as client:
        runner.hold()
        events = client.watch(pb.WatchRequest(match=two(match_id="m")))
        next(events)
        code, said = refusal(list, client.watch(pb.WatchRequest(match_id="m")))
        assert (code, "max_watchers" in said) == (Code.RESOURCE_EXHAUSTED, True)
        runner.release()
        assert types(events)[-1] == "result"


# ---- shutting down ----


def test_stopping_lets_matches_finish_and_refuses_new_ones(runner: FakeRunner, tmp_path: Path) -> None:
    runner.hold()
    running = serving(runner, tmp_path)
    with Client(running.port) as client:
        call = client.run_later(two())
        runner.started()
        stopping = threading.Thread(target=running.stop, args=(30,))
        stopping.start()
        assert until(lambda: not client.health().healthy)
        assert refusal(client.run, two())[0] is Code.UNAVAILABLE
        assert health_of(client) == health_pb2.HealthCheckResponse.NOT_SERVING
        runner.release()
        assert call.result().status == pb.STATUS_SUCCESS
        stopping.join(30)
        assert not stopping.is_alive()
        assert refusal(client.run, two())[0] is Code.UNAVAILABLE


def test_matches_that_outlive_the_grace_are_cancelled_and_answered(runner: FakeRunner, tmp_path: Path) -> None:
    runner.hold()
    running = serving(runner, tmp_path)
    with Client(running.port) as client:
        call = client.run_later(two())
        runner.started()
        running.stop(0.05)
        answer = call.result()
        assert answer.status == pb.STATUS_CANCELLED
        assert "shutting down" in answer.error_message
        running.stop(0)


# ---- health, reflection, token, addresses ----


def health_of(client: Client, service: str = "executor.Executor") -> int:
    check = client.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return check(health_pb2.HealthCheckRequest(service=service), timeout=30).status


def test_standard_health_and_reflection_are_on(client: Client) -> None:
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    assert health_of(client) == health_of(client, "") == health_pb2.HealthCheckResponse.SERVING
    found = ProtoReflectionDescriptorDatabase(client.channel)
    assert {"executor.Executor", "grpc.health.v1.Health"} <= set(found.get_services())
    assert "executor.proto" in found.FindFileContainingSymbol("executor.Executor").name
    assert (client.health().version, client.health().max_matches) == ("0.1.0", 2)


def test_a_token_is_asked_of_every_call_but_health(runner: FakeRunner, tmp_path: Path) -> None:
    text = "executor: {port: 0, auth_token: hush}"
    with serving(runner, tmp_path, text) as running:
        for metadata in ((), [("authorization", "Bearer wrong")], [("authorization", "hush")]):
            with Client(running.port, metadata=metadata) as client:
                assert refusal(client.run, two())[0] is Code.UNAUTHENTICATED
                assert refusal(list, client.watch(pb.WatchRequest(match=two())))[0] is Code.UNAUTHENTICATED
                assert refusal(client.health)[0] is Code.UNAUTHENTICATED
                assert health_of(client) == health_pb2.HealthCheckResponse.SERVING
        with Client(running.port, metadata=[("authorization", "Bearer hush")]) as client:
            assert client.run(two()).status == pb.STATUS_SUCCESS
    assert len(runner.submitted) == 1


@pytest.mark.parametrize(
    "text", ["host: 0.0.0.0", "host: example.org", 'host: "::"', "host: 0.0.0.0, tls: {cert: /c, key: /k}"]
)
def test_an_open_address_that_takes_anyone_is_refused_with_the_ways_out(text: str, runner: FakeRunner) -> None:
    with pytest.raises(config.ConfigError, match=r"auth_token.*client_ca.*--insecure"):
        server.start(config.parse(f"executor: {{{text}, port: 0}}"), runner=runner)


@pytest.mark.parametrize(
    "text", ["auth_token: hush", "insecure: true", "tls: {cert: /none, key: /none, client_ca: /none}"]
)
def test_an_open_address_with_a_door_gets_as_far_as_listening(text: str, runner: FakeRunner) -> None:
    # 192.0.2.1 is no address of ours: nothing is opened to the network here.
    with pytest.raises(config.ConfigError, match=r"cannot listen|cannot read /none"):
        server.start(config.parse(f"executor: {{host: 192.0.2.1, port: 0, {text}}}"), runner=runner)


class Names:
    """A door that takes any name."""

    def admit(self, method: str, metadata: dict[str, str]) -> str:
        if "x-name" not in metadata:
            raise CallRefused(Code.UNAUTHENTICATED, "who are you?")
        return metadata["x-name"]

    def charge(self, method: str, caller: str, peer: str) -> None:
        if caller == "greedy":
            raise CallRefused(Code.RESOURCE_EXHAUSTED, "not so fast")


def test_a_match_is_its_callers_and_nobody_elses(runner: FakeRunner, tmp_path: Path) -> None:
    with serving(runner, tmp_path, door=Names()) as running:
        runner.hold()
        with (
            Client(running.port, metadata=[("x-name", "ann")]) as ann,
            Client(running.port, metadata=[("x-name", "bob")]) as bob,
            Client(running.port, metadata=[("x-name", "greedy")]) as greedy,
        ):
            match = ann.run_later(two(match_id="same"))
            runner.started()
            assert not bob.cancel("same")
            assert refusal(list, bob.watch(pb.WatchRequest(match_id="same")))[0] is Code.NOT_FOUND
            assert refusal(greedy.run, two())[0] is Code.RESOURCE_EXHAUSTED
            assert ann.cancel("same")
            assert match.result().status == pb.STATUS_CANCELLED


def test_strangers_who_send_nothing_hold_no_thread(runner: FakeRunner, tmp_path: Path) -> None:
    """Each begins a call and leaves its message out; the calls outnumber the threads."""
    with serving(runner, tmp_path, door=Names()) as running, grpc.insecure_channel(f"127.0.0.1:{running.port}") as wire:
        begin = wire.stream_unary(f"/{service.NAME}/RunMatch")
        gate = threading.Event()

        def nothing() -> Iterator[bytes]:
            gate.wait(60)
            yield from ()

        calls = [begin.future(nothing()) for _ in range(120)]
        try:
            assert {call.exception(20).code() for call in calls} == {Code.UNAUTHENTICATED}
        finally:
            gate.set()


def test_the_oldest_replays_go_when_there_are_too_many(tmp_path: Path) -> None:
    for number in range(30):
        for end in ("json", "html"):
            file = tmp_path / f"{replays.file_name('m', number)}.{end}"
            file.write_bytes(b"x" * 1000)
            os.utime(file, (number, number))
    (tmp_path / "mine.txt").write_text("kept")
    replays.ReplayStore(config.ReplaySection(folder=tmp_path, max_files=20))._sweep()
    left = {int(file.name.split(".")[2]) for file in tmp_path.glob("m.*")}
    assert left == set(range(21, 30))
    assert (tmp_path / "mine.txt").exists()
    big = tmp_path / f"{replays.file_name('big', 0)}.json"
    big.write_bytes(b"x" * (2 << 20))
    os.utime(big, (1, 1))
    replays.ReplayStore(config.ReplaySection(folder=tmp_path, max_mb=1))._sweep()
    assert not big.exists()
    assert len(list(tmp_path.glob("m.*"))) == 18


def test_an_address_in_use_is_a_clear_error(runner: FakeRunner, tmp_path: Path) -> None:
    with (
        serving(runner, tmp_path) as running,
        pytest.raises(config.ConfigError, match=f"cannot listen on 127.0.0.1:{running.port}"),
    ):
        serving(runner, tmp_path, f"executor: {{port: {running.port}}}")


# ---- the folder of replays ----


def test_a_match_id_never_becomes_a_path() -> None:
    names = [replays.file_name(text, 0) for text in ("../../etc/passwd", "..", "/", "a/b", "a-b", "ä", "x" * 300)]
    assert all(replays.FILE_NAME.fullmatch(f"{name}.json") for name in names)
    assert len(set(names)) == len(names)
    assert not any(name.startswith(".") for name in names)


def test_old_replays_go_and_other_files_stay(tmp_path: Path) -> None:
    import os

    old = tmp_path / f"{replays.file_name('old', 0)}.json"
    young = tmp_path / f"{replays.file_name('young', 0)}.json"
    other = tmp_path / "notes.json"
    for path in (old, young, other):
        path.write_text("{}")
    for path in (old, other):
        os.utime(path, (1, 1))
    replays.ReplayStore(config.ReplaySection(folder=tmp_path, keep_days=1))._sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([young.name, other.name])
