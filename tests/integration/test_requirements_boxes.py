"""Requirements of boxes: installed in boxes, once, from one index, and visible to everything that a box runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harena import BoxError, IsolationUnavailable, Sandbox, SandboxPool, Spec
from harena.backends.local.launch import registry
from harena.backends.local.requirements.store import PackageStore
from harena.cli import main
from harena.errors import RequirementsFailed
from support.wheels import make_sdist, make_wheel, serve_index

TOOL = {"hero_tool/__init__.py": "NAME = 'hero'\n", "hero_tool-1.0.data/scripts/hero": "#!python\nprint('script')\n"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is the index."""
    folder = tmp_path / "index"
    folder.mkdir()
    make_wheel(folder, "hero_tool", "1.0", TOOL, requires=("hero_base>=1",))
    make_wheel(folder, "hero_base", "1.5", {"hero_base.py": "X = 15\n"})
    make_wheel(folder, "hero_base", "0.9", {"hero_base.py": "X = 9\n"})
    monkeypatch.setenv("HARENA_PACKAGES", str(tmp_path / "packages"))
    monkeypatch.setenv("HARENA_PACKAGES_MAX_MB", "64")
    monkeypatch.setenv("HARENA_PACKAGE_INDEX", str(folder))
    monkeypatch.delenv("HARENA_PACKAGE_HOSTS", raising=False)
    return folder


def sets(tmp_path: Path) -> PackageStore:
    return PackageStore(tmp_path / "packages")


def test_requirements_are_visible_to_everything_that_a_box_runs(index: Path, tmp_path: Path) -> None:
    code = "import hero_tool, hero_base; print(hero_tool.NAME, hero_base.X)"
    with Sandbox(Spec(requirements=("hero-tool",))) as box:
        assert box.exec(["python3", "-c", code]).stdout == b"hero 15\n"
        assert box.exec(["hero"]).stdout == b"script\n"
        assert box.run(code).stdout == b"hero 15\n"
        assert box.call("def f():\n    import hero_base\n    return hero_base.X", "f").value == 15
        assert box.exec(["sh", "-c", "echo x >> /.harena/requirements/hero_base.py"]).exit_code != 0
    with SandboxPool(Spec(requirements=("hero-tool",), preload=("hero_tool",)), warm=1) as pool:
        results = pool.map([code, "import sys; print('hero_tool' in sys.modules)"])
        assert [result.stdout for result in results] == [b"hero 15\n", b"True\n"]
    (found,) = sets(tmp_path).sets()
    assert found.packages == ("hero-base==1.5", "hero-tool==1.0")
    lock = (tmp_path / "packages" / found.key / "lock.txt").read_text().splitlines()
    assert [line.partition(" --hash=sha256:")[0] for line in lock] == list(found.packages)


def test_a_package_does_not_replace_the_standard_library_of_programs(index: Path) -> None:
    make_wheel(index, "evil", "1.0", {"json/__init__.py": "raise SystemExit('replaced')\n", "evil.py": "Y = 1\n"})
    with Sandbox(Spec(requirements=("evil",), preload=("csv",))) as box:
        assert box.run("import json, evil; print(json.dumps(evil.Y))").stdout == b"1\n"


def test_a_set_is_installed_once_and_its_boxes_start_like_others(index: Path, tmp_path: Path) -> None:
    with Sandbox(Spec(requirements=("hero-base<1",))) as box:
        assert box.run("import hero_base; print(hero_base.X)").stdout == b"9\n"
    for path in index.iterdir():
        path.unlink()  # nothing could be installed any more
    (before,) = sets(tmp_path).sets()
    started = time.monotonic()
    with Sandbox(Spec(requirements=("Hero_Base < 1",))) as box:
        took_s = time.monotonic() - started
        assert box.run("import hero_base; print(hero_base.X)").stdout == b"9\n"
    assert [one.key for one in sets(tmp_path).sets()] == [before.key]
    assert took_s < 5


def test_a_requirement_that_no_index_has_is_named_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    with pytest.raises(BoxError, match="nosuchthing"):
        Sandbox(Spec(requirements=("nosuchthing",)))
    assert [path.suffix for path in (tmp_path / "packages").iterdir()] == [".lock"]


