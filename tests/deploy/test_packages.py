"""What a release publishes: its metadata, its files for other tools, and the split into wheels. Building is `thorough`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import httpx
import pytest
import yaml

from support import servers

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
Requires-Dist: harena[client,executor]; extra == "arena"
Provides-Extra: azr
Provides-Extra: arena

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
    assert "\nRequires-Dist: harena-arena==0.1.0; extra == 'arena'\n" in main
    assert "harena-testing" not in main
    part = packages.part_metadata(HEAD, "0.1.0", "harena_azr", "About.").decode()
    assert "\nName: harena-azr\n" in part
    assert "\nRequires-Dist: harena==0.1.0\nRequires-Dist: torch==2.13.0\n" in part
    assert "zstandard" not in part


def test_every_package_outside_the_first_wheel_names_the_extra_that_installs_it():
    from harena.lazy import EXTRAS

    packages = script("packages")
    outside = {
        folder.strip("/").replace("/", "."): part.partition("_")[2]
        for part in packages.PARTS
        for folder in packages.folders(part)
    }
    assert outside.pop("harena.testing") == "testing"  # no command needs it
    assert outside == EXTRAS
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])


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
    assert len(names) == 11  # the sdist, and five wheels for each of two machines
    assert names == sorted(path.name for path in (built / "second").iterdir())
    assert [
        name for name in names if (built / "first" / name).read_bytes() != (built / "second" / name).read_bytes()
    ] == []


@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_auditwheel_agrees_with_the_tag_and_the_wheel_is_small(built, machine):
    (wheel,) = (built / "first").glob(f"harena-*_{machine}.whl")
    assert wheel.stat().st_size <= 1_500_000
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
    for line, extra in (
        ("azr train", "azr"),
        ("up", "arena"),
        ("keys list", "arena"),
        ("match pong a b", "match"),
        ("envs", "match"),
    ):
        missing = subprocess.run([command[0], *line.split()], env=env, capture_output=True, text=True)
        sentence = f"this needs harena-{extra}: pip install 'harena[{extra}]'\n"
        assert (missing.stderr, missing.returncode) == (f"harena: {sentence}", 3)
    again = [str(python), "-c", "import harena; harena.evaluate"]
    said = subprocess.run(again, env=env, capture_output=True, text=True).stderr
    assert said.endswith("ModuleNotFoundError: this needs harena-match: pip install 'harena[match]'\n")


@pytest.mark.thorough
@pytest.mark.timeout(3000)
def test_the_extras_of_the_wheel_bring_matches_and_then_the_arena(built, tmp_path):
    """The packages of others are those of this environment; ours come from the wheels, by pip's own resolver."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    home, others = tmp_path / "v", tmp_path / "others"
    others.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "harena" not in path.name.lower() and path.suffix != ".pth":
            (others / path.name).symlink_to(path)
    (folder,) = home.glob("lib/python*/site-packages")
    (folder / "others.pth").write_text(f"{others}\n")
    env = {"PATH": str(home / "bin"), "HOME": str(tmp_path)}
    (tmp_path / "a.py").write_text("def act(observation):\n    return 3\n")

    def install(what):
        command = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet"]
        subprocess.run([*command, "--no-index", "--find-links", str(built / "first"), what], check=True)
        return sorted(path.name.partition("-")[0] for path in folder.glob("harena*.dist-info"))

    def harena(line):
        command = [str(home / "bin" / "harena"), *line.split()]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)

    assert install("harena[match]") == ["harena", "harena_match"]
    assert "connect_four" in harena("envs").stdout
    assert harena("match connect_four a.py a.py --json").returncode == 0
    assert harena("up").stderr == "harena: this needs harena-arena: pip install 'harena[arena]'\n"

    assert install("harena[arena]") == ["harena", "harena_arena", "harena_match"]
    assert "add" in harena("envs --help").stdout
    port = servers.free_port()
    off = "--ui-port off --grpc-port off --metrics-port off --no-demo --no-workers"
    line = f"up --port {port} --data {tmp_path / 'data'} {off}"
    up = subprocess.Popen([str(home / "bin" / "harena"), *line.split()], env=env, cwd=tmp_path)
    try:
        page = wait_for(f"http://127.0.0.1:{port}/", up)
    finally:
        up.terminate()
        assert up.wait(60) == 0
    assert "<title>" in page


def wait_for(url, process):
    while process.poll() is None:
        try:
            return httpx.get(url, trust_env=False).raise_for_status().text
        except httpx.ConnectError:
            time.sleep(0.05)
    raise AssertionError(f"ended with {process.returncode}")
