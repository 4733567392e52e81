"""Submissions that are images: allowed by the host, pinned to a digest, evaluated like code."""

from __future__ import annotations

import io
import zipfile

import pytest

pytest.importorskip("gymnasium")

from harena.arena.db.models import Busy, State, SubmissionKind
from harena.arena.ladder.matches import public_replay
from harena.arena.settings import Settings
from harena.arena.submissions import intake, service
from harena.arena.submissions.evaluate import fingerprint
from harena.arena.submissions.intake import IntakeError
from harena.errors import SpecError
from harena.match.replay.replay import Replay
from harena.match.result import AgentCode
from harena.match.run.runner import Runner
from support.image_agents import image_agents
from support.registries import Registry
from support.roots import busybox_entries, write_tar
from support.submitting import OTHER, TIC, Bench

pytestmark = pytest.mark.services

assert image_agents
POLE_AGENT = "class Agent:\n    def act(self, observation):\n        return int(observation[2] > 0)\n"
ALLOWED = ("docker.io/library/*",)
"""What the images of these tests are called, since they name no registry."""


@pytest.fixture(scope="module")
def runner(images):
    with Runner(1) as runner:
        yield runner


@pytest.fixture
def bench(tmp_path, runner):
    bench = Bench(tmp_path, runner)
    bench.with_settings(agent_images=ALLOWED)
    yield bench
    bench.close()


def name_of(agent):
    return agent.removeprefix("image:")


def test_an_image_is_evaluated_and_ranked(bench, images):
    built = images.build("LABEL harena.agent=/agent/agent.py", {"agent.py": POLE_AGENT}, base="python:1")
    bench.work()
    done = bench.until(bench.send(docker_image=built.reference))
    assert (done.state, done.kind, done.reason) == (State.RANKED, SubmissionKind.VERIFIED, "")
    assert done.score is not None
    assert done.score > 20
    with zipfile.ZipFile(io.BytesIO(bench.submissions.code_zip(done))) as archive:
        assert archive.read("docker_image").decode().strip().endswith(built.digest)


def test_an_image_that_fails_is_told_why(bench, images):
    bench.work()
    failed = bench.until(bench.send(docker_image=name_of(images('ENTRYPOINT ["/missing"]'))))
    assert failed.state is State.FAILED
    assert "could not be started" in failed.reason
    ladder = bench.until(bench.send(docker_image=name_of(images.shell()), env_id=TIC))
    assert ladder.state is State.FAILED, "it plays rock-paper-scissors, and soon takes a field that is taken"
    assert "the agent's action is not allowed" in ladder.reason


@pytest.mark.parametrize(
    ("name", "allowed", "words"),
    [
        ("base:1", (), "images are not taken here"),
        ("base:1", ("registry.example/team/*",), "not taken here; repositories that are: registry.example/team"),
        ("UPPER", ALLOWED, "is not the name of an image"),
        ("a b", ALLOWED, "is not the name of an image"),
        ("../../etc", ALLOWED, "is not the name of an image"),
        ("base:1", ALLOWED, "no ENTRYPOINT"),
        ("localhost:1/x", ("localhost:1/*",), "could not be fetched from its registry"),
    ],
)
def test_what_is_refused_leaves_nothing(bench, images, name, allowed, words):
    bench.with_settings(agent_images=allowed)
    with pytest.raises(IntakeError, match=words):
        bench.send(docker_image=name)
    assert bench.stored() == []


def test_a_script_environment_takes_no_image(bench, images):
    with pytest.raises(IntakeError, match="only Python scripts"):
        bench.send(docker_image=name_of(images.shell()), env_id=OTHER)


def test_an_image_that_was_removed_is_pulled_again_by_its_digest(bench, images, tmp_path, monkeypatch):
    monkeypatch.setenv("HARENA_IMAGES", str(tmp_path / "store"))
    layer = write_tar(tmp_path / "layer.tar", busybox_entries()).read_bytes()
    with Registry() as registry:
        first = registry.add_image([layer], config={"Cmd": ["sh", "-c", "exit 1"]})
        name = registry.tag("bot:1", first)
        bench.with_settings(agent_images=(f"{registry.host}/bot",))
        sent = bench.send(docker_image=name)
        registry.tag("bot:1", registry.add_image([layer], config={"Cmd": ["other"]}))
        store = service.image._store()
        store.remove(name)
        code = bench.submissions.code(sent)
    assert isinstance(code, AgentCode)
    assert code.command == ("sh", "-c", "exit 1")
    assert code.image == f"{name.removesuffix(':1')}@{first['digest']}"
    assert store.find(code.image) is not None


def test_only_some_images_are_fetched_at_once(bench, images):
    for _ in range(service.PULLS_AT_ONCE):
        bench.submissions._pulls.acquire()
    with pytest.raises(Busy):
        bench.send(docker_image="base:1")


def test_a_package_of_an_image_is_the_image_again():
    code = AgentCode(name="x", files={}, entry="", command=("/run", "now"), image="docker.io/library/x@sha256:1")
    other = AgentCode(name="x", files={}, entry="", command=("/run", "now"), image="docker.io/library/x@sha256:2")
    assert intake.unpack(intake.pack(code), name="x") == code
    assert len({fingerprint(code), fingerprint(other)}) == 2
    assert intake.pack(code) != intake.pack(other)


def test_public_replays_name_no_image(images, runner):
    from harena.match.agent import image
    from harena.match.result import MatchSpec

    agent = image.load_any(images.shell())
    replay = runner.submit(MatchSpec(environment="rps", agents=(agent, agent))).result().replay
    shown = Replay.load(public_replay(replay)).images
    assert shown == (agent.image.partition("@")[2],) * 2
    assert all(digest.startswith("sha256:") for digest in shown)


def test_a_list_that_could_be_misread_is_refused(tmp_path):
    with pytest.raises(SpecError, match="HARENA_AGENT_IMAGES"):
        Settings.from_env(tmp_path, {"HARENA_AGENT_IMAGES": "python"})
    given = Settings.from_env(tmp_path, {"HARENA_AGENT_IMAGES": "registry.example/a/*, docker.io/library/python"})
    assert given.agent_images == ("registry.example/a/*", "docker.io/library/python")
