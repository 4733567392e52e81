"""No program finds in memory what the host gave to another, or what another wrote: see planted.py."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from harena import Limits, Sandbox, SandboxPool
from harena.testing.contract.conftest import MakeBox, Variant
from harena.testing.contract.planted import LETTERS, Mark

WIDE = Limits(wall_s=60, cpu_s=60)


def test_a_scanner_finds_what_is_there(pool: SandboxPool) -> None:
    """The control, without which the others would prove nothing."""
    mark = Mark()
    own = f"kept = {mark.secret('o')!r}\n"
    part = f"part = {mark.secret('p')[3:15]!r}\n"
    (one, two) = pool.map([own + mark.scanner(), part + mark.scanner()], limits=WIDE)
    assert mark.found(one.stdout.decode()) == "o", one
    assert mark.found(two.stdout.decode()) == "p", two


def test_programs_of_a_batch_find_nothing_of_each_other(pool: SandboxPool) -> None:
    mark = Mark()
    programs: list[str] = []
    stdin: list[bytes] = []
    for door in "abcd":
        programs += [mark.holds(door), "import sys\nsys.stdin.read()\n", mark.scanner()]
        stdin += [b"", mark.secret(door.upper()).encode() * 100, b""]
    for door, where in zip("efgh", ("stdout", "stderr") * 2, strict=True):
        programs += [mark.says(door, where), mark.scanner()]
        stdin += [b"", b""]
    programs += [mark.holds("z") + "#" * 300_000, "print('x' * 300_000)\n" + mark.says("y"), mark.scanner()]
    stdin += [b"", b"", b""]
    results = pool.map(programs, stdin=stdin, limits=WIDE)
    assert all(result.ok for result in results), [result for result in results if not result.ok]
    scans = [result for result in results if result.stdout.startswith(b"[")]
    assert len(scans) == 9
    assert [mark.found(result.stdout.decode()) for result in scans] == [""] * 9
    # What was made ahead of the next batch comes after all of this one.
    later = pool.map([mark.scanner()] * 4, limits=WIDE)
    assert [mark.found(result.stdout.decode()) for result in later] == [""] * 4


def test_a_group_finds_nothing_of_an_earlier_one(pool: SandboxPool) -> None:
    mark = Mark()
    first = [mark.holds("a"), mark.says("b"), mark.says("c", "stderr"), mark.holds("d")]
    assert all(result.ok for result in pool.map(first * 2, group=4))
    for result in pool.map([mark.scanner(), mark.scanner()], group=1, limits=WIDE):
        assert mark.found(result.stdout.decode()) == "", result


def talk(box: Sandbox, source: str, packet: bytes) -> bytes:
    """One packet there, one back."""
    process = box.converse(source, limits=WIDE).met()
    try:
        process.send(packet)
        return next(data for data in iter(lambda: process.receive(60), b"") if data is not None)
    finally:
        process.end()


ECHO = "import socket\nsock = socket.socket(fileno=5)\nsock.send(sock.recv(1 << 16))\n"


def plant(box: Sandbox, mark: Mark, doors: str) -> None:
    """One secret through each way into and out of a box, but for `run`."""
    secret = [mark.secret(door) for door in doors]
    assert box.call(
        mark.holds(doors[0]) + "def f(text, *, key):\n    return 1\n", "f", [secret[1]], {"key": secret[2]}
    ).ok
    assert box.call(mark.says(doors[3]) + mark.says(doors[4], "stderr") + "def f():\n    return 1\n", "f").ok
    source = f"def f():\n    return bytes((byte - 77) % 256 for byte in {mark.shifted(secret[5])}).decode()\n"
    assert box.call(source, "f").value == secret[5]
    said = box.exec(
        ["sh", "-c", "cat; echo $X; echo $0 >&2", secret[6]], env={"X": secret[7]}, stdin=secret[8].encode()
    )
    assert secret[8].encode() in said.stdout
    assert secret[6].encode() in said.stderr
    assert not box.exec(["true"], cwd=f"/nowhere/{secret[9]}").ok
    box.write("planted", secret[10].encode())
    assert box.read("planted") == secret[10].encode()
    box.remove("planted")
    assert talk(box, mark.holds(doors[11]) + ECHO, secret[12].encode()) == secret[12].encode()


def scans(box: Sandbox, mark: Mark) -> dict[str, str]:
    """What a scanner finds through each way into a box, but for `run`."""
    send = (
        "import json, socket\nsock = socket.socket(fileno=5)\nsock.recv(1)\nsock.send(json.dumps(answer()).encode())\n"
    )
    found = {
        "call": mark.found(box.call(mark.function(), "answer", limits=WIDE).value),
        "exec": mark.found(box.exec(["python3", "-ISc", mark.scanner()], limits=WIDE).stdout.decode()),
        "talk": mark.found(talk(box, mark.function() + send, b"x").decode()),
    }
    return {way: doors for way, doors in found.items() if doors}


def test_a_box_finds_nothing_of_what_went_through_it(make_box: MakeBox, variant: Variant) -> None:
    mark = Mark()
    other = make_box(env={"SECRET": mark.secret("E")})
    assert mark.secret("E").encode() in other.exec(["sh", "-c", "echo $SECRET"]).stdout
    box = make_box(limits=WIDE)
    plant(box, mark, LETTERS)
    plant(box, mark, LETTERS)
    assert mark.found(box.run(mark.scanner()).stdout.decode()) == ""
    assert scans(box, mark) == {}
    # What the interpreter was given is its own, and its forks'.
    assert box.run(mark.holds("R") + mark.says("S")).ok
    assert scans(box, mark) == {}
    if variant.name not in ("bubblewrap", "restricted"):
        (fork,) = box.fork()
        with fork:
            plant(fork, mark, LETTERS)
            assert scans(fork, mark) == {}
            assert set(mark.found(fork.run(mark.scanner()).stdout.decode())) <= set("RS")
            # Files are copied for a fork; what is in one view is not for another.
            fork.write(mark.secret("F")[:30], mark.secret("G").encode() * 1000)
            assert fork.exec(["ln", "-s", mark.secret("H"), "link"]).ok
            for grandchild in fork.fork():
                assert grandchild.read(mark.secret("F")[:30]) == mark.secret("G").encode() * 1000
                grandchild.close()
        assert scans(box, mark) == {}


def test_nothing_of_another_process_can_be_opened(box: Sandbox) -> None:
    """A job's init shares the memory of what starts jobs."""
    source = """
def opened():
    import os
    found = []
    try:
        pids = os.listdir("/proc")
    except PermissionError:
        pids = [str(os.getppid() + step) for step in range(-40, 40)]
    for pid in pids:
        if pid.isdigit() and int(pid) != os.getpid():
            names = ["mem", "maps", "environ", "auxv", "stack", "syscall", "pagemap"]
            try:
                names += ["fd/" + number for number in os.listdir(f"/proc/{pid}/fd")]
            except OSError:
                pass
            for name in names:
                path = f"/proc/{pid}/{name}"
                try:
                    if name.startswith("fd/"):
                        os.readlink(path)
                    elif not open(path, "rb").read(1):
                        continue
                except OSError:
                    continue
                found.append(path)
    return found
"""
    assert box.run(source + "print(opened())").stdout == b"[]\n"
    assert box.call(source, "opened").value == []
    for _ in range(3):  # the first starts an init, the next ones may find one that waits
        assert box.exec(["python3", "-ISc", source + "print(opened())"]).stdout == b"[]\n"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_programs_find_nothing(
    make_pool: Callable[..., SandboxPool], capsys: pytest.CaptureFixture[str]
) -> None:
    mark, pool = Mark(), make_pool(warm=2)
    rounds = int(os.environ.get("HARENA_SOAK_PROGRAMS", "10000")) // 50
    found: list[str] = []
    for number in range(rounds):
        door = LETTERS[number % len(LETTERS)]
        secret = mark.secret(door).encode()
        kinds = [
            (mark.holds(door), b""),
            ("import sys\nsys.stdin.read()\n", secret * (1 + number % 7 * 500)),
            (mark.says(door), b""),
            (mark.says(door, "stderr"), secret),
            (mark.scanner(everything=False), b""),
        ]
        results = pool.map([source for source, _ in kinds] * 10, stdin=[data for _, data in kinds] * 10, limits=WIDE)
        assert all(result.ok for result in results), next(result for result in results if not result.ok)
        found += filter(None, (mark.found(result.stdout.decode()) for result in results[4::5]))
    with capsys.disabled():
        print(f"\n{rounds * 50} programs, {len(found)} scanners found a secret")
    assert found == []
