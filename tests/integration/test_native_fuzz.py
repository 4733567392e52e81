"""The C part under AddressSanitizer and UndefinedBehaviorSanitizer, between a broken host and hostile guests.

Real boxes of a sanitized build (sanitized.py says what that covers) get frames that no host would send, and guests that
write on every descriptor they have, answer forks wrongly and die at odd moments. Whatever comes: no sanitizer reports,
nothing hangs, and what serves either goes on or has hung up. The seeds are fixed; `make soak` takes more of them.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import errno
import os
import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from harena import BoxLost, HarenaError, Limits, Sandbox, SandboxPool
from harena.backends.local import backend, interpreter, wire
from harena.backends.local import box as local_box
from support import sanitized

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(600)]

SEEDS = [pytest.param(seed, marks=[pytest.mark.soak] if seed else []) for seed in range(20)]
LIMITS = Limits(memory_mb=1000, wall_s=10, processes=20)
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 31, 255, 256, 257, 511, 512, 4095, 4096, 65536, 2**31 - 1, 2**31, 2**32 - 1)
WIDE = (*NUMBERS, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
PATIENCE_S = 30
FRAMES = 312


# ---- a broken host ----


def spawn(chance: random.Random, *, python: bool) -> wire.Spawn:
    kinds = [wire.Kind.EXEC, wire.Kind.EXEC, wire.Kind.TRUSTED] + [wire.Kind.PROGRAM, wire.Kind.SERVER] * 2 * python
    argv = chance.choice([(b"true",), (b"/bin/sh", b"-c", b"echo $$; exec sleep 0.01"), (b"/nowhere",), (b"cat",), ()])
    payload = b"P" + wire.U32.pack(13) + b"print('here')"
    return wire.Spawn(
        kind=chance.choice(kinds),
        flags=wire.Flag(chance.randrange(64)),
        wall_ns=chance.choice((0, 1, 10**7, 10**9)),
        cpu_ns=chance.choice((0, 0, 1, 10**9)),
        memory=chance.choice((0, 1, 10**9)),
        output=chance.choice((0, 1, 10**5)),
        fs_bytes=chance.choice((0, 1, 1 << 20)),
        processes=chance.choice((0, 1, 20)),
        nofile=chance.choice((0, 3, 64, 256)),
        profile=chance.randrange(4),
        view=chance.choice((0, 0, 0, 1, 255)),
        records=chance.choice((0, 0, 1, 5)),
        ahead=chance.choice((0, 0, 1, 2)),
        argv=argv,
        env=chance.choice([(), (b"PATH=/usr/bin:/bin",), (b"A=B", b"", b"PATH=")]),
        cwd=chance.choice([b"", b"/", b"/workspace", b"/nowhere", b"x" * 5000]),
        stdin=bytes(chance.choice((0, 0, 1, 70000))),
        payload=chance.choice([b"", payload, bytes(9)]),
        rows=chance.randrange(100),
        cols=chance.randrange(100),
    )


def request(chance: random.Random, *, python: bool) -> tuple[int, bytes]:
    """One that a host might send."""
    pick = chance.randrange(10)
    pair = struct.pack("<II", chance.choice((0, 1, 2, 3, 300)), chance.choice((0, 0, 1, 2, 9, 15)))
    if pick < 6:
        return wire.Op.SPAWN, spawn(chance, python=python).encode()
    if pick == 6:
        return chance.choice((wire.Op.KILL, wire.Op.VIEW, wire.Op.ALLOW_FORKS)), pair
    if pick == 7:
        return wire.Op.USAGE, pair[:4]
    if pick == 8:
        filters = b"".join(wire.U32.pack(8) + struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000) for _ in range(4))
        return wire.Op.CONFIG, filters + bytes([chance.randrange(4)]) + b"/workspace\0/tmp\0\0" * chance.choice(
            (1, 200, 300)
        )
    return wire.Op.PING, bytes(chance.choice((0, 1, 5000)))


def broken(chance: random.Random, body: bytes) -> bytes:
    """The body with fields that a host would not write."""
    data = bytearray(body)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        if not data:
            break
        wide = chance.random() < 0.3 and len(data) >= 8
        at = chance.randrange(max(1, min(len(data) - (7 if wide else 3), 128)))
        at -= at % 4
        value = chance.choice(WIDE if wide else NUMBERS)
        data[at : at + (8 if wide else 4)] = value.to_bytes(8 if wide else 4, "little")
    if chance.random() < 0.1:
        del data[chance.randrange(len(data) + 1) :]
    if chance.random() < 0.05:
        data += chance.randbytes(chance.randrange(100))
    return bytes(data)


class Line:
    """The host's end of a box's socket, for who says what he likes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.settimeout(0)

    def say(self, data: bytes, fds: list[int]) -> bool:
        """False when the box has hung up."""
        end = time.monotonic() + PATIENCE_S
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while data:
            assert time.monotonic() < end, "it neither reads nor hangs up"
            if not self.hear():
                return False
            try:
                data = data[self._sock.sendmsg([data], ancillary) :]
                ancillary = []
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                return False
        return True

    def hear(self) -> bytes | None:
        """What has come; None when the box has hung up."""
        heard = b""
        try:
            while True:
                data, ancillary, _, _ = self._sock.recvmsg(1 << 16, socket.CMSG_SPACE(64))
                for _, _, fds in ancillary:
                    for fd in array.array("i", fds[: len(fds) // 4 * 4]):
                        os.close(fd)
                if not data:
                    return None
                heard += data
        except BlockingIOError:
            return heard or b" "
        except OSError:
            return None

    def answers(self) -> bool:
        """Does it still answer, or else has it hung up? One that does neither hangs."""
        mark = os.urandom(8)
        if not self.say(wire.frame(wire.Op.PING, 7, mark), []):
            return False
        end, heard = time.monotonic() + PATIENCE_S, b""
        while (more := self.hear()) is not None:
            heard = heard[-64:] + more
            if mark in heard:
                return True
            assert time.monotonic() < end, "it neither answers nor hangs up"
            time.sleep(0.001)
        return False


@contextlib.contextmanager
def some_fds(chance: random.Random) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        fds: list[int] = []
        for _ in range(chance.choice((0, 0, 1, 2, 3, 3, 4, 4, 8, 12))):
            fd = os.open(os.devnull, os.O_RDWR)
            stack.callback(os.close, fd)
            fds.append(fd)
        yield fds


def converse(line: Line, chance: random.Random, most: int, *, python: bool) -> int:
    """Sends frames until the box has hung up, or `most` of them; how many it sent."""
    for number in range(1, most + 1):
        op, body = request(chance, python=python)
        whole = wire.frame(op if chance.random() < 0.97 else chance.randrange(100), number, broken(chance, body))
        if chance.random() < 0.02:
            whole = chance.randbytes(chance.randrange(40))
        with some_fds(chance) as fds:
            if not line.say(whole, fds) or line.hear() is None:
                return number
        if whole[:4] != wire.MAGIC.to_bytes(4, "little"):
            return number  # from here on it may wait for the rest of a frame
        if chance.random() < 0.2:
            time.sleep(0.01)
        if number % 24 == 0 and not line.answers():
            return number
    return most


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("serves", ["init", "zygote"])
def test_frames_of_a_broken_host_break_no_memory(serves: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(f"{serves} {seed}")
    with sanitized.boxes(monkeypatch) as spec:
        sent = 0
        while sent < FRAMES:
            box = backend.NamespaceEnclosure(spec, start_s=60)
            try:
                channel = box.python if serves == "zygote" else box.init
                sent += converse(Line(channel.exclusive), chance, min(72, FRAMES - sent), python=serves == "zygote")
            finally:
                box.close()


@pytest.mark.parametrize("view", [256, 2**31, 2**32 - 1])
def test_a_view_that_cannot_be_is_refused(view: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with sanitized.boxes(monkeypatch) as spec:
        box = backend.NamespaceEnclosure(spec, start_s=60)
        try:
            chance = random.Random(0)
            wanted = dataclasses.replace(spawn(chance, python=False), kind=wire.Kind.EXEC, argv=(b"true",), view=view)
            answer = box.init.request(wire.Op.SPAWN, wanted.encode())
            assert (answer.op, wire.parse_error(answer.body)[0]) == (wire.Op.ERROR, errno.EPROTO)
        finally:
            box.close()


# ---- hostile guests ----

GUEST = """
import array, os, random, signal, socket, struct, time
chance = random.Random({seed!r})
def garbage():
    kind = chance.randrange(6)
    if kind == 0: return chance.randbytes(chance.choice((1, 4, 5, 8, 100, 70000)))
    if kind == 1: return bytes(chance.choice((1, 5, 8, 9, 4096)))
    if kind == 2: return b"\\xff" * chance.choice((1, 5, 8, 16))
    if kind == 3: return b"h" + bytes(chance.choice((0, 4, 5)))
    if kind == 4: return b"e" + struct.pack("<i", chance.choice((0, -1, 9, 2**31 - 1)))
    return bytes(8) + struct.pack("<I", chance.choice((0, 2, 2**31, 2**32 - 1))) + b"X\\x07"
for _ in range(chance.randrange(1, 60)):
    fd = chance.choice((1, 2, 3, 3, 4, 5, 6, 6, 7, 8))
    deed = chance.randrange(9)
    try:
        if deed < 5:
            os.set_blocking(fd, False)
            os.write(fd, garbage())
        elif deed == 5:
            os.read(fd, 4096)
        elif deed == 6:
            os.close(fd)
        elif deed == 7:
            line = socket.socket(fileno=os.dup(fd))
            given = array.array("i", [chance.choice((1, 2, 3, 4, 5, 6)) for _ in range(chance.randrange(1, 5))])
            line.sendmsg([garbage()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)], socket.MSG_DONTWAIT)
        else:
            os.dup2(chance.choice((0, 1, 2)), fd)
    except (OSError, ValueError):
        pass
    if chance.random() < 0.1 and os.fork() == 0:
        time.sleep(chance.choice((0, 0.01)))
        os.kill(os.getpid(), chance.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)))
end = chance.randrange(5)
if end == 0: os.kill(os.getpid(), signal.SIGKILL)
if end == 1: os._exit(chance.randrange(256))
if end == 2: os.kill(os.getpid(), signal.SIGSTOP)
if end == 3: time.sleep(0.05)
"""


@contextlib.contextmanager
def as_data() -> Iterator[None]:
    """What a guest does is a verdict, or a box that is lost; never another exception."""
    with contextlib.suppress(HarenaError):
        yield


def sources(seed: object, count: int) -> list[str]:
    return [GUEST.replace("{seed!r}", repr(f"{seed} {number}")) for number in range(count)]


@pytest.mark.parametrize("seed", SEEDS)
def test_garbage_of_programs_breaks_no_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(memory_mb=1000, wall_s=0.5, processes=20)
    with sanitized.boxes(monkeypatch) as spec, SandboxPool(spec, limits=limits, warm=1, max_live=2) as pool:
        for group in (None, 5):
            with as_data():
                pool.map(sources(seed, 30), group=group) if group else pool.map(sources(seed, 30))
        assert pool.map(["print(6 * 7)"])[0].stdout == b"42\n"


@pytest.mark.parametrize("seed", SEEDS)
def test_garbage_of_commands_and_interpreters_breaks_no_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(local_box, "GRACE_S", 3.0)  # for what an interpreter leaves unanswered
    monkeypatch.setattr(interpreter, "FORK_S", 3.0)
    monkeypatch.setattr(interpreter, "ANSWER_S", 1.0)
    monkeypatch.setattr(interpreter, "HANG_UP_S", 0.1)
    with sanitized.boxes(monkeypatch) as spec:
        for source in sources(f"box {seed}", 6):
            with Sandbox(spec, limits=LIMITS) as box, as_data():
                attack(box, source, chance)


def attack(box: Sandbox, source: str, chance: random.Random) -> None:
    """Garbage around a fork: before it, instead of it, in it, and from its parent afterwards."""
    quick = Limits(memory_mb=1000, wall_s=0.5, processes=20)
    with as_data():
        box.exec(["python3", "-I", "-c", source], limits=quick)
    if chance.random() < 0.5:
        box.run(FALSE_FORKS, limits=quick)
    for _ in range(2):
        with as_data():
            box.run(source, limits=quick)
        with as_data():
            [fork] = box.fork()
            with fork:
                with as_data():
                    fork.run(source, limits=quick)
                fork.exec(["true"])
    assert box.exec(["echo", "ok"]).stdout == b"ok\n"


FALSE_FORKS = """
import os, socket, threading, time
def talk():
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=os.dup(6))
    for word in (b"h", b"e\\0\\0\\0\\0", b"h", b"junk", b""):
        time.sleep(0.01)
        try:
            line.send(word, socket.MSG_DONTWAIT)
            line.recv(64, socket.MSG_DONTWAIT)
        except OSError:
            pass
threading.Thread(target=talk, daemon=True).start()
"""


def test_a_sanitizer_that_reports_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the net holds at all: a build that reads beyond a buffer is caught."""
    edit = sanitized.Edit(
        "serve.c", r"(?m)^(static void do_kill.*)$", r"\1\n  char *b = malloc(4); b[head->len] = 1; free(b);"
    )
    monkeypatch.setattr(sanitized, "EDITS", (*sanitized.EDITS, edit))
    sanitized.build.cache_clear()
    try:
        with (
            pytest.raises(AssertionError, match=r"heap-buffer-overflow|insufficient space"),
            sanitized.boxes(monkeypatch) as spec,
            Sandbox(spec, limits=LIMITS) as box,
            contextlib.suppress(BoxLost),
        ):
            box.start(["sleep", "5"]).kill()
            box.ping()
    finally:
        sanitized.build.cache_clear()
