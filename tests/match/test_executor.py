"""The executor as its users meet it: real matches in real boxes, old clients, TLS, the process and its signals."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from harena.match.executor import config, server
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.replay import replay
from support.executor_client import FIRST_FREE, SLOW, Client, FakeRunner, request, until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("executor")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[server.RunningServer]:
    (folder / "agents").mkdir()
    (folder / "agents" / "agent.py").write_bytes(FIRST_FREE)
    text = f"""
        executor: {{port: 0, max_matches: 1}}
        fetch: {{file_folder: {folder / "agents"}}}
        replay: {{folder: {folder / "replays"}}}
        validation: {{forbidden_imports: [random]}}
    """
    with server.start(config.parse(text)) as made:
        yield made


@pytest.fixture
def client(running: server.RunningServer) -> Iterator[Client]:
    with Client(running.port) as made:
        yield made


def boxes_of(pids: set[int]) -> list[str]:
    found: list[str] = []
    for path in importlib.import_module("harena.backends.local.launch.registry").folder().iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):  # another test's box has just ended
            found += [path.name] * (int(path.read_text().split()[0]) in pids)
    return found


# ---- a client that knows contracts.md and nothing else ----

STRING, BYTES, BOOL, U32, U64, DOUBLE, MESSAGE, ENUM = 9, 12, 8, 13, 4, 1, 11, 14
CONTRACT: dict[str, dict[str, tuple[int, int] | tuple[int, int, str]]] = {
    "MatchRequest": {
        "match_id": (1, STRING),
        "environment": (2, STRING),
        "agents": (3, MESSAGE, "AgentData"),
        "timeout_sec": (4, U32),
        "record_replay": (5, BOOL),
        "seed": (16, U64),
        "games": (17, U32),
        "include_replay": (18, BOOL),
    },
    "AgentData": {
        "agent_id": (1, STRING),
        "code_url": (2, STRING),
        "version": (3, STRING),
        "metadata": (4, MESSAGE, "AgentData.MetadataEntry"),
        "docker_image": (5, STRING),
        "code_zip": (16, BYTES),
    },
    "MatchResponse": {
        "match_id": (1, STRING),
        "status": (2, ENUM, "MatchStatus"),
        "winner_agent_id": (3, STRING),
        "agent_results": (4, MESSAGE, "AgentResult"),
        "replay_url": (5, STRING),
        "error_message": (6, STRING),
        "total_steps": (7, U32),
        "execution_time_sec": (8, DOUBLE),
        "replay_html_url": (9, STRING),
        "seed": (16, U64),
        "replay": (17, BYTES),
    },
    "AgentResult": {
        "agent_id": (1, STRING),
        "score": (2, DOUBLE),
        "errors": (3, U32),
        "error_message": (4, STRING),
        "status": (16, STRING),
        "cpu_sec": (17, DOUBLE),
        "log_tail": (18, STRING),
    },
    "ValidationRequest": {"agent_id": (1, STRING), "code_zip": (2, BYTES), "environment": (3, STRING)},
    "ValidationResponse": {"valid": (1, BOOL), "errors": (2, STRING), "warnings": (3, STRING)},
    "HealthCheckRequest": {},
    "HealthCheckResponse": {"healthy": (1, BOOL), "version": (2, STRING), "active_matches": (3, U32)},
}
REPEATED = {"agents", "metadata", "agent_results", "errors", "warnings"}
STATUSES = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_TIMEOUT", "STATUS_ERROR", "STATUS_CANCELLED"]


@pytest.fixture(scope="module")
def messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="contract.proto", package="executor", syntax="proto3")
    status = file.enum_type.add(name="MatchStatus")
    for number, name in enumerate(STATUSES):
        status.value.add(name=name, number=number)
    for name, fields in CONTRACT.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, *of) in fields.items():
            repeated = field in REPEATED and (name, field) != ("AgentResult", "errors")
            made = message.field.add(name=field, number=number, type=kind, label=3 if repeated else 1)
            if of:
                made.type_name = f".executor.{of[0]}"
        if name == "AgentData":
            entry = message.nested_type.add(name="MetadataEntry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=STRING, label=1)
            entry.field.add(name="value", number=2, type=STRING, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"executor.{name}")) for name in CONTRACT}


def test_the_proto_holds_the_contract(messages: dict[str, Any]) -> None:
    for name, old in messages.items():
        new = pb.DESCRIPTOR.message_types_by_name[name]
        for field in old.DESCRIPTOR.fields:
            same = new.fields_by_number[field.number]
            assert (same.name, same.type, same.is_repeated) == (field.name, field.type, field.is_repeated)
        added = [field.number for field in new.fields if field.name not in CONTRACT[name]]
        assert all(number >= 16 for number in added)
    assert pb.MatchStatus.keys() == STATUSES


def test_a_client_written_from_the_contract_works(client: Client, messages: dict[str, Any], folder: Path) -> None:
    def call(name: str, answer: str, order: Any) -> Any:
        method = client.channel.unary_unary(
            f"/executor.Executor/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages[answer].FromString,
        )
        return method(order, timeout=60)

    order = messages["MatchRequest"](
        match_id="match-1", environment="tictactoe", timeout_sec=60, record_replay=True, seed=7, include_replay=True
    )
    order.agents.add(
        agent_id="file", code_url=(folder / "agents" / "agent.py").as_uri(), version="1", metadata={"a": "b"}
    )
    order.agents.add(agent_id="bytes", code_zip=FIRST_FREE)
    answer = call("RunMatch", "MatchResponse", order)
    assert (answer.match_id, answer.status, answer.error_message) == ("match-1", 1, "")
    assert (answer.winner_agent_id, answer.total_steps, answer.seed) == ("file", 7, 7)
    assert 0 < answer.execution_time_sec < 60
    winner, loser = answer.agent_results
    assert (winner.agent_id, winner.errors, winner.status, winner.log_tail) == ("file", 0, "ok", "loaded\n")
    assert winner.score > loser.score
    assert winner.cpu_sec > 0
    written = Path(unquote(urlsplit(answer.replay_url).path))
    assert written.parent == folder / "replays"
    assert written.read_bytes() == answer.replay
    metadata = json.loads(answer.replay)["metadata"]
    assert (metadata["match_id"], metadata["winner"], metadata["total_steps"]) == ("match-1", "file", 7)
    assert replay.Replay.load(answer.replay).verify().ok
    assert "<html" in Path(unquote(urlsplit(answer.replay_html_url).path)).read_text()

    found = call(
        "ValidateAgent",
        "ValidationResponse",
        messages["ValidationRequest"](agent_id="a", code_zip=b"import random\n" + FIRST_FREE, environment="tictactoe"),
    )
    assert (found.valid, list(found.errors)) == (False, ["agent.py line 1: uses random, which is not allowed here"])
    health = call("HealthCheck", "HealthCheckResponse", messages["HealthCheckRequest"]())
    assert (health.healthy, health.version != "", health.active_matches) == (True, True, 0)


# ---- real matches ----


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        (b"def act(observation):\n    return 1 / 0\n", "crash", "division"),
        (b"def act(observation):\n    return 99\n", "illegal", "99"),
        (b"def act(observation)\n", "load", "expected ':'"),
        (b"import time\ndef act(observation):\n    while True: pass\n", "timeout", ""),
        (b"import os\ndef act(observation):\n    os._exit(0)\n", "crash", ""),
    ],
)
def test_who_misbehaves_loses_with_a_reason(client: Client, code: bytes, status: str, says: str) -> None:
    answer = client.run(request(code, FIRST_FREE, clock=pb.Clock(move_sec=0.3)))
    assert (answer.status, answer.winner_agent_id) == (pb.STATUS_SUCCESS, "agent-1")
    loser = answer.agent_results[0]
    assert (loser.status, loser.errors) == (status, 1)
    assert loser.error_message
    assert says in loser.error_message


def test_who_stalls_past_the_matchs_time_loses(client: Client) -> None:
    answer = client.run(request(SLOW, FIRST_FREE, timeout_sec=1, clock=pb.Clock(move_sec=30)))
    assert (answer.status, answer.winner_agent_id) == (pb.STATUS_SUCCESS, "agent-1")
    assert "waiting for it" in answer.agent_results[0].error_message


def test_games_that_repeat_are_counted(client: Client) -> None:
    answer = client.run(request(FIRST_FREE, FIRST_FREE, games=4))
    assert (len(answer.games), answer.distinct_games) == (4, 2)


def test_a_zip_with_modules_and_a_series_with_replays(client: Client) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("agent/main.py", "from helper import act\n")
        archive.writestr("agent/helper.py", FIRST_FREE)
    order = request(stream.getvalue(), FIRST_FREE, games=2, seed=3, record_replay=True, match_id="../series")
    answer = client.run(order)
    assert answer.status == pb.STATUS_SUCCESS
    assert answer.winner_agent_id == ""  # the first seat won both games
    assert len({game.replay_url for game in answer.games}) == 2
    assert answer.replay_url == answer.games[0].replay_url


def test_a_game_is_watched_live(client: Client) -> None:
    events = list(client.watch(pb.WatchRequest(match=request(FIRST_FREE, FIRST_FREE))))
    assert [event.type for event in events] == ["started", *["step"] * 8, "finished", "result"]
    assert [event.step for event in events[1:-2]] == list(range(8))
    assert all(json.loads(event.view) and event.text for event in events[1:-2])
    assert events[2].actions[0] == "0"


def test_hidden_information_is_not_shown_live(client: Client) -> None:
    first_legal = b"def act(observation):\n    return 1\n"
    order = request(first_legal, first_legal, environment="leduc")
    for event in client.watch(pb.WatchRequest(match=order)):
        assert not event.view
        assert not event.text
        assert not event.actions


def test_a_cancelled_call_frees_the_only_place_at_once(client: Client) -> None:
    order = request(SLOW, FIRST_FREE, match_id="slow", clock=pb.Clock(move_sec=60))
    call = client.run_later(order)
    assert until(lambda: client.health().active_matches == 1)
    call.cancel()
    assert until(lambda: client.health().active_matches == 0)
    assert client.run(request(FIRST_FREE, FIRST_FREE)).status == pb.STATUS_SUCCESS


def test_environments_are_listed_with_their_spaces(client: Client) -> None:
    found = client.environments()
    pong = found["pong-v1"]
    assert (pong.seats, pong.simultaneous, pong.hidden) == (2, True, False)
    assert json.loads(pong.observation)["shape"] == [8]
    assert json.loads(pong.action)["n"] == 3
    assert found["leduc-v1"].hidden


def test_an_agent_that_fails_is_not_valid(client: Client) -> None:
    found = client.validate(agent_id="a", code_zip=b"def act(observation):\n    return 'x'\n", environment="pong")
    assert not found.valid
    assert found.errors
    assert not client.validate(code_zip=b"PK\x03\x04", environment="pong").valid


GAME = """
from harena.match.games.tictactoe import TicTacToe
class Mine(TicTacToe):
    id = "mine-v1"
