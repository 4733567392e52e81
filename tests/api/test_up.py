"""`harena up` as its users start it: a process, ports, a folder, Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harena import cli
from harena.arena import demo
from harena.match.executor.pb import executor_pb2 as pb

SOON_S = 180.0  # beside other work
HARENA = [sys.executable, "-m", "harena.cli"]


class Up:
    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        ports = ["--port", "0", "--ui-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        self.process = subprocess.Popen(
            [*HARENA, "up", *ports, "--data", str(folder), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if "Ctrl-C" in line:
                break
        found = re.findall(r"(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)", self.said)
        self.port, self.ui_port, self.grpc_port, self.metrics_port = map(int, found)

    def get(self, path: str, port: int | None = None) -> object:
        with urllib.request.urlopen(f"http://127.0.0.1:{port or self.port}{path}", timeout=20) as answer:
            body = answer.read()
        return json.loads(body) if body.startswith((b"{", b"[")) else body

    def until(self, path: str, what) -> object:
        end = time.monotonic() + SOON_S
        while not what(found := self.get(path)):
            assert time.monotonic() < end, f"{path} stays {found!s:.500}"
            time.sleep(0.05)
        return found

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=40)
        return self.process.returncode


@pytest.fixture
def up(tmp_path):
    started: list[Up] = []

    def start(*options: str, folder: Path = tmp_path / "data") -> Up:
        started.append(Up(folder, *options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


@pytest.fixture
def refused(capfd):
    """Starts it in this process, which it must not come to serve in."""

    def run(*options: str) -> tuple[object, str]:
        try:
            code = cli.main(["up", *options])
        except SystemExit as error:
            code = error.code
        return code, capfd.readouterr().err

    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_thing_a_newcomer_sees_is_a_board_and_a_match_and_the_next_start_carries_on(up):
    first = up()
    assert {env["env_id"] for env in first.get("/v1/environments")["environments"]} == {
        one.env_id for one in demo.EXHIBITS
    }
    board = first.until("/v1/boards?env_id=CartPole-v1", lambda found: len(found["entries"]) == 4)
    assert board["entries"][0]["algorithm"] == "Balance"
    apart = first.until("/v1/boards?env_id=CartPole-v1&board=self-reported", lambda found: found["entries"])
    assert [entry["algorithm"] for entry in apart["entries"]] == ["Own word"]
    first.until("/v1/boards?env_id=pong-v1", lambda found: len(found["entries"]) == 4)
    match = first.until("/v1/matches?env_id=pong-v1&state=finished", lambda found: found["matches"])["matches"][0]
    assert b"<html" in first.get(f"/v1/matches/{match['id']}/replay?format=html")
    assert b"<html" in first.get("/", first.ui_port)
    with grpc.insecure_channel(f"127.0.0.1:{first.grpc_port}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    counters = first.get("/metrics", first.metrics_port)
    assert b'evaluation_completed_total{env_id="CartPole-v1"} 5.0' in counters
    assert b"evaluation_completed_total" in first.get("/metrics")
    assert stat.S_IMODE((first.folder / "host.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(first.folder.stat().st_mode) == 0o700
    assert first.stop() == 0

    second = up()
    assert "host's key" not in second.said
    assert second.get("/v1/boards?env_id=CartPole-v1")["entries"] == board["entries"]
    assert second.get(f"/v1/matches/{match['id']}")["number"] == match["number"]
    assert second.stop(signal.SIGTERM) == 0


def test_an_arena_without_the_demonstration_has_its_environments_and_its_host_has_a_key(up, refused):
    one = up("--no-demo")
    listed = one.get("/v1/environments")["environments"]
    assert {(env["env_id"], env["submissions"]) for env in listed} == {(e.env_id, 0) for e in demo.EXHIBITS}
    token = (one.folder / "host.key").read_text().strip()
    request = urllib.request.Request(f"http://127.0.0.1:{one.port}/v1/me", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        me = json.load(answer)
    assert (me["owner"], me["scopes"]) == ("host", ["admin"])
    code, said = refused(
        "--port", "0", "--ui-port", "off", "--grpc-port", "off", "--metrics-port", "off", "--data", str(one.folder)
    )
    assert code == 2
    assert str(one.process.pid) in said  # who has the folder
    assert one.stop() == 0


def test_a_port_that_is_taken_is_named_with_its_option(tmp_path, refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for option in ("--port", "--ui-port"):
            others = {"--port": "0", "--ui-port": "off"} | {option: port}
            words = [word for pair in others.items() for word in pair]
            code, said = refused(
                *words, "--grpc-port", "off", "--metrics-port", "off", "--data", str(tmp_path / "data")
            )
            assert code == 2
            assert port in said
            assert option in said
    assert not (tmp_path / "data" / "arena.db").exists()


def test_nobody_submits_without_a_key_over_the_network(up):
    one = up("--no-demo", "--no-anonymous-submit")
    assert "needs a key" in one.said
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.py"\r\n\r\npass\r\n--b--\r\n'
    request = urllib.request.Request(
        f"http://127.0.0.1:{one.port}/api/submit/", form, {"Content-Type": "multipart/form-data; boundary=b"}
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=20)
    with error.value:
        assert error.value.code == 401
    assert one.get("/v1")["anonymous_submit"] is False


def test_a_variable_can_ask_for_a_key_on_loopback_and_opens_no_other_address(up, refused, monkeypatch):
    monkeypatch.setenv("HARENA_ANONYMOUS_SUBMIT", "no")
    monkeypatch.setenv("EXECUTOR_HOST", "0.0.0.0")
    one = up("--no-demo")
    assert "needs a key" in one.said
    assert one.get("/v1")["anonymous_submit"] is False
    assert one.stop() == 0
    monkeypatch.setenv("HARENA_ANONYMOUS_SUBMIT", "yes")
    code, said = refused("--host", "0.0.0.0", "--port", "0")
    assert code == 2
    assert "HARENA_ANONYMOUS_SUBMIT" in said


def test_the_executor_can_listen_elsewhere_and_then_needs_a_key(up, monkeypatch):
    monkeypatch.setenv("EXECUTOR_HOST", "0.0.0.0")
    one = up("--no-demo")
    assert re.search(r"gRPC executor  0\.0\.0\.0:\d+ .*needs a key", one.said)
    assert re.search(r"page and API   http://127\.0\.0\.1:", one.said)
    with grpc.insecure_channel(f"127.0.0.1:{one.grpc_port}") as channel:
        method = channel.unary_unary("/executor.Executor/RunMatch")
        with pytest.raises(grpc.RpcError) as error:
            method(b"", timeout=60)
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_every_door_of_an_open_address_needs_a_key(up, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HARENA_METRICS_TOKEN", "scrape me")
    one = up("--no-demo", "--host", "0.0.0.0")
    assert re.search(r"gRPC executor  0\.0\.0\.0:\d+ .*needs a key", one.said)
    assert re.search(r"metrics        http://127\.0\.0\.1:\d+ .*this machine only", one.said)
    token = (one.folder / "host.key").read_text().strip()

    code = b"def act(observation):\n    return list(observation).index(0)\n"
    agents = [pb.AgentData(agent_id=name, code_zip=code) for name in "ab"]
    match = pb.MatchRequest(environment="tictactoe", agents=agents, record_replay=True)
    with grpc.insecure_channel(f"127.0.0.1:{one.grpc_port}") as channel:

        def call(name, request, answer, *metadata):
            path = f"/executor.Executor/{name}"
            method = channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
            return method(request, timeout=60, metadata=metadata)

        for metadata in [(), (("authorization", "Bearer hrn_no_key"),), (("x-api-key", "hrn_no_key"),)]:
            for name, request in (
                ("RunMatch", match),
                ("ValidateAgent", pb.ValidationRequest(environment="tictactoe", code_zip=code)),
                ("CancelMatch", pb.CancelRequest(match_id="m")),
            ):
                with pytest.raises(grpc.RpcError) as error:
                    call(name, request, pb.MatchResponse, *metadata)
                assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        assert call("ListEnvironments", pb.ListEnvironmentsRequest(), pb.ListEnvironmentsResponse).environments
        played = call("RunMatch", match, pb.MatchResponse, ("authorization", f"Bearer {token}"))
        assert played.status == pb.STATUS_SUCCESS
        assert len(list((one.folder / "replays").glob("*.json"))) == 1
        assert not (tmp_path / "state").exists()

    def counters(**headers):
        request = urllib.request.Request(f"http://127.0.0.1:{one.port}/metrics", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    elsewhere = {"X-Forwarded-For": "192.0.2.7"}
    assert counters() == 200
    assert counters(**elsewhere) == 401
    assert counters(**elsewhere, Authorization="Bearer wrong") == 401
    assert counters(**elsewhere, Authorization=f"Bearer {token}") == 200
    assert counters(**elsewhere, Authorization="Bearer scrape me") == 200
    assert b"evaluation_started_total" in one.get("/metrics", one.metrics_port)
    with socket.socket() as same:  # 9100 is bound to 127.0.0.1 alone: another address of ours still has it free
        same.bind(("127.0.0.2", one.metrics_port))
    assert one.stop() == 0


def test_bad_options_are_refused_in_words(tmp_path, refused, monkeypatch):
    for words in (["--port", "70000"], ["--port", "http"], ["--ui-port", "no"]):
        code, said = refused(*words, "--data", str(tmp_path / "data"))
        assert code == 2
        assert "is no port" in said
    monkeypatch.setenv("LOG_LEVEL", "LOUD")
    code, said = refused("--data", str(tmp_path / "data"), "--port", "0")
    assert (code, "LOG_LEVEL" in said) == (2, True)
    assert not (tmp_path / "data").exists()


def test_json_logs_have_the_ids_of_requests_and_jobs(tmp_path):
    process = subprocess.Popen(
        [
            *HARENA,
            "up",
            "--port",
            "0",
            "--ui-port",
            "off",
            "--grpc-port",
            "off",
            "--metrics-port",
            "off",
            "--json-logs",
            "--no-demo",
            "--data",
            str(tmp_path / "data"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = next(re.search(r"127\.0\.0\.1:(\d+)", line)[1] for line in process.stdout if "127.0.0.1:" in line)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/health", headers={"X-Request-Id": "my-request-1"})
        urllib.request.urlopen(request, timeout=20).close()
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=40)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["logger"] == "harena.api.access"]
    assert (line["request_id"], line["path"], line["status"]) == ("my-request-1", "/health", 200)


def test_a_host_may_let_anybody_submit_over_a_network(up):
    one = up("--no-demo", "--host", "0.0.0.0", "--anonymous-submit")
    assert "anybody who can reach it may submit without a key" in one.said
    assert re.search(r"gRPC executor  0\.0\.0\.0:\d+ .*needs a key", one.said)
    assert one.get("/v1")["anonymous_submit"] is True
