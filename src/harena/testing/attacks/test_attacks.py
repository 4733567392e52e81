"""Runs the attacks: every folder beside this file is an attacker's script and what must come of it.

An attack goes in through the doors it names: `exec` as a command of a session box, `run` into its persistent
interpreter, `program` as a fresh program of a pool. The host offers it real targets (listeners on its own loopback, a
secret file, a process), and after each one nothing of them may have been touched, nothing of the attack may be left,
and the same door must still work. Adding an attack needs no Python here; the keys of expect.toml are those of `Attack`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import socket
import stat
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from harena import Limits, Result, Sandbox, SandboxPool, Verdict
from harena.errors import BoxError, BoxFileError, IsolationUnavailable, WireError
from harena.sandbox import backend
from harena.testing import BACKEND, IMAGE, forget_what_was_found, make_spec

HERE = Path(__file__).parent
TOOLKIT = (HERE / "attacker.py").read_text()
DOORS = ("exec", "run", "program")
LIMITS = {"wall_s": 10, "memory_mb": 256, "processes": 32}
PATIENCE_S = 60
"""Beyond its wall clock an answer may take this long on a busy machine. What attacks wait for takes far longer."""
BOUNDS = Limits(**LIMITS)
SMALL = Limits(wall_s=10, memory_mb=64, processes=8)
"""Enough for a bystander, and too little for one that is charged for what an attack left."""
LOST = (BoxError, WireError)
ISOLATION = ("full", "restricted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    name: str
    source: str
    shell: bool
    next: str | None
    """next.py, a program that follows the attack and looks for what it left."""
    reason: str
    how: list[str]
    verdict: str | list[str]
    """What may come of it; "lost" is a clear error of this box, then or afterwards, while a new one works."""
    stdout: str | None = None
    """Its last line of output."""
    exit_code: int | None = None
    machine: str | None = None
    needs_cgroup: bool = False
    """Held by a memory cgroup alone: see docs/threat-model.md on hosts without one."""
    without_cgroup: bool = False
    """Also tried where no cgroup counts memory, by its first door."""
    in_image: str = ""
    """Why root of an image may do what it tries: there only the host and other boxes must be untouched."""
    own_box: bool = False
    """It may ruin its box: it gets one of its own."""
    max_s: float | None = None
    """How long the answer may take; by default its wall clock and PATIENCE_S."""
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    restricted: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else may come of it in the restricted tier: another `verdict`, what is `visible` there and in full boxes is
    not (beginnings of what it reports), and `why`."""
    after: dict[str, str] = field(default_factory=dict[str, str])
    """What the owner of the box does next: read, write, list, download, or race (write while the attack runs)."""

    def in_tier(self, isolation: str) -> Attack:
        """Return the attack with what is expected in that tier."""
        if isolation != "restricted" or not self.restricted:
            return dataclasses.replace(self, restricted={})
        changed = {name: self.restricted[name] for name in ("verdict", "own_box") if name in self.restricted}
        return dataclasses.replace(self, **changed)

    @property
    def verdicts(self) -> list[str]:
        return [self.verdict] if isinstance(self.verdict, str) else self.verdict

    @property
    def bounds(self) -> Limits:
        return Limits(**(LIMITS | self.limits))


def load(folder: Path) -> Attack:
    scripts = [path for path in (folder / "attack.py", folder / "attack.sh") if path.exists()]
    following = folder / "next.py"
    expect = tomllib.loads((folder / "expect.toml").read_text())
    attack = Attack(
        name=folder.name,
        source=scripts[0].read_text(),
        shell=scripts[0].suffix == ".sh",
        next=following.read_text() if following.exists() else None,
        **expect,
    )
    if not attack.how or not set(attack.how) <= set(DOORS) or len(scripts) != 1:
        raise ValueError(f"{folder.name}: needs one attack script, and how to run it out of {DOORS}")
    return attack


ATTACKS = [load(path.parent) for path in sorted(HERE.glob("*/expect.toml"))]
CASES = [pytest.param(attack, door, id=f"{attack.name}-{door}") for attack in ATTACKS for door in attack.how]


