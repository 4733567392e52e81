"""What a spec asks for is in the box, and nothing else of the host is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harena import (
    BackendUnavailable,
    HarenaError,
    IsolationUnavailable,
    Mount,
    Sandbox,
    SandboxPool,
    SpecError,
    Verdict,
)

MakeBox = Callable[..., Sandbox]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that any user of the host may read, not below /tmp, which every box has of its own."""
    place = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="harena-contract-", dir=place) as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_mount_shows_a_folder_read_only(make_box: MakeBox, shared: Path) -> None:
    (shared / "a.txt").write_text("data")
    box = make_box(mounts=(Mount(source=str(shared), target="/data/in"),))
    assert box.exec(["cat", "/data/in/a.txt"]).stdout == b"data"
    assert box.run("print(open('/data/in/a.txt').read())").stdout == b"data\n"
    for line in ("echo x > /data/in/a.txt", "echo x > /data/in/b", "rm /data/in/a.txt", "chmod 777 /data/in/a.txt"):
        assert box.exec(["sh", "-c", line]).verdict is Verdict.EXIT
    assert os.listdir(shared) == ["a.txt"]
    assert (shared / "a.txt").read_text() == "data"


def test_mount_shows_a_single_file(make_box: MakeBox, shared: Path) -> None:
    (shared / "a.txt").write_text("data")
    (shared / "b.txt").write_text("hidden")
    box = make_box(mounts=(Mount(source=str(shared / "a.txt"), target="/workspace/given/a.txt"),))
    assert box.exec(["ls", "given"]).stdout == b"a.txt\n"
    assert box.read("given/a.txt") == b"data"


def test_mount_is_there_for_programs_of_a_pool(make_pool: Callable[..., SandboxPool], shared: Path) -> None:
    (shared / "a.txt").write_text("data")
    pool = make_pool(mounts=(Mount(source=str(shared), target="/data"),))
    assert pool.map(["print(open('/data/a.txt').read())"])[0].stdout == b"data\n"


def test_writable_mount_lets_the_box_write(make_box: MakeBox, shared: Path) -> None:
    (shared / "a.txt").write_text("old")
    box = make_box(mounts=(Mount(source=str(shared), target="/data", writable=True),))
    result = box.exec(["sh", "-c", "cat /data/a.txt && echo new > /data/a.txt && mkdir /data/d && echo x > /data/d/b"])
    assert (result.verdict, result.stdout) == (Verdict.OK, b"old"), result
    assert (shared / "a.txt").read_text() == "new\n"
    assert (shared / "d" / "b").read_text() == "x\n"
    assert (shared / "d" / "b").stat().st_uid == os.geteuid(), "what it makes belongs to whoever made the box"


def test_writable_mount_gives_no_setuid_file(make_box: MakeBox, shared: Path) -> None:
    shared.chmod(0o777)
    box = make_box(mounts=(Mount(source=str(shared), target="/data", writable=True),))
    box.exec(["sh", "-c", "cp /bin/true /data/t; chmod 6755 /data/t"])
    assert not [path for path in shared.iterdir() if path.stat().st_mode & 0o6000]


@pytest.mark.parametrize("target", ["/", "/proc", "/proc/sys", "/dev/null", "/sys", "/workspace", "/tmp", "/.harena/x"])
def test_mount_over_what_the_box_needs_is_refused(make_box: MakeBox, shared: Path, target: str) -> None:
    with pytest.raises(SpecError, match="keeps this place"):
        make_box(mounts=(Mount(source=str(shared), target=target),))


def test_mount_of_nothing_is_refused(make_box: MakeBox) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        make_box(mounts=(Mount(source="/no/such/folder", target="/data"),))


def test_environment_is_there_for_every_door(make_box: MakeBox, make_pool: Callable[..., SandboxPool]) -> None:
    box = make_box(env={"MODE": "a b", "HOME": "/tmp"})
    source = "import os\nprint(os.environ['MODE'], os.environ['HOME'])"
    assert box.exec(["sh", "-c", "echo $MODE $HOME"]).stdout == b"a b /tmp\n"
    assert box.run(source).stdout == b"a b /tmp\n"
    assert box.call("import os\ndef f():\n    return os.environ['MODE']", "f").value == "a b"
    assert make_pool(env={"MODE": "a b", "HOME": "/tmp"}).map([source])[0].stdout == b"a b /tmp\n"


def test_packages_are_absent_unless_named(make_box: MakeBox) -> None:
    box = make_box()
    for result in (box.exec(["python3", "-c", "import pluggy"]), box.run("import pluggy")):
        assert result.verdict is Verdict.EXIT
        assert b"ModuleNotFoundError" in result.stderr


def test_named_packages_can_be_imported(make_box: MakeBox, make_pool: Callable[..., SandboxPool]) -> None:
    box = make_box(packages=("pluggy",))
    source = "import pluggy\nprint(pluggy.__name__)"
    for result in (
        box.exec(["python3", "-c", source]),
        box.run(source),
        make_pool(packages=("pluggy",)).map([source])[0],
    ):
        assert (result.verdict, result.stdout) == (Verdict.OK, b"pluggy\n"), result
    assert box.run("import iniconfig").verdict is Verdict.EXIT, "others stay absent"


def test_what_a_package_requires_comes_along(make_box: MakeBox) -> None:
    assert make_box(packages=("pytest",)).run("import pluggy, iniconfig, packaging").ok


def test_unknown_package_is_refused(make_box: MakeBox) -> None:
    with pytest.raises(SpecError, match="no-such-package"):
        make_box(packages=("no_such.Package",))


