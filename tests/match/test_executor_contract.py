"""A client that has nothing but the published contract: its own .proto, compiled here, and the settings that its users
have. What it meets is a real executor with real boxes.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import grpc
import pytest

from harena.match.executor import config, server

PROTO = """
syntax = "proto3";
package executor;
service Executor {
  rpc RunMatch(MatchRequest) returns (MatchResponse);
  rpc ValidateAgent(ValidationRequest) returns (ValidationResponse);
  rpc HealthCheck(HealthCheckRequest) returns (HealthCheckResponse);
}
message AgentData {
  string agent_id = 1; string code_url = 2; string version = 3;
  map<string, string> metadata = 4; string docker_image = 5;
}
message MatchRequest {
  string match_id = 1; string environment = 2; repeated AgentData agents = 3;
  uint32 timeout_sec = 4; bool record_replay = 5;
}
enum MatchStatus { STATUS_UNKNOWN = 0; STATUS_SUCCESS = 1; STATUS_TIMEOUT = 2; STATUS_ERROR = 3; STATUS_CANCELLED = 4; }
message AgentResult { string agent_id = 1; double score = 2; uint32 errors = 3; string error_message = 4; }
message MatchResponse {
  string match_id = 1; MatchStatus status = 2; string winner_agent_id = 3; repeated AgentResult agent_results = 4;
  string replay_url = 5; string error_message = 6; uint32 total_steps = 7; double execution_time_sec = 8;
  string replay_html_url = 9;
}
message ValidationRequest { string agent_id = 1; bytes code_zip = 2; string environment = 3; }
message ValidationResponse { bool valid = 1; repeated string errors = 2; repeated string warnings = 3; }
message HealthCheckRequest {}
message HealthCheckResponse { bool healthy = 1; string version = 2; uint32 active_matches = 3; }
"""
AGENT = """
class Agent:
    def __init__(self, player_id):
        self.player_id = player_id
    def act(self, observation):
        paddle = observation[4 + self.player_id]
        return 1 if abs(observation[1] - paddle) < 0.02 else 0 if observation[1] < paddle else 2
"""


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The generated messages. In a process of its own: a pool holds one file of a name, and ours has these names too."""
    folder = tmp_path_factory.mktemp("contract")
    (folder / "contract.proto").write_text(PROTO)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--python_out={folder}", "contract.proto"]
    subprocess.run(command, check=True, timeout=60)
    text = (folder / "contract_pb2.py").read_text()
    own_pool = text.replace("_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()")
    assert own_pool != text
    (folder / "contract_pb2.py").write_text(own_pool)
    spec = importlib.util.spec_from_file_location("contract_pb2", folder / "contract_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("agents")
    (made / "chaser.py").write_text(AGENT)
    (made / "stays.py").write_text("def act(observation):\n    return 1\n")
    return made


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[server.RunningServer]:
    text = f"""
        executor: {{port: 0, metrics_port: 0}}
        resource_limits: {{cpu_count: 2, memory_limit: "512m", step_timeout_sec: 5, match_timeout_sec: 300}}
        sandbox: {{tmp_dir: {folder}, replay_dir: {folder / "replays"}, max_code_size_mb: 50}}
        validation: {{max_file_size_mb: 10, max_lines: 20, allowed_extensions: [.py, .txt, .json],
          forbidden_imports: [os.system, subprocess, eval, exec, __import__]}}
        replay: {{format: json, compress: true, max_frames: 100000, include_observations: false}}
        fetch: {{file_folder: {folder}}}
    """
    with server.start(config.parse(text)) as made:
        yield made


@pytest.fixture
def call(running: server.RunningServer, contract: ModuleType) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:

        def make(name: str, request: Any, answer: str) -> Any:
            method = channel.unary_unary(
                f"/executor.Executor/{name}",
                request_serializer=lambda message: (
                    message if isinstance(message, bytes) else message.SerializeToString()
                ),
                response_deserializer=getattr(contract, answer).FromString,
            )
            return method(request, timeout=120)

        yield make


def test_pong_is_played_from_plain_paths_and_recorded(call: Any, contract: ModuleType, folder: Path) -> None:
    order = contract.MatchRequest(match_id="m-1", environment="pong", timeout_sec=120, record_replay=True)
    order.agents.add(agent_id="chaser", code_url=str(folder / "chaser.py"), version="2.1", metadata={"team": "blue"})
    order.agents.add(agent_id="stays", code_url=(folder / "stays.py").as_uri())
    answer = call("RunMatch", order, "MatchResponse")
    assert (answer.match_id, answer.status, answer.winner_agent_id) == ("m-1", contract.STATUS_SUCCESS, "chaser")
    assert [result.agent_id for result in answer.agent_results] == ["chaser", "stays"]
    assert answer.agent_results[0].score > answer.agent_results[1].score
    assert answer.total_steps > 0
    path = Path(unquote(urlsplit(answer.replay_url).path))
    assert path.parent == folder / "replays"
    replay = json.loads(gzip.decompress(path.read_bytes()))
    assert {"match_id", "environment", "agents", "start_time", "end_time", "total_steps", "winner", "status"} <= set(
        replay["metadata"]
    )
    first = replay["metadata"]["agents"][0]
    assert (first["agent_id"], first["version"], first["metadata"]) == ("chaser", "2.1", {"team": "blue"})
    frame = replay["frames"][-1]
    assert {"frame_number", "timestamp", "observations", "actions", "rewards", "done", "info"} <= set(frame)
    assert (frame["done"], frame["observations"]) == (True, {})
    summary = replay["statistics"]
    assert summary["total_steps"] == answer.total_steps == len(replay["frames"])
    rewards = [frame["rewards"]["chaser"] for frame in replay["frames"]]
    assert summary["agents"]["chaser"]["total_reward"] == sum(rewards)
    assert summary["agents"]["chaser"]["score"] == answer.agent_results[0].score
    assert summary["agents"]["chaser"]["moves"] == answer.total_steps


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import subprocess\n", "agent.py line 1: uses subprocess, which is not allowed here"),
        ("from subprocess import run\n", "uses subprocess"),
        ("import os\nos.system('true')\n", "agent.py line 2: uses os.system"),
        ("from os import system\n", "uses os.system"),
        ("eval('1')\n", "uses eval"),
        ("exec('1')\n", "uses exec"),
        ("run = exec\n", "uses exec"),
        ("import builtins\nbuiltins.eval('1')\n", "uses eval"),
        ("__import__('os')\n", "uses __import__"),
        ("\n" * 30, "lines; at most 20 are allowed here"),
    ],
)
def test_what_the_settings_forbid_is_an_error(call: Any, contract: ModuleType, code: str, says: str) -> None:
    order = contract.ValidationRequest(agent_id="a", code_zip=(code + AGENT).encode(), environment="pong")
    answer = call("ValidateAgent", order, "ValidationResponse")
    assert not answer.valid
    assert any(says in line for line in answer.errors), answer.errors