class Target:
    """What an attacker would like to reach, each of it real, and whether it was reached."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"esc{os.getpid():x}{os.urandom(3).hex()}"[:15]
        self.secret_text = os.urandom(16).hex()
        self.folder = folder
        self.secret = folder / "secret"
        self.shm_secret = Path("/dev/shm") / self.mark
        # Readable by everyone: what hides them must be the box, and not a mode.
        folder.chmod(0o755)
        for path in (self.secret, self.shm_secret):
            path.write_text(self.secret_text)
            path.chmod(0o644)
        self.tcp = _bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self.udp = _bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self.stream = _bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.mark}.stream")
        self.dgram = _bound(socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{self.mark}.dgram")
        self.path = _bound(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        self.victim = subprocess.Popen([f"victim-{self.mark}", "600"], executable="/bin/sleep")
        self.hostname = socket.gethostname()
        self.files = sorted(os.listdir(folder))

    def target(self) -> dict[str, Any]:
        return {
            "mark": self.mark,
            "secret": str(self.secret),
            "shm_secret": str(self.shm_secret),
            "folder": str(self.folder),
            "tcp_port": self.tcp.getsockname()[1],
            "udp_port": self.udp.getsockname()[1],
            "abstract_stream": f"{self.mark}.stream",
            "abstract_dgram": f"{self.mark}.dgram",
            "unix_path": str(self.folder / "socket"),
            "victim_pid": self.victim.pid,
            "victim_name": f"victim-{self.mark}",
            "host_pid": os.getpid(),
            "env_name": "HARENA_ESCAPE_SECRET",
            "env_value": self.secret_text,
        }

    def hits(self) -> list[str]:
        """Listeners that heard something, emptied."""
        heard: list[str] = []
        for name, sock in (("tcp", self.tcp), ("stream", self.stream), ("path", self.path)):
            while (client := _nothing_yet(sock.accept)) is not None:
                client[0].close()
                heard.append(name)
        for name, sock in (("udp", self.udp), ("dgram", self.dgram)):
            while (data := _nothing_yet(lambda sock=sock: sock.recv(4096))) is not None:
                heard.append(f"{name} {data[:40]!r}")
        return heard

    def leftovers(self) -> list[str]:
        """Processes that carry the attacks' mark, after a moment to die in."""
        end = time.monotonic() + 2
        while (found := [pid for pid in os.listdir("/proc") if pid.isdigit() and _comm(pid) == self.mark]) and (
            time.monotonic() < end
        ):
            time.sleep(0.02)
        return found

    def check(self) -> None:
        assert self.hits() == []
        assert self.secret.read_text() == self.shm_secret.read_text() == self.secret_text
        assert sorted(os.listdir(self.folder)) == self.files
        assert self.victim.poll() is None, "a process of the host was killed"
        assert socket.gethostname() == self.hostname
        assert self.leftovers() == []

    def close(self) -> None:
        for sock in (self.tcp, self.udp, self.stream, self.dgram, self.path):
            sock.close()
        self.victim.kill()
        self.victim.wait()
        self.shm_secret.unlink()


def _bound(family: int, kind: int, address: Any) -> socket.socket:
    sock = socket.socket(family, kind)
    sock.setblocking(False)
    sock.bind(address)
    if kind == socket.SOCK_STREAM:
        sock.listen()
    return sock


def _nothing_yet(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except BlockingIOError:
        return None


def _comm(pid: str) -> str:
    try:
        return Path("/proc", pid, "comm").read_text().strip()
    except OSError:
        return ""


class Attacked:
    """A box and a pool under attack, each made when first used."""

    def __init__(self, target: dict[str, Any], limits: Limits = BOUNDS) -> None:
        self.target = target
        self.limits = limits

    @cached_property
    def box(self) -> Sandbox:
        box = Sandbox(make_spec(), backend=BACKEND or "local", limits=self.limits)
        box.write("attacker.py", TOOLKIT.encode())
        return box

    @cached_property
    def pool(self) -> SandboxPool:
        return SandboxPool(make_spec(), warm=1, backend=BACKEND or "local", limits=self.limits)

    def attack(self, attack: Attack, door: str) -> Result:
        if door == "program":
            return self.programs(attack.source, attack.bounds)[0]
        if door == "run":
            return self.box.run(self.inline(attack.source))
        return self.box.exec(self.command(attack), stdin=json.dumps(self.target).encode(), limits=attack.bounds)

    def programs(self, source: str, limits: Limits | None = None, copies: int = 1) -> list[Result]:
        return self.pool.map([self.inline(source)] * copies, limits=limits)

    def command(self, attack: Attack) -> list[str]:
        file = "attack.sh" if attack.shell else "attack.py"
        self.box.write(file, attack.source.encode())
        return ["sh" if attack.shell else "python3", file]

    def inline(self, source: str) -> str:
        """The source with its toolkit and target in front, for doors that take no second file."""
        return (
            "import sys, types\n"
            "toolkit = sys.modules['attacker'] = types.ModuleType('attacker')\n"
            f"toolkit.TARGET = {self.target!r}\n"
            f"exec({TOOLKIT!r}, vars(toolkit))\n"
            f"{source}"
        )

    def works(self, door: str) -> None:
        if door == "program":
            results = self.pool.map(["print(6 * 7)"] * 2, limits=SMALL)
        elif door == "run":
            results = [self.box.run("print(6 * 7)"), self.box.call("def f():\n    print(6 * 7)", "f", limits=SMALL)]
        else:
            results = [self.box.exec(["python3", "-ISc", "print(6 * 7)"], limits=SMALL)]
        # What the interpreter left running in the background may still write, before and after.
        assert all(result.ok and b"42" in result.stdout.splitlines() for result in results), results
        if door != "program":
            assert b"Linux" in self.box.read("/proc/version")

    def close(self) -> None:
        for name in ("box", "pool"):
            if name in vars(self):
                getattr(self, name).close()


@pytest.fixture(scope="module")
def host() -> Iterator[Target]:
    # Not below /tmp, which every box has of its own and which would hide the secret whatever else is visible.
    shared = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="harena-escape-", dir=shared) as folder:
        host = Target(Path(folder))
        yield host
        host.close()


