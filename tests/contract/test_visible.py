"""What a guest can see of the host, and which rights it has: next to nothing, and none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from harena import Sandbox, SandboxPool

Look = Callable[[str], Any]


@pytest.fixture(params=["exec", "run", "call", "program"])
def look(
    request: pytest.FixtureRequest, make_box: Callable[..., Sandbox], make_pool: Callable[..., SandboxPool]
) -> Look:
    """Evaluates an expression in a guest, by every door; `os` and `read` are there."""
    prelude = "import json, os\ndef read(path):\n    return open(path).read()\n"

    def see(expression: str) -> Any:
        source = f"{prelude}print(json.dumps({expression}))"
        if request.param == "exec":
            result = make_box().exec(["python3", "-c", source])
        elif request.param == "run":
            result = make_box().run(source)
        elif request.param == "call":
            result = make_box().call(f"{prelude}def f():\n    print(json.dumps({expression}))", "f")
        else:
            result = make_pool().map([source])[0]
        assert result.ok, result
        return json.loads(result.stdout)

    return see


STATUS = "dict(line.split(':\\t', 1) for line in read('/proc/self/status').splitlines())"


def test_guest_has_no_rights(look: Look) -> None:
    status = look(STATUS)
    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == ["0" * 16] * 4
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split() == status["Gid"].split() == ["1000"] * 4
    assert status["Groups"].split() in ([], ["65534"], ["1000"])


def test_root_has_only_what_is_needed(look: Look) -> None:
    system = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc"}
    own = {"proc", "dev", "tmp", "workspace", ".harena"}
    python = {PurePosixPath(sys.base_prefix).parts[1]}
    assert set(look("os.listdir('/')")) <= system | own | python


def test_home_folders_show_nothing_but_the_way_to_the_interpreter(look: Look) -> None:
    seen = look("[os.path.join(f, n) for top in ('/root', '/home') for f, ns, fs in os.walk(top) for n in ns + fs]")
    way = PurePosixPath(sys.base_prefix)
    assert [path for path in seen if not (PurePosixPath(path) in way.parents or path.startswith(str(way)))] == []


def test_sys_is_absent(look: Look) -> None:
    assert look("os.path.isdir('/sys') and os.listdir('/sys')") in (False, [])


@pytest.mark.parametrize(
    "path", ["/var", "/run", "/srv", "/mnt", "/media", "/opt", "/boot", "/lost+found", "/etc/shadow"]
)
def test_other_folders_are_absent(box: Sandbox, path: str) -> None:
    if PurePosixPath(path) in PurePosixPath(sys.base_prefix).parents:
        pytest.skip("host: Python is installed there")
    assert box.exec(["test", "-e", path]).exit_code == 1


def test_proc_shows_only_its_own_processes(look: Look) -> None:
    with subprocess.Popen(["sleep", "54321.25"]) as outside:
        seen = look("[read(f'/proc/{pid}/cmdline') for pid in os.listdir('/proc') if pid.isdigit()]")
        outside.kill()
    assert 1 <= len(seen) <= 3
    assert not any("54321.25" in line for line in seen)


def test_devices_are_the_harmless_ones(look: Look) -> None:
    harmless = {
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "pts",
        "ptmx",
        "shm",
        "fd",
        "stdin",
        "stdout",
        "stderr",
    }
    assert set(look("os.listdir('/dev')")) <= harmless
    assert look("[open('/dev/null', 'w').write('x'), len(open('/dev/urandom', 'rb').read(8))]") == [1, 8]


def test_no_descriptor_of_the_host_is_inherited(look: Look) -> None:
    leak = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        links = look(
            "[os.readlink(p) for fd in os.listdir('/proc/self/fd') if os.path.lexists(p := f'/proc/self/fd/{fd}')]"
        )
    finally:
        os.close(leak)
    outside = [
        link for link in links if link.startswith("/") and not link.startswith(("/proc/", "/dev/null", "/workspace"))
    ]
    assert outside == []
    assert len(links) <= 7
    assert sum(link.startswith("socket:") for link in links) <= 2, "the interpreter has two, to speak and to be forked"


def test_network_is_a_loopback_at_most(look: Look) -> None:
    names = look("[line.split(':')[0].strip() for line in read('/proc/net/dev').splitlines()[2:]]")
    assert names in (["lo"], [])


def test_environment_is_made_for_the_box(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_TEST_SECRET", "s3cret")
    seen = look("dict(os.environ)")
    assert "s3cret" not in seen.values()
    assert (seen["HOME"], seen["USER"], seen["TMPDIR"]) == ("/workspace", "box", "/tmp")
    assert set(seen) <= {"PATH", "HOME", "USER", "TMPDIR", "LANG", "PYTHONDONTWRITEBYTECODE", "LC_CTYPE", "PWD"}


def test_only_workspace_tmp_and_shm_can_be_written(box: Sandbox) -> None:
    source = (
        "import os\n"
        "tops = {'/' + name for name in os.listdir('/')} | {'/', '/usr/bin', '/dev/shm', '/dev/pts', '/etc'}\n"
        "for top in sorted(tops):\n"
        "    try:\n        open(top + '/.probe', 'w').close()\n        print(top)\n"
        "    except OSError:\n        pass\n"
    )
    for result in (box.run(source), box.exec(["python3", "-c", source])):
        assert result.stdout.split() == [b"/dev/shm", b"/tmp", b"/workspace"]


def test_files_of_a_guest_are_its_own_to_write(look: Look) -> None:
    assert look("os.umask(0)") == 0o022


def test_clock_of_the_host_cannot_be_set(box: Sandbox) -> None:
    source = (
        "import time\n"
        "try:\n    time.clock_settime(time.CLOCK_REALTIME, 0)\n"
        "except OSError as error:\n    print(error.errno)"
    )
    assert box.run(source).stdout == b"1\n"
