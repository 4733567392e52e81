"""Runs a copy of the project as an ordinary user, also with chosen ranges of ids."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

NOBODY = 65534
TESTS = Path(__file__).parents[1]
PROJECT = TESTS.parent
NEEDED = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "pytest-timeout")
"""The distributions that pytest is made of here; their code runs under any Python of the same version."""
SOME_IDS = "nobody:3000000:65536\n"
"""A line of /etc/subuid."""

_WITH_IDS = """
set -e
mount --make-rprivate /
for file in /etc/subuid /etc/subgid; do mount --bind "$1" "$file"; done
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
"""


def python_of_everybody(*, same_version: bool = False) -> str:
    """A Python that an ordinary user may run: one that Harena supports, or one of our own version."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = f"== {sys.version_info[:2]!r}" if same_version else ">= (3, 11)"
    own = (sys.executable, os.path.realpath(sys.executable))
    for candidate in (*own, f"/usr/bin/python{version}", "/usr/bin/python3"):
        source = f"import sys; sys.exit(not sys.version_info[:2] {wanted})"
        try:
            done = subprocess.run(
                [candidate, "-c", source], user=NOBODY, group=NOBODY, capture_output=True, check=False
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    pytest.skip(f"host: no Python {version if same_version else ''} that an ordinary user may run")


def copy_project(folder: Path, *tests: str, packages: Iterable[str] = NEEDED) -> None:
    """Copy what tests need to where any user may read it: the clone may be in somebody's home. `tests` are files and
    folders below tests/. The user owns the folder `home`."""
    shutil.copytree(PROJECT / "src", folder / "src")  # with what is compiled
    shutil.copy(PROJECT / "pyproject.toml", folder)
    for name in tests:
        (folder / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        _copy(TESTS / name, folder / "tests" / name)
    (folder / "site").mkdir()
    for package in packages:
        found = importlib.metadata.distribution(package)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            _copy(Path(str(found.locate_file(top))), folder / "site" / top)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
    (folder / "home").mkdir()
    os.chown(folder / "home", NOBODY, NOBODY)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a command in a copy of the project."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "home"),
        "PYTHONPATH": f"{folder / 'src'}:{folder / 'site'}:{folder / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


def run_with_ids(
    folder: Path, granted: str, command: list[str], *, timeout_s: float, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a copy of the project, as a user to whom /etc/subuid and /etc/subgid grant these ids."""
    if granted and shutil.which("newuidmap") is None:
        pytest.skip("newuidmap is not installed: apt-get install uidmap")
    for file in ("/etc/subuid", "/etc/subgid"):
        if not os.path.exists(file):
            pytest.skip(f"host: no {file} to cover")
    (folder / "granted").write_text(granted)
    (folder / "granted").chmod(0o644)
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", _WITH_IDS, "sh", str(folder / "granted"), *command],
        cwd=folder,
        env=environment(folder, **env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def run_tests_with_ids(folder: Path, granted: str, *options: str, timeout_s: float, **env: str) -> str:
    """Run pytest like that, and return what it printed if all tests passed."""
    command = [python_of_everybody(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    command += ["-c", str(folder / "pyproject.toml"), "--rootdir", str(folder), *options]
    done = run_with_ids(folder, granted, command, timeout_s=timeout_s, **env)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert " passed" in done.stdout
    return done.stdout
