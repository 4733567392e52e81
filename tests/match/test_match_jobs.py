"""Matches as Jobs on a real cluster, with agents that attack, images that are missing, pods that are evicted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from harena.images import ImageStore
from harena.kube import config as kube_config
from harena.kube.api import path
from harena.match.executor import config, server
from harena.match.executor.jobs.cluster import JOBS, ClosingApi
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.replay import replay
from support import match_images
from support.executor_client import FIRST_FREE, Client, request, until
from support.match_images import orchestrator_image

pytestmark = [pytest.mark.services, pytest.mark.kubernetes, pytest.mark.timeout(300)]

assert orchestrator_image
WAIT_S = 120
SLOW = b"import time\ndef act(observation):\n    time.sleep(2)\n    return list(observation).index(0)\n"


class World:
    """A namespace of its own, and an executor that plays in it."""

    def __init__(self, image: str, folder: Path) -> None:
        self.api = ClosingApi(kube_config.load())
        self.namespace = f"rl-arena-{uuid.uuid4().hex[:8]}"
        self.image, self.folder = image, folder
        self.api.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})

    def text(self, more: str = "") -> str:
        return f"""
            executor: {{port: 0, use_k8s: true}}
            k8s: {{namespace: {self.namespace}, orchestrator_image: "{self.image}", start_timeout_sec: 100{more}}}
            resource_limits: {{memory_limit: 128m}}
            replay: {{folder: {self.folder / "replays"}}}
        """

    @contextlib.contextmanager
    def executor(self, more: str = "") -> Iterator[Client]:
        with server.start(config.parse(self.text(more))) as made, Client(made.port) as client:
            yield client

    def names(self, kind: str) -> list[str]:
        return [one["metadata"]["name"] for one in self.api.list(path(self.namespace, kind))["items"]]

    def pods(self) -> list[dict[str, Any]]:
        items = self.api.list(path(self.namespace, "pods"))["items"]
        return [one for one in items if "deletionTimestamp" not in one["metadata"]]

    def running(self) -> bool:
        return any(
            "running" in one["state"] and one["name"] == "agent-0"
            for pod in self.pods()
            for one in pod["status"].get("containerStatuses", ())
        )


@pytest.fixture(scope="module")
def world(orchestrator_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(orchestrator_image, tmp_path_factory.mktemp("jobs"))
    yield made
    made.api.delete(f"/api/v1/namespaces/{made.namespace}")
    made.api.close()


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[Client]:
    with world.executor() as made:
        yield made


def test_a_match_is_a_job_with_its_result_logs_and_replay(world: World, client: Client) -> None:
    order = request(FIRST_FREE, FIRST_FREE, match_id="m-1", games=2, seed=3, record_replay=True, include_replay=True)
    events = client.watch(pb.WatchRequest(match=order), timeout=WAIT_S)
    seen = []
    for event in events:
        seen.append(event.type)
        if event.type == "step" and "match-m-1" not in seen:
            seen += world.names(JOBS)
    answer = event.result
    assert "match-m-1" in seen
    assert [kind for kind in seen if kind != "match-m-1"].count("step") == 16
    assert (answer.status, answer.error_message) == (pb.STATUS_SUCCESS, "")
    assert len(answer.games) == 2
    assert [agent.log_tail for agent in answer.agent_results] == ["loaded\n" * 2] * 2
    assert replay.Replay.load(answer.replay).verify().ok
    written = Path(unquote(urlsplit(answer.replay_url).path))
    assert json.loads(written.read_bytes())["metadata"]["match_id"] == "m-1"
    assert until(lambda: not world.names(JOBS) and not world.pods(), within_s=WAIT_S)
    assert until(lambda: not [name for name in world.names("secrets") if "match" in name], within_s=WAIT_S)


SPY = b"""
import glob, os, socket, sys
found = []
def look(name, action):
    try:
        found.append(f"{name}: {action()}")
    except OSError:
        pass