CHOSEN_TIER = "HARENA_ISOLATION" in os.environ or bool(BACKEND)
TIERS = (
    [os.environ.get("HARENA_ISOLATION", "full")]
    if CHOSEN_TIER
    else [tier if tier == "full" else pytest.param(tier, marks=pytest.mark.thorough) for tier in ISOLATION]
)


@pytest.fixture(scope="module", params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARENA_ISOLATION", request.param)
        try:
            backend.load(BACKEND or "local").capabilities()
        except IsolationUnavailable as error:
            pytest.skip(f"host: {request.param}: {error}")
        yield request.param


@pytest.fixture(scope="module")
def ring(host: Target, tier: str) -> Iterator[Attacked]:
    os.environ["HARENA_ESCAPE_SECRET"] = host.secret_text
    with closing(Attacked(host.target())) as ring:
        yield ring
    del os.environ["HARENA_ESCAPE_SECRET"]


@pytest.mark.parametrize(("attack", "door"), CASES)
def test_attack_is_held(attack: Attack, door: str, ring: Attacked, host: Target, tier: str, tmp_path: Path) -> None:
    if attack.machine not in (None, platform.machine()):
        pytest.skip(f"host: only on {attack.machine}")
    if attack.needs_cgroup and not backend.load(BACKEND or "local").capabilities().counts_memory:
        pytest.skip("host: no cgroup that counts memory, see docs/threat-model.md")
    # An attack's limits on `run` are those of the box.
    # In an image a guest may change every file, and what it changed is the next one's.
    if not (attack.in_tier(tier).own_box or IMAGE or (door == "run" and attack.limits)):
        hold(attack, door, ring, host, tmp_path)
        return
    if IMAGE and attack.in_image:
        hold_outside(attack, door, host)
        return
    with closing(Attacked(host.target(), attack.bounds)) as own:
        own.works(door)  # so that the clock of the attack does not measure the start of a box
        hold(attack, door, own, host, tmp_path)
    host.check()


@pytest.fixture(scope="module")
def no_cgroups() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARENA_CGROUPS", "off")
        forget_what_was_found()
        yield
    forget_what_was_found()


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.without_cgroup], ids=lambda attack: attack.name)
def test_memory_is_held_without_a_cgroup(
    attack: Attack, no_cgroups: None, tier: str, host: Target, tmp_path: Path
) -> None:
    with closing(Attacked(host.target(), attack.bounds)) as own:
        hold(attack, attack.how[0], own, host, tmp_path)


def hold(attack: Attack, door: str, ring: Attacked, host: Target, folder: Path) -> None:
    try:
        if "race" in attack.after:
            race(attack, ring)
        else:
            start = time.monotonic()
            judge_result(attack, ring.attack(attack, door))
            assert time.monotonic() - start < (attack.max_s or attack.bounds.wall_s + PATIENCE_S)
        host.check()
        for action, path in attack.after.items():
            AFTER[action](ring.box, path, host, folder)
        if attack.next is not None:
            found = dataclasses.replace(attack, verdict="ok", stdout="denied", exit_code=None)
            for result in ring.programs(attack.next, copies=4):
                judge_result(found, result)
        ring.works(door)
    except LOST:
        if "lost" not in attack.verdicts:
            raise
        with closing(Attacked(ring.target)) as new:
            new.works(door)
    host.check()


