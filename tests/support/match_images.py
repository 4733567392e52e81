"""Images for tests of matches as Jobs, made without Docker by the program that HARENA_TEST_MKIMAGE names: it takes a
name, --base, --copy, --env, --entrypoint and --save, and gives the image to the cluster of KUBECONFIG.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

BASE = "local/python:3"
PACKAGES = ("numpy", "msgspec", "zstandard", "packaging")
PARTS = ("match", "sandbox", "images", "backends")


def missing() -> str:
    """Why no match can be played as a Job here; empty where it can."""
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG is not set: start a cluster and name it"
    if not os.environ.get("HARENA_TEST_MKIMAGE"):
        return "HARENA_TEST_MKIMAGE is not set: it names the program that gives the cluster an image"
    return ""


def make(folder: Path, name: str, *options: str) -> Path:
    """Make an image; returns its archive."""
    archive = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.tar"
    command = [os.environ["HARENA_TEST_MKIMAGE"], name, "--save", str(archive), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return archive


def stage(folder: Path) -> Path:
    """Harena as it is here, with what an orchestrator needs, to be copied into an image."""
    site = folder / "site"
    source = Path(str(importlib.util.find_spec("harena").submodule_search_locations[0]))  # type: ignore[union-attr]
    skipped = shutil.ignore_patterns("__pycache__", "azr", "web", "attacks", "demo")
    shutil.copytree(source, site / "harena", ignore=skipped)
    for package in PACKAGES:
        for file in importlib.metadata.distribution(package).files or ():
            where = Path(str(file.locate()))
            if ".." in file.parts or not where.is_file() or "tests" in file.parts or where.suffix == ".pyc":
                continue
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(where, site / file)
    (site / "harena/match/orchestrator/native/harena-seat").chmod(0o755)
    subprocess.run([shutil.which("python3") or "python3", "-m", "compileall", "-q", site], check=False, timeout=300)
    return site


def orchestrator(folder: Path) -> str:
    site = stage(folder)
    digest = hashlib.sha256()
    for path in sorted(site.rglob("*.py")) + sorted(site.rglob("*.c")):
        digest.update(path.read_bytes())
    name = f"local/rl-arena-orchestrator:{digest.hexdigest()[:12]}"
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add(site, "opt/harena", filter=_plain)
    make(folder, name, "--base", BASE, "--layer", str(layer), "--env", "PYTHONPATH=/opt/harena")
    return name


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = int(entry.mtime)  # what is compiled names the time of its source
    return entry


@pytest.fixture(scope="session", name="orchestrator_image")
def orchestrator_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    if why := missing():
        pytest.skip(why)
    return orchestrator(tmp_path_factory.mktemp("images"))