look("order", lambda: open("/harena/order/order", "rb").read()[:20])
look("seats", lambda: os.listdir("/harena/seats"))
look("token", lambda: os.listdir("/var/run/secrets/kubernetes.io"))
look("root", lambda: open("/written", "w"))
look("etc", lambda: open("/etc/written", "w"))
look("tools", lambda: open("/harena/tools/x", "w"))
look("seat", lambda: open("/harena/seat/x", "w"))
look("unlink", lambda: os.unlink("/harena/seat/socket"))
look("code", lambda: open("/harena/agent/x", "w"))
look("setuid", lambda: os.setuid(0))
look("again", lambda: (s := socket.socket(socket.AF_UNIX)).connect("/harena/seat/socket") or s.settimeout(1) or s.recv(1))
look("raw", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
strangers = [path for path in glob.glob("/proc/[0-9]*/cmdline") if b"orchestrator" in open(path, "rb").read()]
if strangers: found.append(f"processes: {strangers}")
if os.getuid() < 1000: found.append(f"user {os.getuid()}")
print("FOUND", found, "END")
print("n" * 32, 0, ".", "gqR0eXBl")
def act(observation):
    return list(observation).index(0)
"""


def test_an_agent_reaches_neither_the_order_nor_others_nor_the_result(world: World, client: Client) -> None:
    answer = client.run(request(SPY, FIRST_FREE, include_logs=True), timeout=WAIT_S)
    assert (answer.status, answer.winner_agent_id) == (pb.STATUS_SUCCESS, "agent-0"), answer
    assert "FOUND [] END" in answer.agent_results[0].log


HOG = b"""
def act(observation):
    hoard = []
    while True:
        hoard.append(bytearray(1 << 20))
"""
FILLER = b"""
def act(observation):
    with open("/tmp/full", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
"""


@pytest.mark.parametrize("code", [HOG, FILLER], ids=["memory", "disk"])
def test_an_agent_that_takes_all_memory_or_disk_forfeits_every_game_and_voids_none(client: Client, code: bytes) -> None:
    answer = client.run(request(code, FIRST_FREE, games=2), timeout=WAIT_S)
    assert answer.status == pb.STATUS_SUCCESS, answer
    assert answer.winner_agent_id == "agent-1"
    assert [agent.errors for agent in answer.agent_results] == [2, 0]
    assert answer.agent_results[0].status in ("memory", "crash")


def test_an_image_plays_in_its_own_container(
    world: World, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARENA_IMAGES", str(tmp_path / "store"))
    (tmp_path / "run.py").write_text(
        "import json, sys\nprint('from an image', file=sys.stderr)\nfor line in sys.stdin:\n"
        "    kind = json.loads(line)['type']\n    if kind == 'init': print('{\"ready\": true}', flush=True)\n"
        "    if kind == 'act': print('{\"action\": 1}', flush=True)\n"
    )
    name = f"local/agent:{uuid.uuid4().hex[:8]}"
    options = ["--base", match_images.BASE, "--copy", f"{tmp_path / 'run.py'}:/agent/run.py"]
    archive = match_images.make(tmp_path, name, *options, "--entrypoint", "python3 /agent/run.py")
    ImageStore.default().import_file(archive)
    agents = [pb.AgentData(agent_id="image", docker_image=name)]
    agents.append(pb.AgentData(agent_id="code", code_zip=b"def act(observation):\n    return 0\n"))
    order = pb.MatchRequest(environment="rps", agents=agents, include_logs=True)
    answer = client.run(order, timeout=WAIT_S)
    assert (answer.status, answer.winner_agent_id) == (pb.STATUS_SUCCESS, "image"), answer
    assert answer.agent_results[0].log == "from an image\n"


def test_an_image_that_cannot_be_pulled_is_named(world: World, tmp_path: Path) -> None:
    with world.executor(', agent_image: "registry.invalid/none:1"') as client:
        answer = client.run(request(FIRST_FREE, FIRST_FREE), timeout=WAIT_S)
    assert (answer.status, answer.void_cause) == (pb.STATUS_ERROR, "no_box")
    assert "image of agent-0 cannot be pulled" in answer.error_message
    assert "registry.invalid/none" in answer.error_message


def test_a_cancelled_match_is_deleted(world: World, client: Client) -> None:
    call = client.run_later(request(SLOW, SLOW, match_id="stop", clock=pb.Clock(move_sec=60)), timeout=WAIT_S)
    assert until(world.running, within_s=WAIT_S)
    assert client.cancel("stop")
    assert call.result().status == pb.STATUS_CANCELLED
    assert until(lambda: not world.names(JOBS) and not world.pods(), within_s=WAIT_S)


def test_a_match_whose_pod_is_lost_is_played_again(world: World, client: Client) -> None:
    call = client.run_later(request(SLOW, FIRST_FREE, match_id="lost"), timeout=WAIT_S)
    assert until(world.running, within_s=WAIT_S)
    for pod in world.pods():
        world.api.delete(path(world.namespace, "pods", pod["metadata"]["name"]), grace_s=0)
    assert until(lambda: "match-lost-r1" in world.names(JOBS), within_s=WAIT_S)
    assert call.result().status == pb.STATUS_SUCCESS


def test_an_agent_is_validated_in_a_job(client: Client) -> None:
    assert client.validate(code_zip=FIRST_FREE, environment="tictactoe").valid
    found = client.validate(code_zip=b"def act(observation):\n    return 99\n", environment="tictactoe")
    assert not found.valid
    assert "not allowed in tictactoe" in found.errors[0]


def test_what_a_killed_executor_leaves_ends_and_is_removed_by_the_next(world: World, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(world.text(", ttl_sec: 3600"))  # so that the cluster does not remove it
    program = "from harena.match.executor.server import serve_from; serve_from()"
    environ = {**os.environ, "CONFIG_PATH": str(tmp_path / "config.yaml"), "LOG_LEVEL": "INFO"}
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = next(int(line.split("port ")[1].split(",")[0]) for line in process.stderr if "listening on" in line)
        with Client(port) as client:
            call = client.run_later(request(SLOW, FIRST_FREE, match_id="orphan"), timeout=WAIT_S)
            try:
                assert until(world.running, within_s=60)
            finally:
                process.send_signal(signal.SIGKILL)
            assert call.exception() is not None
    assert until(lambda: bool(_conditions(world)), within_s=WAIT_S)
    assert world.names(JOBS) == ["match-orphan"]
    with world.executor(", ttl_sec: 0"):
        assert until(lambda: not world.names(JOBS), within_s=WAIT_S)


def _conditions(world: World) -> list[Any]:
    jobs = world.api.list(path(world.namespace, JOBS))["items"]
    return [one for job in jobs for one in job["status"].get("conditions", ())]
