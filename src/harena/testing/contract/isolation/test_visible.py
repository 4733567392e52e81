"""What a guest can see of the host, and which rights it has: next to nothing, and none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest

from harena import Sandbox, SandboxPool
from harena.testing.contract.shared import Shared

Look = Callable[[str], Any]


@pytest.fixture(params=["exec", "run", "call", "program"])
def look(request: pytest.FixtureRequest, shared: Shared) -> Look:
    """Evaluates an expression in a guest, by every door; `os` and `read` are there."""
    return lambda expression: see(request.param, shared, expression)


def see(door: str, where: Shared, expression: str, imports: str = "") -> Any:
    prelude = f"import json, os\n{imports}\ndef read(path):\n    return open(path).read()\n"
    source = f"{prelude}print(json.dumps({expression}))"
    if door == "exec":
        result = where.box.exec(["python3", "-c", source])
    elif door == "run":
        result = where.box.run(source)
    elif door == "call":
        result = where.box.call(f"{prelude}def f():\n    print(json.dumps({expression}))", "f")
    else:
        result = where.pool.map([source])[0]
    assert result.ok, result
    return json.loads(result.stdout)


@dataclass
class Fresh:
    """A box and a pool made after what they must not see was put there."""

    box: Sandbox
    pool: SandboxPool


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


ETC = [
    "alternatives",
    "chromium.d",
    "debian_version",
    "fonts",
    "group",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "lsb-release",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki",
    "protocols",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl",
    "terminfo",
    "timezone",
]


def test_etc_has_only_what_tells_nothing_of_the_host(shared: Shared) -> None:
    seen = see("exec", shared, "os.listdir('/etc')")
    assert [name for name in seen if name not in ETC and not name.startswith("java-")] == []
    seen = see("exec", shared, "[n for f, ns, fs in os.walk('/etc/ssl') for n in fs] + os.listdir('/etc/ssl')")
    assert set(seen) <= {"certs", "openssl.cnf", "ca-certificates.crt", "cacerts", "cert.pem"}
    assert see("exec", shared, "time.tzname", "import time") == ["UTC", "UTC"], "wherever the host stands"


def test_software_finds_what_it_looks_for_in_etc(shared: Shared) -> None:
    assert see("exec", shared, "socket.gethostbyname(socket.gethostname())", "import socket") == "127.0.1.1"
    assert see("exec", shared, "socket.getfqdn()", "import socket") == "box"
    names = [name for name in ("services", "protocols", "os-release", "ld.so.conf") if os.path.exists(f"/etc/{name}")]
    assert see("exec", shared, f"[len(read('/etc/' + n)) > 0 for n in {names}]") == [True] * len(names)
    if os.path.exists("/usr/sbin/ldconfig"):
        assert shared.box.exec(["ldconfig", "--version"]).ok, "/usr/sbin is on the PATH"


def test_command_knows_what_terminal_it_has(shared: Shared) -> None:
    def terminal(env: dict[str, str] | None = None, *, pty: bool = True) -> bytes:
        with shared.box.start(["sh", "-c", "echo ${TERM:-none}"], env=env, pty=pty) as process:
            return process.wait().stdout.strip()

    assert terminal() == b"xterm-256color"
    assert terminal({"TERM": "vt100"}) == b"vt100"
    assert terminal(pty=False) in (b"none", b"dumb")


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


@pytest.mark.parametrize("door", ["exec", "run", "call", "program"])
def test_no_descriptor_of_the_host_is_inherited(
    make_box: Callable[..., Sandbox], make_pool: Callable[..., SandboxPool], door: str
) -> None:
    leak = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        fds = "os.listdir('/proc/self/fd')"
        where = Fresh(make_box(), make_pool(warm=0))
        links = see(door, where, f"[os.readlink(p) for n in {fds} if os.path.lexists(p := '/proc/self/fd/' + n)]")
    finally:
        os.close(leak)
    own = ("/proc/", "/dev/null", "/workspace", "/memfd:")
    assert [link for link in links if link.startswith("/") and not link.startswith(own)] == []
    assert len(links) <= 7
    assert sum(link.startswith("socket:") for link in links) <= 2, "the interpreter has two, to speak and to be forked"


def test_network_is_a_loopback_at_most(look: Look) -> None:
    names = look("[line.split(':')[0].strip() for line in read('/proc/net/dev').splitlines()[2:]]")
    assert names in (["lo"], [])


@pytest.mark.parametrize("door", ["exec", "run", "call", "program"])
def test_environment_is_made_for_the_box(
    make_box: Callable[..., Sandbox],
    make_pool: Callable[..., SandboxPool],
    monkeypatch: pytest.MonkeyPatch,
    door: str,
) -> None:
    monkeypatch.setenv("HARENA_TEST_SECRET", "s3cret")
    seen = see(door, Fresh(make_box(), make_pool(warm=0)), "dict(os.environ)")
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
