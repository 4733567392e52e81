"""The images of deploy/images, built from wheels without a network: by `harena image build`, and by Docker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import Sandbox, Spec
from harena.images import ImageStore
from harena.images.build import build
from support import match_images, wheelhouse
from support.docker_daemon import docker_daemon

pytestmark = [pytest.mark.services, pytest.mark.serial, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
NAMES = {
    "agent": (["python3", "-c", "import numpy; print(numpy.zeros(1))"], "[0.]"),
    "executor": (["harena", "executor", "--help"], "executor"),
    "operator": (["harena", "operator", "run", "--help"], "--server-image"),
    "orchestrator": (["python3", "-c", "import harena.match.orchestrator.main as main; print(main)"], "orchestrator"),
    "server": (["harena", "up", "--help"], "--port"),
    "worker": (["harena", "worker", "--help"], "--server"),
}
"""What each image must be able to do."""
MOST_MB = 450
"""Beyond the base: what is installed, with numpy and gRPC for most."""
BASE = "local/base:1"


@pytest.fixture(scope="module", name="context")
def context_with_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the repository that images are built from, and wheels of what is installed here."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("host: packages of this Python do not fit the Python 3.11 of the base image")
    folder = tmp_path_factory.mktemp("context")
    wheelhouse.fill(folder / "deploy" / "images" / "wheels")
    for name in ("README.md", "LICENSE", "pyproject.toml", "setup.py"):
        shutil.copyfile(ROOT / name, folder / name)
    skipped = shutil.ignore_patterns("__pycache__", "wheels", "*.so", "harena-box", "harena-seat")
    shutil.copytree(ROOT / "deploy" / "images", folder / "deploy" / "images", ignore=skipped, dirs_exist_ok=True)
    shutil.copytree(ROOT / "src", folder / "src", ignore=skipped)
    return folder


@pytest.fixture(scope="module", name="base")
def base_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of a small Debian with Python, and with nothing else."""
    if not os.environ.get("HARENA_TEST_MKIMAGE"):
        pytest.skip("HARENA_TEST_MKIMAGE is not set: it names the program that makes images without Docker")
    return match_images.make(tmp_path_factory.mktemp("base"), BASE, "--base", match_images.BASE)


@pytest.fixture(scope="module", name="store")
def store_with_base(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARENA_IMAGES", str(tmp_path_factory.mktemp("store") / "images"))
        store = ImageStore.default()
        store.import_file(base)
        yield store


def file_of(name: str) -> Path:
    return Path("deploy", "images", f"{name}.Dockerfile")


def test_every_dockerfile_is_built_here() -> None:
    assert {path.name.partition(".")[0] for path in (ROOT / "deploy" / "images").glob("*.Dockerfile")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_built_without_docker_or_a_network_and_does_its_work(
    name: str, store: ImageStore, context: Path
) -> None:
    tag = f"rl-arena-{name}:test"
    made = build(store, context, file=context / file_of(name), name=tag, args={"BASE": BASE})
    assert made.config.user == "65532:65532"
    base = store.find(BASE)
    assert base is not None
    assert made.size_bytes - base.size_bytes < MOST_MB << 20
    command, said = NAMES[name]
    with Sandbox(Spec(image=tag, pull=False)) as box:
        result = box.exec(command)
        assert result.ok, result
        assert said in result.stdout.decode()
        assert box.exec(["sh", "-c", "ls /src"]).exit_code != 0  # neither sources nor wheels are left in it
        assert box.exec(["id", "-u"]).stdout == b"65532\n"


@pytest.mark.docker
@pytest.mark.parametrize("name", ["agent", "operator"])
def test_docker_builds_the_same_file(name: str, base: Path, context: Path, tmp_path: Path) -> None:
    with docker_daemon(tmp_path) as daemon:
        daemon.docker("load", "--input", str(base))
        words = [
            "build",
            "--tag",
            f"{name}:test",
            "--file",
            str(context / file_of(name)),
            "--build-arg",
            f"BASE={BASE}",
        ]
        environ = {**os.environ, "DOCKER_BUILDKIT": "0"}
        command = daemon.command(*words, "--network", "none", str(context))
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        (found,) = json.loads(daemon.docker("inspect", f"{name}:test"))
        assert found["Config"]["User"] == "65532:65532"
        command, said = NAMES[name]
        options = ["--rm", "--network", "none", "--read-only", "--entrypoint", command[0], f"{name}:test", *command[1:]]
        assert said in daemon.docker("run", *options)
