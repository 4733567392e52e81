"""A parser that was taken over reaches nothing but the folder of its layer, and its report is not believed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from harena.backends.local.policy.syscalls import NUMBERS
from harena.images.errors import ImageError
from harena.images.unpack import jail, unpack
from harena.images.unpack.ids import Ids
from harena.images.unpack.seal import CALLS
from support.unpack_tools import Layer, ids, store

__all__ = ["ids", "store"]

TAKEN_OVER = """
import sys
sys.path.insert(0, sys.argv[1])
import ctypes, os, socket, subprocess, json
from harena.images.unpack import untar
libc = ctypes.CDLL(None, use_errno=True)
def attempts():
    yield "socket", lambda: socket.socket()
    yield "fork", lambda: os.fork()
    yield "exec", lambda: os.execv("/x", ["x"])
    yield "kill", lambda: os.kill(-1, 0)
    yield "proc", lambda: os.listdir("/proc")
    yield "passwd", lambda: os.stat("/etc/passwd")
    yield "above", lambda: os.stat("/../layer.json")
    yield "chroot", lambda: os.chroot("/")
    yield "setuid", lambda: os.setuid(1)
    yield "device", lambda: os.mknod("sda", 0o060600, os.makedev(8, 0))
    yield "mount", lambda: libc.mount(b"t", b"/", b"tmpfs", 0, None) and error()
    yield "unshare", lambda: libc.unshare(0x10000000) and error()
    yield "ptrace", lambda: libc.ptrace(16, 1, 0, 0) and error()
    yield "bpf", lambda: libc.syscall(321, 0, 0, 0) + 1 or error()
    for number in range(64):
        yield f"descriptor {number}", lambda: os.stat("layer.json", dir_fd=number)
        yield f"descriptor {number} up", lambda: os.stat("../tree", dir_fd=number)
def error():
    raise OSError(ctypes.get_errno(), "refused")
def attack(order):
    reached = []
    for name, attempt in attempts():
        try:
            attempt()
        except OSError:
            continue
        reached.append(name)
    open("/mine", "w").close()
    return {"error": json.dumps([reached, os.listdir("/")])}
honest = untar.work
untar.work = lambda order: attack(order) if order["verb"] == "unpack" else honest(order)
untar.main(sys.argv[2])
"""


def test_nothing_but_the_layer_can_be_reached(store: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "PROGRAM", TAKEN_OVER)
    with pytest.raises(ImageError) as caught:
        unpack.unpack_layer(io.BytesIO(Layer().add("a").bytes()), store / "one", ids=ids)
    assert str(caught.value) == 'layer refused: [[], ["mine"]]'
    assert list(store.iterdir()) == []


@pytest.mark.parametrize(
    "report",
    [
        "",
        "{",
        "[]",
        "[" * 4000,
        "{}",
        '{"files": 1, "bytes": 1, "opaque": false}',
        '{"files": true, "bytes": 1, "opaque": false, "implied": 0}',
        '{"files": 1e3, "bytes": 1, "opaque": false, "implied": 0}',
        '{"files": -1, "bytes": 1, "opaque": false, "implied": -1}',
        '{"files": 1, "bytes": 1000001, "opaque": false, "implied": 0}',
        '{"files": 1001, "bytes": 1, "opaque": false, "implied": 0}',
        '{"files": 1, "bytes": 1, "opaque": 0, "implied": 0}',
        '{"files": 1, "bytes": 1, "opaque": false, "implied": 0, "more": 1}',
    ],
)
def test_a_report_is_believed_within_a_closed_schema(report: str) -> None:
    answer = jail.parsed(report.encode())
    with pytest.raises(ImageError, match="layer refused"):
        unpack._checked(answer, unpack.Caps(bytes=1_000_000, files=1000))


def test_a_name_in_a_message_moves_no_cursor(store: Path, ids: Ids) -> None:
    with pytest.raises(ImageError) as caught:
        unpack.unpack_layer(io.BytesIO(Layer().add("\x1b[2J\n/../x").bytes()), store / "one", ids=ids)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_of_system_calls_are_right(machine: str) -> None:
    assert {name: NUMBERS[machine].get(name) for name in CALLS[machine]} == CALLS[machine]
    assert not {"socket", "clone", "clone3", "execve", "mount", "kill", "ptrace", "connect"} & set(CALLS[machine])
