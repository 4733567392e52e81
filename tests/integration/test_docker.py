"""Boxes in containers of a real Docker: the restricted tier in a default one, the full tier in one that is given what
docs/isolation.md says. Starts a daemon of its own, without a network; containers see the host's /usr."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import harena
from harena.backends.local import policy
from support.docker_daemon import docker_daemon

SRC = Path(harena.__file__).parents[1]
PROFILE = Path(policy.__file__).parent / "container.json"
PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
FULL = ("--security-opt", f"seccomp={PROFILE}", "--security-opt", "systempaths=unconfined")
DOCTOR = "import sys\nfrom harena.cli import main\nsys.exit(main(['doctor', '--isolation', sys.argv[1]]))"
MADE = (
    "import sys\nfrom harena import Sandbox, Spec\n"
    "with Sandbox(Spec(isolation=sys.argv[1])) as box:\n    print(box.exec(['echo', 'hello']))"
)

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.timeout(180)]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def image() -> bytes:
    """A root that has nothing but places: /usr is mounted."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, mode in (("tmp", 0o1777), ("var/tmp", 0o1777), ("etc", 0o755), ("run", 0o755), ("usr", 0o755)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name in ("bin", "sbin", "lib", "lib64"):
            if os.path.islink(f"/{name}"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(entry)
        tar.add("/etc/ld.so.cache", "etc/ld.so.cache")
    return data.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    if not os.access(PYTHON, os.X_OK):
        pytest.skip(f"host: needs {PYTHON}")
    with docker_daemon(tmp_path_factory.mktemp("docker")) as daemon:
        daemon.docker("import", "-", "harena", input=image())

        def run(source: str, tier: str, *options: str) -> subprocess.CompletedProcess[str]:
            mounts = ["-v", "/usr:/usr:ro", "-v", f"{SRC}:/src:ro", "-e", "PYTHONPATH=/src"]
            command = daemon.command("run", "--rm", "--network=none", *mounts, *options, "harena", PYTHON, "-c", source)
            return subprocess.run([*command, tier], capture_output=True, text=True, timeout=120, check=False)

        yield run


@pytest.mark.parametrize("user", [(), ("--user", "1000:1000")], ids=["root", "user"])
def test_default_container_has_the_restricted_tier(run: Run, user: tuple[str, ...]) -> None:
    refused = run(MADE, "full", *user)
    assert 'isolation="restricted"' in refused.stderr
    made = run(MADE, "best", *user)
    assert "isolation='restricted'" in made.stdout, made.stderr
    found = run(DOCTOR, "restricted", *user)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("user", [(), ("--user", "1000:1000")], ids=["root", "user"])
def test_container_with_our_profile_has_the_full_tier(run: Run, user: tuple[str, ...]) -> None:
    made = run(MADE, "best", *FULL, *user)
    assert "isolation='full'" in made.stdout, made.stderr