def test_preloaded_modules_are_imported_before_any_program(
    make_box: MakeBox, make_pool: Callable[..., SandboxPool]
) -> None:
    source = "import sys\nprint('pluggy' in sys.modules, 'csv' in sys.modules)"
    with_them = {"packages": ("pluggy",), "preload": ("pluggy", "csv")}
    assert make_box(**with_them).run(source).stdout == b"True True\n"
    assert make_pool(**with_them).map([source])[0].stdout == b"True True\n"
    assert make_box().run(source).stdout == b"False False\n"


def test_preload_that_does_not_import_is_named(make_box: MakeBox) -> None:
    box = make_box(preload=("no_such_module",))
    with pytest.raises(HarenaError, match="no_such_module"):
        box.run("pass")


def test_python_of_a_virtual_environment_comes_with_its_packages(make_box: MakeBox) -> None:
    if sys.prefix == sys.base_prefix:
        pytest.skip("host: the tests do not run in a virtual environment")
    box = make_box(python=sys.prefix)
    source = "import pluggy, sys\nprint(sys.prefix)"
    for result in (box.run(source), box.exec(["python3", "-c", source])):
        assert result.stdout.decode().endswith(f"{sys.prefix}\n"), result


def test_python_that_is_none_is_refused(make_box: MakeBox, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no interpreter"):
        make_box(python=str(tmp_path))


HELLO = r"""
#include <stdio.h>
#include <unistd.h>
int main(void) { printf("hello %d %d\n", access("/usr/bin", F_OK), access("/etc/from-rootfs", F_OK)); return 0; }
"""


@pytest.fixture
def rootfs(shared: Path) -> Path:
    """A root file system with one static program and one file."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("host: no C compiler")
    root = shared / "rootfs"
    (root / "bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc" / "from-rootfs").write_text("1")
    (shared / "hello.c").write_text(HELLO)
    build = [compiler, "-static", "-o", str(root / "bin" / "hello"), str(shared / "hello.c")]
    if subprocess.run(build, capture_output=True, check=False).returncode:
        pytest.skip("host: no static C library")
    return root


def test_rootfs_takes_the_place_of_the_hosts_system(make_box: MakeBox, rootfs: Path) -> None:
    box = make_box(rootfs=str(rootfs))
    result = box.exec(["/bin/hello"])
    assert (result.verdict, result.stdout) == (Verdict.OK, b"hello -1 0\n")
    assert box.exec(["/usr/bin/env"]).exit_code == 127


def test_rootfs_is_read_only(make_box: MakeBox, rootfs: Path) -> None:
    (rootfs / "bin" / "sh").symlink_to("hello")
    box = make_box(rootfs=str(rootfs))
    assert box.exec(["hello"], cwd="/tmp").ok
    assert sorted(path.name for path in rootfs.rglob("*")) == ["bin", "etc", "from-rootfs", "hello", "sh"]


def test_rootfs_that_is_none_is_refused(make_box: MakeBox) -> None:
    with pytest.raises(SpecError, match="rootfs"):
        make_box(rootfs="/no/such/folder")


def test_hostname(make_box: MakeBox) -> None:
    assert make_box().exec(["uname", "-n"]).stdout == b"box\n"
    assert make_box(hostname="arena-7").exec(["uname", "-n"]).stdout == b"arena-7\n"


@pytest.mark.parametrize("size_mb", [1, 20])
def test_workspace_and_tmp_have_the_size_asked_for(make_box: MakeBox, size_mb: int) -> None:
    source = (
        "import os\nfor path in ('/workspace', '/tmp'):\n"
        "    s = os.statvfs(path)\n    print(s.f_blocks * s.f_frsize >> 20)"
    )
    assert make_box(workspace_mb=size_mb).run(source).stdout.split() == [str(size_mb).encode()] * 2


def test_unknown_backend_is_told_with_those_there_are() -> None:
    with pytest.raises(BackendUnavailable, match="local"):
        Sandbox(backend="no-such-backend")


def test_python_that_cannot_start_is_quoted(make_box: Callable[..., Sandbox]) -> None:
    box = make_box(preload=("no_such_module",))
    with pytest.raises(IsolationUnavailable, match="No module named 'no_such_module'") as caught:
        box.run("1")
    assert "3.8" in str(caught.value)


def test_oldest_python_that_is_supported_works(make_box: Callable[..., Sandbox]) -> None:
    minimum = "3.8"
    oldest = next(Path(sys.base_prefix).parent.glob(f"{minimum}.*/bin/python3"), None)
    if oldest is None:
        pytest.skip(f"host: no Python {minimum}")
    box = make_box(python=str(oldest))
    box.write("module.py", "value = 42")
    assert box.run("import sys, module; print(*sys.version_info[:2], module.value)").stdout == (
        f"{minimum.replace('.', ' ')} 42\n".encode()
    )
    assert box.exec(["echo", "hello"]).stdout == b"hello\n"
    assert box.run("1 / 0").stderr.endswith(b"ZeroDivisionError: division by zero\n")


def test_python_that_is_too_old_is_named_with_the_oldest_that_does(make_box: Callable[..., Sandbox]) -> None:
    old = next(Path(sys.base_prefix).parent.glob("3.[67].*/bin/python3"), None)
    if old is None:
        pytest.skip("host: no Python older than boxes support")
    with pytest.raises(IsolationUnavailable, match=r"3\.8 or newer"):
        make_box(python=str(old)).run("1")