def hold_outside(attack: Attack, door: str, host: Target) -> None:
    with closing(Attacked(host.target(), attack.bounds)) as own, closing(Attacked(host.target())) as other:
        with suppress(*LOST):  # what it did to its own box is its own affair
            result = own.attack(attack, door)
            assert host.secret_text.encode() not in result.stdout + result.stderr
        host.check()
        other.works(door)
    host.check()


def judge_result(attack: Attack, result: Result) -> None:
    attack = attack.in_tier(result.isolation)
    shown = dataclasses.replace(result, stdout=result.stdout[-2000:], stderr=result.stderr[-2000:])
    lines = (result.stdout + result.stderr).splitlines()
    visible = tuple(f"ESCAPED: {one}".encode() for one in attack.restricted.get("visible", ()))
    assert not [line for line in lines if b"ESCAPED" in line and not line.startswith(visible or b"\0")], shown
    if any(line.startswith(visible or b"\0") for line in lines):
        return
    assert result.verdict.value in attack.verdicts, shown
    if attack.exit_code is not None:
        assert result.exit_code == attack.exit_code, shown
    if attack.stdout is not None and result.verdict in (Verdict.OK, Verdict.EXIT):
        assert (result.stdout.splitlines() or [b""])[-1] == attack.stdout.encode(), shown


def after_read(box: Sandbox, path: str, host: Target, folder: Path) -> None:
    try:
        data = box.read(path, max_bytes=1 << 20)
    except BoxFileError:
        return
    assert host.secret_text.encode() not in data
    assert data == box.exec(["cat", path]).stdout, "the owner was shown another file than the box sees"


def after_write(box: Sandbox, path: str, host: Target, folder: Path) -> None:
    with suppress(BoxFileError):
        box.write(path, b"planted")


def after_list(box: Sandbox, path: str, host: Target, folder: Path) -> None:
    with suppress(BoxFileError):
        box.list(path)


def after_download(box: Sandbox, path: str, host: Target, folder: Path) -> None:
    local = folder / "download"
    with suppress(BoxFileError):
        box.download(path, str(local))
    for parent, folders, files in os.walk(local):
        for name in folders + files:
            here = os.path.join(parent, name)
            mode = os.lstat(here).st_mode
            assert os.path.realpath(here).startswith(f"{os.path.realpath(local)}/"), f"{here} leads out"
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), here
            assert not mode & 0o6000 or stat.S_ISLNK(mode), here


AFTER = {"read": after_read, "write": after_write, "list": after_list, "download": after_download, "race": after_write}


def race(attack: Attack, ring: Attacked) -> None:
    """The owner writes while the attack runs."""
    process = ring.box.start(ring.command(attack), limits=attack.bounds)
    process.write(json.dumps(ring.target).encode())
    process.close_stdin()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        with suppress(BoxFileError):
            ring.box.write(attack.after["race"], b"planted")
    process.kill()
    process.wait()


def test_targets_are_reachable_from_the_host(host: Target) -> None:
    """The control, without which a held attack would prove nothing."""
    target = host.target()
    for family, kind, address in (
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", target["tcp_port"])),
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", target["udp_port"])),
        (socket.AF_UNIX, socket.SOCK_STREAM, "\0" + target["abstract_stream"]),
        (socket.AF_UNIX, socket.SOCK_DGRAM, "\0" + target["abstract_dgram"]),
        (socket.AF_UNIX, socket.SOCK_STREAM, target["unix_path"]),
    ):
        with socket.socket(family, kind) as client:
            client.connect(address)
            client.send(b"hello")
    assert len(host.hits()) == 5
    assert Path(target["secret"]).read_text() == host.secret_text


@pytest.mark.parametrize("door", DOORS)
def test_an_escape_would_be_seen(door: str, ring: Attacked) -> None:
    source = "import os\nfrom attacker import attempt, finish\nattempt('a thing allowed', os.getpid)\nfinish()\n"
    attack = dataclasses.replace(ATTACKS[0], source=source, shell=False, verdict="ok", stdout="denied", limits={})
    with pytest.raises(AssertionError, match="a thing allowed"):
        judge_result(attack, ring.attack(attack, door))


def test_there_are_attacks() -> None:
    assert len(ATTACKS) >= 70
    assert all(attack.reason for attack in ATTACKS)
