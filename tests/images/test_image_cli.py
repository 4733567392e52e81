"""The commands of `harena image`."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from harena.images.commands import Bar
from support.registries import Registry, tar_of

LAYER = tar_of({"etc": None, "etc/name": b"x" * 1000})


class Command:
    def __init__(self, folder: Path) -> None:
        self.env = {**os.environ, "HARENA_IMAGES": str(folder), "DOCKER_CONFIG": str(folder / "none")}

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "harena", "image", *words], env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        if code:
            assert done.stderr.count("\n") == 1, done.stderr
            return done.stderr
        assert done.stderr == ""
        return done.stdout


@pytest.fixture
def image(tmp_path: Path) -> Command:
    return Command(tmp_path / "store")


def test_an_image_from_pull_to_removal(registry: Registry, image: Command) -> None:
    name = registry.tag("app:1", manifest := registry.add_image([LAYER], config={"Labels": {"a": "\x1b[31m"}}))
    assert image("ls") == "no images: `harena image pull NAME` gets one\n"
    assert image("pull", name) == f"{name}: {manifest['digest']}, 1 layers, 1 kB\n"
    assert image("pull", "--quiet", name) == f"{manifest['digest']}\n"
    (pulled,) = json.loads(image("pull", "--json", name))
    assert pulled["digest"] == manifest["digest"]
    assert name in image("ls")
    (listed,) = json.loads(image("ls", "--json"))
    assert (listed["reference"], listed["bytes"]) == (name, 1000)
    told = image("inspect", name)
    assert "\x1b" not in told
    found = json.loads(told)
    assert (Path(found["layers"][0]["folder"]) / "etc/name").stat().st_size == 1000
    assert image("rm", name) == f"removed {name}\n1 layers removed, 1 kB freed\n"
    assert json.loads(image("gc", "--json")) == {"images": [], "layers": 0, "bytes": 0, "in_use": 0}


def test_a_file_is_imported(image: Command, tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(LAYER)
    assert image("import", str(tmp_path / "root.tar"), "--name", "mine:1").startswith("mine:1: sha256:")
    assert "mine:1" in image("ls")
    assert image("gc", "--max-gb", "0").startswith("removed mine:1\n1 layers removed")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["pull", "UPPER"], 2, "'UPPER' is not the name of an image"),
        (["pull", "127.0.0.1:1/python", "--platform", "x"], 2, "'x' is not a platform"),
        (["inspect", "python"], 1, "there is no image python:latest here: `harena image pull python:latest`"),
        (["rm", "python"], 1, "there is no image python:latest here: `harena image ls` lists them"),
        (["import", "/nothing"], 1, "/nothing cannot be read: No such file"),
        (["ls", "--", "x"], 2, "unexpected argument 'x' after --"),
    ],
)
def test_a_mistake_is_one_sentence(image: Command, words: list[str], code: int, message: str) -> None:
    assert message in image(*words, code=code)


def test_no_registry_is_exit_code_3(registry: Registry, image: Command) -> None:
    host = registry.host
    registry.answers = [(403, {})]
    assert "refuses access" in image("pull", f"{host}/app", code=3)
    assert "check the name and the tag" in image("pull", f"{host}/app", code=1)


def test_a_store_that_cannot_be_made_is_exit_code_125(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be made" in Command(tmp_path / "file" / "store")("ls", code=125)


def test_bars_are_for_terminals_alone(registry: Registry, tmp_path: Path) -> None:
    name = registry.tag("app", registry.add_image([tar_of({"x": os.urandom(400_000)})]))
    registry.pause_s = 0.15
    ours, theirs = pty.openpty()
    env = {**os.environ, "HARENA_IMAGES": str(tmp_path / "store")}
    done = subprocess.Popen(
        [sys.executable, "-m", "harena", "image", "pull", name], env=env, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:  # the other end is closed
        pass
    out, _ = done.communicate(timeout=30)
    os.close(ours)
    assert b"[" in shown
    assert b"/1 layers" in shown
    assert shown.endswith(b"\r\x1b[K")
    assert b"sha256:" in out
    quiet = io.StringIO()
    with Bar("x", is_on=True, stream=quiet) as bar:
        bar.show("download", "a", 1, 2)
    assert quiet.getvalue() == ""
