"""What a release publishes: its metadata, its files for other tools, and the split into wheels. Building is `thorough`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
HEAD = """\
Metadata-Version: 2.4
Name: harena
Version: 0.1.0
Requires-Python: >=3.11
Requires-Dist: torch==2.13.0; extra == "azr"
Requires-Dist: zstandard>=0.23; python_version < "3.14" and extra == "images"
Provides-Extra: azr

The text.
"""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"release_{name}", ROOT / "deploy" / "release" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_the_same_everywhere():
    from harena import __version__

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {PROJECT["version"], cited["version"]} == {__version__}
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


@pytest.mark.thorough
def test_the_release_workflow_is_valid_and_its_linter_finds_nothing():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    subprocess.run(command, check=True, capture_output=True)
    zizmor = shutil.which("zizmor", path=str(Path(sys.executable).parent))
    assert zizmor is not None
    done = subprocess.run([zizmor, "--offline", "--no-progress", str(WORKFLOW)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "permissions: {}" in WORKFLOW.read_text()


def test_the_bill_of_materials_is_valid_and_names_what_extras_install(tmp_path):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    wheel = tmp_path / "harena-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"not a wheel")
    bill = script("sbom").bill(PROJECT, [wheel])
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    names = {component["name"]: component for component in bill["components"]}
    assert {"musl", "numpy", "torch", "fastapi", wheel.name} <= set(names)
    assert "pytest" not in names
    assert names["torch"]["properties"][0]["value"] == "==2.13.0"


def test_the_extra_azr_requires_the_wheel_of_its_own_and_that_wheel_its_packages():
    packages = script("packages")
    main = packages.main_metadata(HEAD, "0.1.0").decode()
    assert "\nRequires-Dist: harena-azr==0.1.0; extra == 'azr'\n\nThe text." in main
    assert "harena-testing" not in main
    part = packages.part_metadata(HEAD, "0.1.0", "harena_azr", "About.").decode()
    assert "\nName: harena-azr\n" in part
    assert "\nRequires-Dist: harena==0.1.0\nRequires-Dist: torch==2.13.0\n" in part
    assert "zstandard" not in part


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Packages, built twice: from this folder and from a copy elsewhere."""
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("needs gcc-aarch64-linux-gnu and libc6-dev-arm64-cross")
    folder = tmp_path_factory.mktemp("packages")
    ignored = shutil.ignore_patterns(
        ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "harena-box"
    )
    shutil.copytree(ROOT, folder / "copy", ignore=ignored)
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    for name, source in (("first", ROOT), ("second", folder / "copy")):
        command = [sys.executable, str(source / "deploy/release/packages.py"), str(folder / name)]
        subprocess.run(command, check=True, env=env, capture_output=True)
    return folder


@pytest.mark.thorough
@pytest.mark.timeout(3000)
def test_two_builds_give_the_same_bytes(built):
    names = sorted(path.name for path in (built / "first").iterdir())
    assert len(names) == 7
    assert names == sorted(path.name for path in (built / "second").iterdir())
    assert [
        name for name in names if (built / "first" / name).read_bytes() != (built / "second" / name).read_bytes()
    ] == []


@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_auditwheel_agrees_with_the_tag_and_the_wheel_is_small(built, machine):
    (wheel,) = (built / "first").glob(f"harena-*_{machine}.whl")
    assert wheel.stat().st_size <= 1_700_000  # a release should have at most 1.5 MB, which it does not reach yet
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True)
    assert f"manylinux_2_27_{machine}" in done.stdout or f"manylinux_2_28_{machine}" in done.stdout, done


@pytest.mark.thorough
@pytest.mark.timeout(3000)
def test_programs_for_the_other_machine_start_under_its_emulator(built, tmp_path):
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("needs qemu-user-static")
    (wheel,) = (built / "first").glob("harena-*_aarch64.whl")
    with zipfile.ZipFile(wheel) as archive:
        program = Path(archive.extract("harena/backends/local/native/harena-box", tmp_path))
    program.chmod(0o755)
    done = subprocess.run([qemu, str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "harena-box" in done.stderr


@pytest.mark.thorough
@pytest.mark.timeout(3000)
def test_the_wheel_gives_a_boxed_result_without_a_compiler_or_an_index(built, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    python, wheels = tmp_path / "v" / "bin" / "python", built / "first"
    env = {"PATH": str(tmp_path / "v" / "bin"), "CC": "/bin/false", "HOME": str(tmp_path)}
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    started = time.perf_counter()
    subprocess.run([*install, "--find-links", str(wheels), "harena"], check=True, capture_output=True)
    command = [str(tmp_path / "v" / "bin" / "harena"), "run", "-c", "print(6 * 7)"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    print(f"from the wheel to the first result: {time.perf_counter() - started:.1f} s")
    assert (done.stdout, done.stderr, done.returncode) == ("42\n", "", 0)
    doctor = subprocess.run([command[0], "doctor"], env=env, capture_output=True, text=True)
    assert doctor.stdout.startswith("Fine: "), doctor.stdout
    missing = subprocess.run([command[0], "azr", "train"], env=env, capture_output=True, text=True)
    assert missing.stderr == "harena: this needs harena-azr; pip install 'harena[azr]'\n"
    again = [str(python), "-c", "import harena.azr"]
    assert subprocess.run(again, env=env, capture_output=True).returncode != 0