def test_a_wheel_that_writes_outside_of_its_folder_is_refused(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "climber", "1.0", {"climber.py": "", "../../../../../../tmp/req_climbed": "x"})
    with pytest.raises(BoxError, match="could not unpack"):
        Sandbox(Spec(requirements=("climber",)))
    assert not Path("/tmp/req_climbed").exists()
    assert not sets(tmp_path).sets()


HOSTILE = """
import json, os, socket, zipfile

def attempt(action):
    try:
        return repr(action())
    except OSError as error:
        return ""

def build_wheel(folder, settings=None, metadata=None):
    found = {
        "secret": attempt(lambda: open(%(secret)r).read()),
        "listening": attempt(lambda: socket.create_connection(("127.0.0.1", %(port)d), 2).recv(10)),
        "environment": os.environ.get("HARENA_TEST_SECRET", ""),
        "home": attempt(lambda: os.listdir(%(home)r)),
    }
    name = "hostile-1.0-py3-none-any.whl"
    files = {
        "hostile.py": "FOUND = " + repr(json.dumps(found)),
        "hostile-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: hostile\\nVersion: 1.0\\n",
        "hostile-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "hostile-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name
"""


def test_the_code_of_a_source_distribution_finds_neither_files_nor_a_network(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    monkeypatch.setenv("HARENA_TEST_SECRET", "secret")
    with socket.create_server(("127.0.0.1", 0)) as other, serve_index(index) as (address, _):
        values = {"secret": str(secret), "port": other.getsockname()[1], "home": str(tmp_path)}
        make_sdist(index, "hostile", "1.0", HOSTILE % values)
        monkeypatch.setenv("HARENA_PACKAGE_INDEX", address)
        with Sandbox(Spec(requirements=("hostile",))) as box:
            found = json.loads(box.run("import hostile; print(hostile.FOUND)").stdout)
        other.settimeout(0.2)
        with pytest.raises(TimeoutError):
            other.accept()
    assert found == {"secret": "", "listening": "", "environment": "", "home": ""}


def test_a_build_that_leaves_something_else_than_wheels_is_refused(index: Path, tmp_path: Path) -> None:
    leave = 'import os\nos.makedirs("/workspace/wheels", exist_ok=True)\nopen("/workspace/wheels/x.sh", "w").close()\n'
    source = HOSTILE % {"secret": "/", "port": 1, "home": "/"}
    make_sdist(index, "hostile", "1.0", leave + source)
    with pytest.raises(BoxError, match="not a wheel"):
        Sandbox(Spec(requirements=("hostile",)))
    assert not sets(tmp_path).sets()


def test_a_set_beyond_the_cap_is_refused(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_PACKAGES_MAX_MB", "16")
    make_wheel(index, "large", "1.0", {"large.py": "#" * (24 << 20)})
    with pytest.raises(BoxError, match="HARENA_PACKAGES_MAX_MB"):
        Sandbox(Spec(requirements=("large",)))
    assert not sets(tmp_path).sets()


def test_an_index_on_the_network_is_reached_and_nothing_else(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_index(index) as (address, asked):
        monkeypatch.setenv("HARENA_PACKAGE_INDEX", address)
        with Sandbox(Spec(requirements=("hero-tool",))) as box:
            assert box.run("import hero_base; print(hero_base.X)").stdout == b"15\n"
            assert box.spec.network is None
        first = len(asked)
        assert first >= 4
        Sandbox(Spec(requirements=("hero-tool",))).close()
        assert len(asked) == first


USER = """
import sys
from harena import Sandbox, Spec
with Sandbox(Spec(requirements=(sys.argv[1],))) as box:
    print(box.run("import hero_base; print(hero_base.X)").stdout.decode(), end="")
"""


def test_two_processes_at_once_install_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_index(index) as (address, asked):
        monkeypatch.setenv("HARENA_PACKAGE_INDEX", address)
        command = [sys.executable, "-c", USER, "hero-tool"]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert [child.communicate(timeout=100)[0] for child in children] == ["15\n", "15\n"]
        assert len([path for path in asked if path.endswith("hero_tool-1.0-py3-none-any.whl")]) == 1


def test_an_installer_killed_in_the_middle_leaves_no_box_and_no_set(index: Path, tmp_path: Path) -> None:
    make_sdist(index, "sleeper", "1.0", "import time\ntime.sleep(1000)\n")
    child = subprocess.Popen([sys.executable, "-c", USER, "sleeper"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    before = None
    while not (before := list((tmp_path / "packages").glob("*.partial"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert before
    time.sleep(1.5)
    assert child.poll() is None
    assert records_of(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    while records_of(child.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not records_of(child.pid)
    (index / "sleeper-1.0.tar.gz").unlink()
    make_wheel(index, "sleeper", "1.0", {"sleeper.py": "Z = 1\n"})
    with Sandbox(Spec(requirements=("sleeper",))) as box:
        assert box.run("import sleeper; print(sleeper.Z)").stdout == b"1\n"
    assert not list((tmp_path / "packages").glob("*.partial"))


def records_of(pid: int) -> list[Path]:
    """Records of live boxes that a process made."""
    found: list[Path] = []
    for path in registry.folder().iterdir():
        with contextlib.suppress(FileNotFoundError):  # it ended
            if path.read_text().split()[:1] == [str(pid)]:
                found.append(path)
    return found


def test_a_set_that_a_live_box_shows_is_not_collected(index: Path, tmp_path: Path) -> None:
    with Sandbox(Spec(requirements=("hero-base",))) as box:
        assert sets(tmp_path).collect() == []
        assert box.run("import hero_base; print(hero_base.X)").stdout == b"15\n"
    assert len(sets(tmp_path).collect()) == 1


def test_requirements_come_before_the_packages_of_a_virtual_environment(index: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (packages / "hero_base.py").write_text("X = 'of the environment'\n")
    (packages / "other.py").write_text("Y = 2\n")
    with Sandbox(Spec(python=str(tmp_path / "venv"), requirements=("hero-base",))) as box:
        code = "import hero_base, other; print(hero_base.X, other.Y)"
        assert box.run(code).stdout == b"15 2\n"
        assert box.exec(["python3", "-c", code]).stdout == b"15 2\n"


def test_a_restricted_box_has_its_requirements(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where users of boxes can enter, which they cannot below the folder of a test.
    folder = tempfile.TemporaryDirectory(prefix="harena-test-", dir="/tmp")
    os.chmod(folder.name, 0o755)
    monkeypatch.setenv("HARENA_PACKAGES", f"{folder.name}/packages")
    code = "import hero_tool, hero_base; print(hero_base.X)"
    try:
        box = Sandbox(Spec(requirements=("hero-tool",), isolation="restricted"))
    except IsolationUnavailable as error:
        pytest.skip(f"host: {error}")
    with box:
        assert box.run(code).stdout == b"15\n"
        assert box.exec(["python3", "-c", code]).stdout == b"15\n"
    PackageStore(Path(folder.name, "packages")).collect()
    folder.cleanup()


def test_the_command_installs_lists_and_removes(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packages", "install", "hero-tool"]) == 0
    assert capsys.readouterr().out == "hero-base==1.5 hero-tool==1.0\n"
    assert main(["packages", "ls"]) == 0
    assert "hero-tool" in capsys.readouterr().out
    assert main(["packages", "gc"]) == 0
    assert "removed 1 sets" in capsys.readouterr().out
    assert main(["packages", "install", "./here"]) == 2
    assert main(["packages", "install", "nosuchthing"]) == 1


def test_an_index_that_does_not_answer_is_no_fault_of_the_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("HARENA_PACKAGES", str(tmp_path / "sets"))
    monkeypatch.setenv("HARENA_PACKAGE_INDEX", f"http://127.0.0.1:{port}/simple/")
    with pytest.raises(BoxError, match="did not answer") as found:
        Sandbox(Spec(requirements=("numpy",)))
    assert not isinstance(found.value, RequirementsFailed)