"""


def test_a_game_of_the_operator_is_played_and_nobody_else_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("operators_game", "strangers_game"):
        (tmp_path / f"{name}.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("HARENA_GAMES", "")
    settings = config.parse('executor: {port: 0, max_matches: 1, environments: ["operators_game:Mine"]}')
    with server.start(settings) as made, Client(made.port) as client:
        assert "operators_game:Mine" in client.environments()
        order = request(FIRST_FREE, FIRST_FREE, environment="operators_game:Mine")
        assert client.run(order).status == pb.STATUS_SUCCESS
        order.environment = "strangers_game:Mine"
        with pytest.raises(grpc.RpcError) as caught:
            client.run(order)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "strangers_game" not in sys.modules


# ---- TLS ----


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("host: no openssl command to make certificates with")
    made = tmp_path_factory.mktemp("tls")
    for name in ("server", "client"):
        subprocess.run(
            [
                openssl,
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
                "-subj",
                f"/CN={name}",
                "-addext",
                "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-keyout",
                made / f"{name}.key",
                "-out",
                made / f"{name}.pem",
            ],
            check=True,
            capture_output=True,
        )
    return made


def test_tls_with_client_certificates(certificates: Path) -> None:
    tls = f"{{cert: {certificates}/server.pem, key: {certificates}/server.key, client_ca: {certificates}/client.pem}}"
    settings = config.parse(f"executor: {{port: 0, tls: {tls}}}")
    root = (certificates / "server.pem").read_bytes()
    key, chain = ((certificates / name).read_bytes() for name in ("client.key", "client.pem"))
    with server.start(settings, runner=FakeRunner()) as made:
        address = f"localhost:{made.port}"
        known = grpc.ssl_channel_credentials(root, key, chain)
        with Client(0, grpc.secure_channel(address, known)) as client:
            assert client.health().healthy
        strangers = [
            grpc.secure_channel(address, grpc.ssl_channel_credentials(root)),
            grpc.insecure_channel(address),
        ]
        for channel in strangers:
            with Client(0, channel) as client, pytest.raises(grpc.RpcError) as caught:
                client.health()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    settings = config.parse(f"executor: {{port: 0, tls: {{cert: {tmp_path}/none.pem, key: {tmp_path}/none.key}}}}")
    with pytest.raises(config.ConfigError, match=r"none\.key"):
        server.start(settings, runner=FakeRunner())


def test_ten_matches_are_accepted_at_once_and_those_beyond_the_cores_wait(tmp_path: Path) -> None:
    settings = config.parse(f"{{executor: {{port: 0}}, replay: {{folder: {tmp_path}}}}}")
    slow = b"import time\ndef act(observation):\n    time.sleep(0.1)\n    return list(observation).index(0)\n"
    with server.start(settings) as made, Client(made.port) as client:
        calls = [client.run_later(request(slow, FIRST_FREE, match_id=str(at)), timeout=120) for at in range(10)]
        assert until(lambda: client.health().active_matches == 10)
        assert client.health().waiting_matches > 0 or len(os.sched_getaffinity(0)) >= 10
        assert [call.result().status for call in calls] == [pb.STATUS_SUCCESS] * 10


# ---- the process ----


def children(pid: int) -> set[int]:
    found = {int(name) for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return found.union(*(children(child) for child in found)) if found else found


def test_sigterm_answers_running_matches_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"executor: {{max_matches: 1, grace_sec: 0.2}}\nreplay: {{folder: {tmp_path}}}")
    environ = {**os.environ, "EXECUTOR_PORT": "0", "CONFIG_PATH": str(path), "LOG_LEVEL": "INFO"}
    program = "from harena.match.executor.server import serve_from; serve_from()"
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        listening = next(line for line in process.stderr if "listening on" in line)
        port = int(re.findall(r"port (\d+)", listening)[0])
        with Client(port) as client:
            assert client.run(request(FIRST_FREE, FIRST_FREE)).status == pb.STATUS_SUCCESS
            workers = children(process.pid)
            assert boxes_of(workers)
            call = client.run_later(request(SLOW, FIRST_FREE, clock=pb.Clock(move_sec=60)))
            assert until(lambda: client.health().active_matches == 1)
            process.send_signal(signal.SIGTERM)
            answer = call.result()
            assert answer.status == pb.STATUS_CANCELLED
            assert "shutting down" in answer.error_message
        rest = process.stderr.read()
        assert process.wait(30) == 0
    assert "Traceback" not in rest
    assert not boxes_of(workers)
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


@pytest.mark.serial  # counts the boxes of this process
def test_a_storm_of_cancelled_calls_leaves_the_place_free(client: Client, running: server.RunningServer) -> None:
    before = len(boxes_of(children(os.getpid())))  # of other tests' servers, too
    for turn in range(24):
        call = client.run_later(request(FIRST_FREE, SLOW, games=3, clock=pb.Clock(move_sec=60)))
        until(lambda: client.health().active_matches == 1, within_s=1)
        threading.Event().wait(turn * 0.002)  # in the middle of fetching, starting, the first move
        call.cancel()
        assert until(lambda: client.health().active_matches == 0)
    assert client.run(request(FIRST_FREE, FIRST_FREE)).status == pb.STATUS_SUCCESS
    assert until(lambda: len(boxes_of(children(os.getpid()))) <= before + 2)  # kept for the next match of this worker