def test_what_only_looks_forbidden_is_valid(call: Any, contract: ModuleType) -> None:
    harmless = "class Net:\n    def eval(self): return self\nnet = Net().eval()\nimport os\nos.getpid()\n"
    order = contract.ValidationRequest(agent_id="a", code_zip=(harmless + AGENT).encode(), environment="pong")
    answer = call("ValidateAgent", order, "ValidationResponse")
    assert (answer.valid, list(answer.errors)) == (True, [])


def test_bytes_that_are_no_message_are_the_callers_mistake(call: Any) -> None:
    for name, answer in {"RunMatch": "MatchResponse", "HealthCheck": "HealthCheckResponse"}.items():
        with pytest.raises(grpc.RpcError) as caught:
            call(name, b"\xff\xff\xff\xff", answer)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "proto/executor.proto" in error.details()
    assert call("HealthCheck", b"", "HealthCheckResponse").healthy


def test_metrics_count_matches_and_nothing_that_a_client_named(
    call: Any, contract: ModuleType, running: server.RunningServer
) -> None:
    order = contract.MatchRequest(match_id="secret-name", environment="tictactoe")
    order.agents.add(agent_id="a", code_url="stays.py")
    order.agents.add(agent_id="b", code_url="stays.py")
    assert call("RunMatch", order, "MatchResponse").status == contract.STATUS_SUCCESS
    with urllib.request.urlopen(f"http://127.0.0.1:{running.metrics_port}/metrics", timeout=60) as page:
        text = page.read().decode()
    assert 'executor_matches_total{environment="tictactoe-v1",status="finished"}' in text
    assert 'executor_forfeits_total{status="illegal"}' in text
    assert "executor_matches_active 0.0" in text
    assert "secret-name" not in text


def test_metadata_has_limits(call: Any, contract: ModuleType) -> None:
    for fields, says in (
        ({"metadata": {str(at): "" for at in range(65)}}, "metadata: 65 entries"),
        ({"metadata": {"a": "x" * 5000}}, "at most 4096"),
        ({"version": "x" * 300}, "version"),
    ):
        order = contract.MatchRequest(environment="tictactoe")
        order.agents.add(agent_id="a", code_url="stays.py", **fields)
        order.agents.add(agent_id="b", code_url="stays.py")
        with pytest.raises(grpc.RpcError) as caught:
            call("RunMatch", order, "MatchResponse")
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert says in error.details()


def test_the_stubs_are_importable_from_the_package(running: server.RunningServer) -> None:
    from harena.match.executor.pb import executor_pb2, executor_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        stub = executor_pb2_grpc.ExecutorStub(channel)
        assert stub.HealthCheck(executor_pb2.HealthCheckRequest(), timeout=60).healthy
