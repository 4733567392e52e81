"""`docker_image`: images that play by gRPC, where they may come from, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from harena.match.executor import config
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.result import MatchSpec
from harena.match.run.runner import Runner
from support.executor_client import Client, FakeRunner, refusal, result, serving, until
from support.image_agents import SHELL_AGENT, ImageAgents, image_agents
from support.registries import Registry
from support.roots import busybox_entries, write_tar

pytestmark = pytest.mark.services

assert image_agents
Code = grpc.StatusCode
CODE = b"def act(observation):\n    return 0\n"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as served:
        yield served


def order(name: str, **fields: Any) -> pb.MatchRequest:
    agents = [pb.AgentData(agent_id="image", docker_image=name), pb.AgentData(agent_id="code", code_zip=CODE)]
    return pb.MatchRequest(**{"environment": "rps", "agents": agents, **fields})


def test_an_image_plays_and_its_replay_names_the_digest(images: ImageAgents, tmp_path: Path) -> None:
    built = images.build('ENTRYPOINT ["/agent/run"]', {"run": SHELL_AGENT})
    with Runner(workers=1) as runner, serving(runner, tmp_path) as running, Client(running.port) as client:
        answer = client.run(order(built.reference, games=2, include_replay=True))
        broken = client.run(order(images.build('ENTRYPOINT ["/missing"]').reference))
    assert (answer.status, answer.error_message) == (pb.STATUS_SUCCESS, "")
    assert [agent.status for agent in answer.agent_results] == ["ok", "ok"]
    assert json.loads(answer.replay)["metadata"]["agents"][0]["image"].endswith(built.digest)
    assert broken.status == pb.STATUS_SUCCESS
    assert [agent.status for agent in broken.agent_results] == ["load", "ok"]
    assert broken.winner_agent_id == "code"


def test_what_is_no_name_and_what_is_not_there_is_refused(images: ImageAgents, tmp_path: Path) -> None:
    with serving(FakeRunner(), tmp_path) as running, Client(running.port) as client:
        for name in ("UPPER", "a b", "../x", "x;id", "http://x", "x@sha256:zz", "image:x:1", "x" * 600):
            code, text = refusal(client.run, order(name))
            assert (code, text.startswith("agents[0].docker_image: ")) == (Code.INVALID_ARGUMENT, True), text
        code, text = refusal(client.run, order("registry.example/nobody/nothing:1"))
        assert code is Code.FAILED_PRECONDITION
        assert "harena image pull registry.example/nobody/nothing:1" in text
        assert "images.pull" in text


def test_an_image_without_an_agent_forfeits(images: ImageAgents, tmp_path: Path) -> None:
    with serving(FakeRunner(), tmp_path) as running, Client(running.port) as client:
        answer = client.run(order("base:1"))
    assert answer.status == pb.STATUS_SUCCESS
    assert answer.agent_results[0].status == "load"
    assert "no ENTRYPOINT" in answer.agent_results[0].error_message


def test_allowed_images_are_pulled_before_the_clock(
    images: ImageAgents, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARENA_IMAGES", str(tmp_path / "store"))
    layer = write_tar(tmp_path / "layer.tar", {**busybox_entries(), "run": SHELL_AGENT.encode()}).read_bytes()
    name = registry.tag("team/bot:1", registry.add_image([layer], config={"Entrypoint": ["/run"]}))
    registry.tag("other/bot:1", registry.add_image([layer], config={"Entrypoint": ["/run"]}))
    registry.pause_s = 0.05
    seen: list[MatchSpec] = []
    runner = FakeRunner()
    runner.answer = lambda spec: (seen.append(spec), result(spec))[1]
    text = f"executor: {{port: 0}}\nimages: {{pull: ['{registry.host}/team/*']}}"
    with serving(runner, tmp_path, text) as running, Client(running.port) as client:
        assert refusal(client.run, order(f"{registry.host}/other/bot:1"))[0] is Code.FAILED_PRECONDITION
        assert not registry.seen
        assert client.run(order(name, timeout_sec=5)).status == pb.STATUS_SUCCESS
        assert registry.paths("blobs")
        gone = client.run(order(f"{registry.host}/team/gone:1"))
        assert gone.status == pb.STATUS_ERROR
        assert "agents[0].docker_image" in gone.error_message
    assert seen[0].agents[0].image.startswith(f"{registry.host}/team/bot@sha256:")
    assert seen[0].agents[0].command == ("/run",)
    assert seen[0].clock.match_s > 4.5, "what the pull took is not taken from the games"


def test_a_call_that_is_cancelled_ends_its_pull(
    images: ImageAgents, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARENA_IMAGES", str(tmp_path / "store"))
    layer = write_tar(tmp_path / "layer.tar", busybox_entries()).read_bytes()
    name = registry.tag("bot:1", registry.add_image([layer], compress=lambda data: data, config={"Cmd": ["/run"]},
                                                    kind="application/vnd.oci.image.layer.v1.tar"))  # fmt: skip
    registry.pause_s = 0.5
    text = f"executor: {{port: 0}}\nimages: {{pull: ['{registry.host}/bot']}}"
    with serving(FakeRunner(), tmp_path, text) as running, Client(running.port) as client:
        call = client.run_later(order(name))
        assert until(lambda: bool(registry.paths("blobs")))
        call.cancel()
        assert until(lambda: client.health().active_matches == 0)
    assert not list((tmp_path / "store" / "images").iterdir())


@pytest.mark.parametrize(
    "entry", ["python", "*", "registry.example/team/x:1", "https://registry.example/x", "GHCR.io/x"]
)
def test_a_list_that_could_be_misread_is_refused(entry: str) -> None:
    with pytest.raises(config.ConfigError, match=r"images\.pull\[0\]"):
        config.parse(f"images: {{pull: ['{entry}']}}")
