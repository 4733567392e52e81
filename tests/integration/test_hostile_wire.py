"""The host against a box that lies: a fake guest on the other end of every socket says whatever it likes.

It comes in as a backend of its own, by name, so that all of the host's code runs as it does with real boxes. Whatever
it sends, the call ends with a clear error (BoxLost, WireError, or what the box may rightly say), and the host stays up
with nothing leaked.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import os
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from harena import BoxFileError, BoxLost, HarenaError, Limits, Result, Sandbox, SandboxPool, Spec, Verdict, WireError
from harena.backends.local import wire
from harena.backends.local.box import Lineage, LocalBox
from harena.backends.local.channel import Channel
from harena.sandbox import backend
from harena.sandbox.spec import WORKSPACE
from support import leaks
from support.leaks import descriptors, leaked, settle

pytestmark = pytest.mark.timeout(30)  # what waits for a guest that says nothing more waits for ever

T = TypeVar("T")

# ---- the fake guest ----


class Request(NamedTuple):
    op: int
    id: int
    body: bytes
    fds: tuple[int, ...]

    @property
    def kind(self) -> int:
        return wire.SPAWN.unpack_from(self.body)[0] if self.op == wire.Op.SPAWN else 0

    @property
    def message(self) -> dict[str, Any]:
        (length,) = wire.U32.unpack_from(self.body)
        return json.loads(self.body[4 : 4 + length])


class Last(bytes):
    """The guest's last words: it hangs up after them."""


Play = Callable[[Request], bytes]
"""What the guest says to a request. One that says nothing must hang up, or the host would rightly wait."""


def report(id: int, stdout: bytes = b"", result: bytes = bytes(8), **changes: int) -> bytes:
    done = {
        "ended": 0,
        "wstatus": 0,
        "hits": 0,
        "exec_errno": 0,
        "wall": 0,
        "cpu": 0,
        "peak": 0,
        "written": 0,
    } | changes
    body = wire.DONE.pack(*done.values(), len(stdout), 0, len(result), 0) + stdout + result
    return wire.frame(wire.Op.DONE, id, body)


def answer(id: int, message: Any, blob: bytes = b"") -> bytes:
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return wire.frame(wire.Op.ANSWER, id, wire.U32.pack(len(text)) + text + blob)


def honest(request: Request) -> bytes:
    if request.op == wire.Op.SPAWN and request.kind == wire.Kind.SERVER:
        return wire.frame(wire.Op.STARTED, request.id)
    if request.op == wire.Op.SPAWN:
        return report(request.id, b"1\n")
    if request.op == wire.Op.USAGE:
        return wire.frame(wire.Op.PONG, request.id, bytes(16))
    return wire.frame(wire.Op.PONG, request.id)


def honest_server(request: Request) -> bytes:
    if request.message["op"] == "list":
        return answer(request.id, {"entries": [], "now": 0})
    return answer(request.id, {"exit": 0, "limit": "-", "sizes": [], "sha256": "0" * 64})


def receive(sock: socket.socket) -> Request | None:
    data, fds = b"", list[int]()
    need = wire.HEAD.size
    while len(data) < need:
        try:
            chunk, ancillary, _, _ = sock.recvmsg(need - len(data), socket.CMSG_SPACE(32))
        except OSError:
            chunk, ancillary = b"", []
        for _, _, payload in ancillary:
            fds += array.array("i", payload)
        if not chunk:
            for fd in fds:
                os.close(fd)
            return None
        data += chunk
        if need == wire.HEAD.size == len(data):
            need += wire.HEAD.unpack(data)[4]
    _, op, _, id, _ = wire.HEAD.unpack(data[: wire.HEAD.size])
    return Request(op, id, data[wire.HEAD.size :], tuple(fds))


class Guest:
    """One fake box: its init and its zygote play `control`, the servers in it play `server`."""

    def __init__(self, control: Play = honest, server: Play = honest_server) -> None:
        self.id = f"fake{next(_numbers)}"
        self.env: dict[str, str] = {}
        self.isolation, self.cwd, self.ids, self.image = "full", WORKSPACE, "", None
        self._plays = {"control": control, "server": server}
        self._threads: list[threading.Thread] = []
        self.served: list[Request] = []
        self.init = self._channel(takes_fds=True)
        self.python = self.runner = self._channel(takes_fds=False)

    def loops(self) -> list[Channel]:
        return [self.init, self.python]

    def _channel(self, *, takes_fds: bool) -> Channel:
        ours, theirs = socket.socketpair()
        self._serve(theirs, "control")
        return Channel(ours, f"box {self.id}", takes_fds=takes_fds)

    def _serve(self, sock: socket.socket, play: str) -> None:
        thread = threading.Thread(target=self._talk, args=(sock, play), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _talk(self, sock: socket.socket, play: str) -> None:
        held: list[int] = []
        with sock, contextlib.suppress(OSError):
            while (request := receive(sock)) is not None:
                held += request.fds
                self.served.append(request)
                words = self._plays[play](request)
                if len(request.fds) == 4:
                    self._serve(socket.socket(fileno=os.dup(request.fds[3])), "server")
                for fd in request.fds[1:]:
                    held.remove(fd)
                    os.close(fd)
                sock.sendall(words)
                if isinstance(words, Last):
                    break
        for fd in held:
            os.close(fd)

    def close(self) -> None:
        self.init.close()
        self.python.close()
        for thread in self._threads:
            thread.join(1)


_numbers = itertools.count()
_make: Callable[[], Guest] = Guest


class HostileBackend:
    def capabilities(self) -> backend.Capabilities:
        return backend.Capabilities(launcher="none", memory="none", processes="none", landlock=0)

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> LocalBox:
        return LocalBox(Lineage(_make()), spec=spec, limits=limits)


@contextlib.contextmanager
def guests(make: Callable[[], Guest]) -> Iterator[None]:
    """Boxes of the backend "hostile" are made by `make`; when they are closed, nothing may be left of them."""
    global _make
    before, threads = descriptors(), threading.active_count()
    _make = make
    backend.BACKENDS["hostile"] = f"{__name__}:HostileBackend"
    try:
        yield
    finally:
        del backend.BACKENDS["hostile"]
        backend.load.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert settle(lambda: threading.active_count() <= threads, True, 1), "a socket to a guest was left open"
    assert leaked(before, 1) == []


@contextlib.contextmanager
def box_of(control: Play = honest, server: Play = honest_server) -> Iterator[Sandbox]:
    with guests(lambda: Guest(control, server)), Sandbox(backend="hostile") as box:
        yield box


CALLS: dict[str, Callable[[Sandbox], Any]] = {
    "ping": lambda box: box.ping(),
    "exec": lambda box: box.exec(["true"]),
    "start": lambda box: box.start(["true"]),
    "start on a terminal": lambda box: box.start(["true"], pty=True),
    "run": lambda box: box.run("pass"),
    "call": lambda box: box.call("def f(): pass", "f"),
    "read": lambda box: box.read("a"),
    "write": lambda box: box.write("a", b""),
    "list": lambda box: box.list(),
    "sha256": lambda box: box.sha256("a"),
    "remove": lambda box: box.remove("a"),
    "snapshot": lambda box: box.snapshot(),
}
SERVED = ["run", "read", "write", "list", "sha256", "remove", "snapshot"]

# ---- words that are no answer ----

NONSENSE: dict[str, Play] = {
    "early end": lambda request: Last(),
    "garbage": lambda request: Last(b"\xde\xad\xbe\xef" * 300),
    "zeros": lambda request: Last(bytes(5000)),
    "text": lambda request: Last(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "half a head": lambda request: Last(wire.frame(wire.Op.PONG, request.id)[:9]),
    "half a body": lambda request: Last(wire.frame(wire.Op.DONE, request.id, b"x" * 100)[:60]),
    "huge length": lambda request: wire.HEAD.pack(wire.MAGIC, wire.Op.DONE, 0, request.id, 2**32 - 1),
    "largest length and an end": lambda request: Last(
        wire.HEAD.pack(wire.MAGIC, wire.Op.DONE, 0, request.id, wire.MAX_FRAME)
    ),
    "another id": lambda request: wire.frame(wire.Op.PONG, request.id + 7),
    "no id, for ever": lambda request: Last(wire.frame(wire.Op.PONG, 0) * 5000),
    "an unknown operation": lambda request: wire.frame(99, request.id),
    "a request": lambda request: wire.frame(wire.Op.SPAWN, request.id, request.body),
    "many descriptors": lambda request: wire.HEAD.pack(wire.MAGIC, wire.Op.STARTED, 7, request.id, 0),
    "a report that does not add up": lambda request: wire.frame(wire.Op.DONE, request.id, b"\xff" * wire.DONE.size),
    "a report too short": lambda request: wire.frame(wire.Op.DONE, request.id, b"\0"),
    "an error without a number": lambda request: wire.frame(wire.Op.ERROR, request.id, b"x"),
    "an error": lambda request: wire.frame(wire.Op.ERROR, request.id, wire.ERROR.pack(-12345) + b"\xff\x00"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_from_the_box_is_a_clear_error(nonsense: str, name: str) -> None:
    with box_of(control=NONSENSE[nonsense]) as box, pytest.raises((BoxLost, WireError)) as caught:
        CALLS[name](box)
    assert str(caught.value)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_from_a_server_in_the_box_is_a_clear_error(nonsense: str, name: str) -> None:
    with box_of(server=NONSENSE[nonsense], control=ends_interpreter) as box:
        try:
            result = CALLS[name](box)
        except (BoxLost, WireError):
            return
        assert isinstance(result, Result), "only `run` may tell it in another way: that the interpreter has ended"
        assert result.verdict is Verdict.SIGNAL


def ends_interpreter(request: Request) -> bytes:
    """As honest, but a kill of the interpreter is followed by the report of its end."""
    if request.op == wire.Op.SPAWN and request.kind == wire.Kind.SERVER and b"interpreter" in request.body:
        return wire.frame(wire.Op.STARTED, request.id) + report(request.id, wstatus=9)
    return honest(request)


OBJECTS: dict[str, Any] = {
    "not JSON": b"\xff{",
    "nothing": b"",
    "a list": [],
    "NaN": b'{"entries": NaN, "exit": NaN}',
    "infinity": b'{"exit": Infinity, "now": -Infinity}',
    "a key twice": b'{"exit": 0, "exit": 0, "limit": "-"}',
    "bottomless": b'{"entries": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "endless number": b'{"now": ' + b"9" * 100_000 + b"}",
    "wrong kinds": {"entries": 7, "exit": "0", "limit": 0, "sha256": 7, "sizes": "x", "now": "x"},
    "out of range": {"entries": [], "now": True, "exit": 256, "limit": "Z", "sha256": "zz", "sizes": [-1, -1]},
    "malformed error": {"errno": "x", "detail": 7},
    "error without detail": {"errno": 2},
}


@pytest.mark.parametrize("name", ["run", "list", "sha256", "snapshot"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_answer_outside_the_schema_is_a_clear_error(kind: str, name: str) -> None:
    def play(request: Request) -> bytes:
        return answer(request.id, OBJECTS[kind])

    with box_of(server=play, control=ends_interpreter) as box:
        if kind == "out of range" and name in ("list", "snapshot"):
            CALLS[name](box)  # an empty listing, whatever else is said
            return
        with pytest.raises(WireError):
            CALLS[name](box)


@pytest.mark.parametrize("number", [-1, 0, 1, 2, 13, 27, 40, 2**31, 10**30, True])
def test_any_error_number_is_an_os_error(number: int) -> None:
    with box_of(server=lambda request: answer(request.id, {"errno": number, "detail": "x" * 5000 + "\ud800"})) as box:
        with pytest.raises(BoxFileError) as caught:
            box.read("a")
        assert len(ascii(str(caught.value))) < 1000


def test_more_of_a_file_than_was_asked_for_is_refused() -> None:
    play: Play = lambda request: answer(request.id, {}, b"x" * 1001)  # noqa: E731
    with box_of(server=play) as box, pytest.raises(WireError, match="more of a file"):
        box.read("a", max_bytes=1000)


def test_interpreter_that_broke_the_protocol_is_not_used_again() -> None:
    """The host cannot know what a late answer belongs to."""
    guest: list[Guest] = []

    def play(request: Request) -> bytes:
        if len(guest[0].served) < 4:
            return wire.frame(wire.Op.ANSWER, request.id + 1, b"junk")
        return answer(request.id, {"exit": 0, "limit": "-"})

    def make() -> Guest:
        guest.append(Guest(ends_interpreter, play))
        return guest[0]

    with guests(make), Sandbox(backend="hostile") as box:
        with pytest.raises(WireError):
            box.run("1")
        started = sum(request.kind == wire.Kind.SERVER for request in guest[0].served)
        with contextlib.suppress(HarenaError):
            assert box.run("2").exit_code == 0
            assert sum(request.kind == wire.Kind.SERVER for request in guest[0].served) > started


# ---- descriptors ----


def send_with_descriptors(sock: socket.socket, words: bytes, count: int) -> None:
    fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
    sock.sendmsg([words], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    for fd in fds:
        os.close(fd)


@contextlib.contextmanager
def box_that_hands_over(count: int) -> Iterator[Sandbox]:
    """Every answer of its init comes with descriptors of /dev/null."""

    class Generous(Guest):
        def _channel(self, *, takes_fds: bool) -> Channel:
            if not takes_fds:
                return super()._channel(takes_fds=False)
            ours, theirs = socket.socketpair()
            self._threads.append(threading.Thread(target=self._hand_over, args=(theirs,), daemon=True))
            self._threads[-1].start()
            return Channel(ours, f"box {self.id}", takes_fds=True)

        def _hand_over(self, sock: socket.socket) -> None:
            with sock, contextlib.suppress(OSError):
                while (request := receive(sock)) is not None:
                    for fd in request.fds:
                        os.close(fd)
                    started = wire.frame(wire.Op.STARTED, request.id, nfds=1)
                    asked = request.op in (wire.Op.SPAWN, wire.Op.SOCKET)
                    send_with_descriptors(sock, started if asked else honest(request), count)

    with guests(Generous), Sandbox(backend="hostile") as box:
        yield box


@pytest.mark.parametrize("pty", [False, True])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_descriptors_nobody_asked_for_are_closed(count: int, pty: bool) -> None:
    with box_that_hands_over(count) as box:
        for _ in range(3):
            box.ping()
            with contextlib.suppress(HarenaError):
                box.start(["true"], pty=pty).close()


def test_terminal_that_is_none_hurts_nobody() -> None:
    with box_that_hands_over(1) as box, box.start(["true"], pty=True) as process:
        with contextlib.suppress(OSError):
            process.resize(10, 10)
        assert process.stdout.read(timeout_s=10) == b""


def test_socket_that_is_none_is_refused_and_closed() -> None:
    with box_that_hands_over(1) as box:
        before = leaks.descriptors()
        for _ in range(3):
            with pytest.raises(WireError, match="something else than a socket"):
                box.connect(80)
        assert not leaks.leaked(before)


def test_flood_of_answers_to_one_request_does_not_fill_the_hosts_memory() -> None:
    """A command that runs is answered twice: that it was started, and that it ended. Never ten thousand times."""

    def play(request: Request) -> bytes:
        if request.op == wire.Op.SPAWN:
            return wire.frame(wire.Op.STARTED, request.id)
        flood = wire.frame(wire.Op.STARTED, 1, b"x" * 65536) * 1000
        return flood + wire.frame(wire.Op.PONG, request.id)

    with box_of(control=play) as box:
        process = box.start(["true"])
        tracemalloc.start()
        try:
            with contextlib.suppress(HarenaError):
                box.ping()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 75_000_000, "the guest itself holds one copy; a second one is ours"
        process.close()


# ---- listings, as a download believes them ----


def listing(*rows: Any) -> Play:
    def play(request: Request) -> bytes:
        if request.message["op"] == "list":
            return answer(request.id, {"entries": list(rows), "now": 0})
        count = len(request.message["paths"])
        return answer(request.id, {"sizes": [1] * count}, b"x" * count)

    return play


def row(path: Any, kind: str = "file", target: str | None = None, size: int = 1, mode: int = 0o644) -> list[Any]:
    return [path, kind, size, mode, 0, target, 1, 1, size]


NAMES = [
    "/etc/passwd",
    "/",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    ".",
    "./x",
    "a//b",
    "a/",
    "",
    "a\0b",
    "a/./b",
    "x" * 300,
    "\ud800",
    "a/" * 3000 + "b",
]


def outside(folder: Path) -> list[str]:
    """What is there beside the folder of the download, and what in it leads out."""
    found = [str(path) for path in folder.iterdir() if path.name != "out"]
    for parent, folders, files in os.walk(folder / "out"):
        for name in folders + files:
            if not os.path.realpath(os.path.join(parent, name)).startswith(os.path.realpath(folder / "out")):
                found.append(os.path.join(parent, name))
    return found


@pytest.mark.parametrize("kind", ["file", "dir", "symlink"])
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_name_that_leads_out_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    play = listing(row(name, kind, "b" if kind == "symlink" else None))
    with box_of(server=play) as box, pytest.raises(HarenaError):
        box.download(".", tmp_path / "out")
    assert outside(tmp_path) == []


TRICKS: dict[str, list[list[Any]]] = {
    "a link, then a file below it": [row("a", "symlink", "b"), row("a/x")],
    "a link to a folder, then a file below it": [row("b", "dir"), row("a", "symlink", "b"), row("a/x")],
    "a folder that is also a link": [row("a", "dir"), row("a", "symlink", "b"), row("a/x")],
    "a link that is also a folder": [row("a", "symlink", "b"), row("a", "dir"), row("a/x")],
    "a file that is also a folder": [row("a"), row("a", "dir"), row("a/x")],
    "a file below a file": [row("a"), row("a/x")],
    "a file below nothing": [row("a/b/c/x")],
    "a folder below nothing": [row("a/b", "dir")],
    "the same file twice": [row("a"), row("a")],
    "the same link twice": [row("a", "symlink", "b"), row("a", "symlink", "c")],
    "a link out by two steps": [row("d", "dir"), row("d/up", "symlink", ".."), row("d/out", "symlink", "up/../..")],
    "a link out": [row("a", "symlink", "../x")],
    "a link to the root": [row("a", "symlink", "/")],
    "a link to nothing": [row("a", "symlink", "")],
    "a link without a target": [row("a", "symlink", None)],
    "a link through a link": [row("a", "symlink", "."), row("b", "symlink", "a/..")],
    "a link with a NUL": [row("a", "symlink", "b\0c")],
    "a link that is too long": [row("a", "symlink", "b" * 5000)],
    "a link of no encoding": [row("a", "symlink", "\ud800")],
}


@pytest.mark.parametrize("trick", TRICKS)
def test_download_of_a_tricky_listing_writes_nothing_outside(tmp_path: Path, trick: str) -> None:
    with box_of(server=listing(*TRICKS[trick])) as box, contextlib.suppress(HarenaError):
        box.download(".", tmp_path / "out")
    assert outside(tmp_path) == []


ROWS: dict[str, Any] = {
    "no row": 7,
    "too short": ["a"],
    "too long": [*row("a"), 1],
    "a name that is none": row(7),
    "an unknown kind": row("a", "socket"),
    "a negative size": row("a", size=-1),
    "a size that is none": [*row("a")[:2], "1", *row("a")[3:]],
    "a target that is none": [*row("a")[:5], 7, 1, 1],
    "a null": None,
    "an object": {"path": "a"},
}


@pytest.mark.parametrize("name", ["list", "snapshot", "download"])
@pytest.mark.parametrize("kind", ROWS)
def test_malformed_row_of_a_listing_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    call = CALLS.get(name) or (lambda box: box.download(".", tmp_path / "out"))
    with box_of(server=listing(row("ok"), ROWS[kind])) as box, pytest.raises(WireError):
        call(box)
    assert outside(tmp_path) == []


def test_downloaded_files_have_no_special_modes(tmp_path: Path) -> None:
    with box_of(server=listing(row("d", "dir", mode=0o7777), row("f", mode=0o6755))) as box:
        box.download(".", tmp_path / "out")
    assert [(tmp_path / "out" / name).stat().st_mode & 0o7777 for name in "df"] == [0o777, 0o755]


@pytest.mark.parametrize("size", [10**18, 2**70])
def test_sizes_are_checked_before_anything_is_fetched(tmp_path: Path, size: int) -> None:
    with box_of(server=listing(row("a", size=size))) as box, pytest.raises(BoxFileError):
        box.download(".", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def fetch(message: dict[str, Any], blob: bytes) -> Play:
    def play(request: Request) -> bytes:
        if request.message["op"] == "list":
            return answer(request.id, {"entries": [row("a"), row("b")], "now": 10**20})
        return answer(request.id, message, blob)

    return play


@pytest.mark.parametrize(
    "sizes", [[1], [1, 2, 3], "xx", None, [1.5, 1], [9, 9], [2**70, 0], [1, None], [{}, []], [True, 1.0]]
)
def test_contents_that_do_not_add_up_are_refused(tmp_path: Path, sizes: Any) -> None:
    with box_of(server=fetch({"sizes": sizes}, b"xx")) as box:
        with pytest.raises(WireError):
            box.download(".", tmp_path / "out")
        with pytest.raises(WireError):
            box.snapshot()


def test_contents_above_the_cap_are_refused(tmp_path: Path) -> None:
    """The listing said two bytes; what comes is more than the caller allowed."""
    with box_of(server=fetch({"sizes": [500_000, 500_000]}, b"x" * 1_000_000)) as box, pytest.raises(HarenaError):
        box.download(".", tmp_path / "out", max_bytes=1000)
    written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*")) if (tmp_path / "out").exists() else 0
    assert written <= 1000


def test_snapshot_above_the_size_of_the_workspace_is_refused() -> None:
    play = fetch({"sizes": [2_000_000, 2_000_000]}, b"x" * 4_000_000)
    with (
        guests(lambda: Guest(server=play)),
        Sandbox(Spec(workspace_mb=1), backend="hostile") as box,
        pytest.raises(HarenaError),
    ):
        box.snapshot()


# ---- the pool ----


@pytest.mark.parametrize("group", [None, 3])
@pytest.mark.parametrize("nonsense", NONSENSE)
def test_pool_gives_up_on_boxes_that_all_talk_nonsense(nonsense: str, group: int | None) -> None:
    with (
        guests(lambda: Guest(NONSENSE[nonsense])),
        SandboxPool(backend="hostile", warm=1, max_live=2) as pool,
        pytest.raises((BoxLost, WireError)),
    ):
        pool.map(["print(1)"] * 6, group=group)


@pytest.mark.parametrize("nonsense", [name for name in NONSENSE if name != "an error"])
def test_box_that_talks_nonsense_does_not_spoil_the_batch(nonsense: str) -> None:
    made = itertools.count()
    with (
        guests(lambda: Guest(NONSENSE[nonsense] if next(made) == 0 else honest)),
        SandboxPool(backend="hostile", warm=1, max_live=3) as pool,
    ):
        results = pool.map(["print(1)"] * 20)
    assert [result.stdout for result in results] == [b"1\n"] * 20


def test_report_given_twice_is_counted_once() -> None:
    made = itertools.count()

    def twice(request: Request) -> bytes:
        return honest(request) * 2

    with (
        guests(lambda: Guest(twice if next(made) == 0 else honest)),
        SandboxPool(backend="hostile", warm=1, max_live=1) as pool,
    ):
        assert [result.stdout for result in pool.map(["print(1)"] * 10)] == [b"1\n"] * 10


RECORDS: dict[str, bytes] = {
    "none": b"",
    "a short one": struct.pack("<I", 3) + b"abc",
    "a cut one": struct.pack("<I", 1000) + b"abc",
    "lengths that lie": struct.pack("<I", 29) + struct.pack("<ciddII", b"-", 0, 0.0, 0.0, 9, 9),
    "an exit code out of range": struct.pack("<I", 29) + struct.pack("<ciddII", b"-", 999, 0.0, 0.0, 0, 0),
    "not a number": struct.pack("<I", 29) + struct.pack("<ciddII", b"-", 0, float("nan"), 0.0, 0, 0),
    "an infinity": struct.pack("<I", 29) + struct.pack("<ciddII", b"-", 0, 0.0, float("inf"), 0, 0),
    "negative time": struct.pack("<I", 29) + struct.pack("<ciddII", b"-", 0, -1.0, -1.0, 0, 0),
    "an unknown limit": struct.pack("<I", 29) + struct.pack("<ciddII", b"\xff", 1, 0.0, 0.0, 0, 0),
}


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("count", [1, 50])
def test_records_that_a_group_forged_are_results_of_that_group_alone(kind: str, count: int) -> None:
    def play(request: Request) -> bytes:
        if request.op == wire.Op.SPAWN and request.kind == wire.Kind.PROGRAM:
            return report(request.id, result=bytes(8) + RECORDS[kind] * count)
        return honest(request)

    with guests(lambda: Guest(play)), SandboxPool(backend="hostile", warm=1, max_live=1) as pool:
        results = pool.map(["print(1)"] * 7, group=3)
    assert len(results) == 7
    assert {result.verdict for result in results} == {Verdict.EXIT}


@pytest.mark.parametrize("ended", sorted(wire.Ended))
def test_any_end_a_box_may_report_is_a_result(ended: int) -> None:
    """Also those that were not asked for: there was no CPU limit."""
    with box_of(control=lambda request: report(request.id, ended=ended)) as box:
        assert isinstance(box.exec(["true"], limits=Limits()), Result)


# ---- the fuzzer ----

edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "repeat", "number"]), st.integers(0, 10**6), st.binary(max_size=8)
    ),
    min_size=1,
    max_size=4,
)


def mangle(words: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for how, where, data in changes:
        at = where % (len(words) + 1)
        if how == "flip" and at < len(words):
            words = words[:at] + bytes([words[at] ^ (data[0] if data else 0xFF)]) + words[at + 1 :]
        elif how == "cut":
            words = words[:at]
        elif how == "insert":
            words = words[:at] + data + words[at:]
        elif how == "repeat":
            words = words[:at] + words[at:] * 2
        elif how == "number":
            words = words[:at] + struct.pack("<I", where % 2**32) + words[at + 4 :]
    return Last(words)


def check_mangled(name: str, control: Play, server: Play) -> None:
    with box_of(control, server) as box, contextlib.suppress(HarenaError):
        assert CALLS[name](box) is not NotImplemented


@given(st.sampled_from(["exec", "call", "start", "ping"]), edits)
@settings(max_examples=120, deadline=None)
def test_mangled_reports_are_results_or_clear_errors(name: str, changes: list[tuple[str, int, bytes]]) -> None:
    def play(request: Request) -> bytes:
        words = honest(request)
        if name == "start":
            words = wire.frame(wire.Op.STARTED, request.id) + words
        return mangle(words, changes)

    check_mangled(name, play, honest_server)


ENTRIES = [row("d", "dir"), row("d/f"), row("l", "symlink", "d")]


@given(st.sampled_from(SERVED), edits)
@settings(max_examples=120, deadline=None)
def test_mangled_answers_of_servers_are_results_or_clear_errors(
    name: str, changes: list[tuple[str, int, bytes]]
) -> None:
    def play(request: Request) -> bytes:
        if request.message["op"] == "list":
            return mangle(answer(request.id, {"entries": ENTRIES, "now": 0}), changes)
        return mangle(honest_server(request), changes)

    check_mangled(name, ends_interpreter, play)


@given(edits)
@settings(max_examples=60, deadline=None, phases=[Phase.generate])  # to shrink one that hangs would take for ever
def test_mangled_reports_to_a_pool_are_results_or_clear_errors(changes: list[tuple[str, int, bytes]]) -> None:
    made = itertools.count()

    def play(request: Request) -> bytes:
        return mangle(honest(request), changes)

    with (
        guests(lambda: Guest(play if next(made) == 0 else honest)),
        SandboxPool(backend="hostile", warm=1, max_live=2) as pool,
        contextlib.suppress(HarenaError),
    ):
        assert len(in_time(lambda: pool.map(["print(1)"] * 5))) == 5


def in_time(call: Callable[[], T], limit_s: float = 10) -> T:
    future: Future[T] = Future()
    threading.Thread(target=lambda: settle_future(future, call), daemon=True).start()
    return future.result(limit_s)


def settle_future(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


# ---- the same from inside a real box ----

FORGED = """
import os, struct
def words(op, id, body):
    return struct.pack("<IHHII", 0x314E5248, op, 0, id, len(body)) + body
"""


@pytest.mark.parametrize(
    "words",
    [
        "b'garbage' * 1000",
        "words(80, 999, b'')",
        "words(80, 1, b'')",
        "words(80, 1, struct.pack('<I', 2**32 - 1))",
        "struct.pack('<IHHII', 0x314E5248, 80, 0, 1, 2**32 - 1)",
        "words(66, 1, b'x' * 100)",
        "words(1, 1, b'')",
    ],
)
def test_interpreter_that_writes_to_its_own_socket_fools_nobody(words: str) -> None:
    """In the guest's process the socket to the host is there to be found."""
    with Sandbox(limits=Limits(wall_s=10)) as box:
        source = f"{FORGED}for fd in range(3, 16):\n    try: os.write(fd, {words})\n    except OSError: pass\n"
        with contextlib.suppress(HarenaError):
            box.run(source)
        assert box.exec(["echo", "works"]).stdout == b"works\n"
        result = box.run("print('works')")
        if (
            result.verdict is Verdict.SIGNAL
        ):  # among the descriptors is the one for forks: it was ended for its noise there
            assert "the interpreter has ended" in result.detail
            result = box.run("print('works')")
        assert (result.verdict, result.stdout) == (Verdict.OK, b"works\n")


@pytest.mark.parametrize("words", ["b'garbage' * 1000", "struct.pack('<I', 2**32 - 1) * 50", "bytes(100_000)"])
def test_program_that_writes_to_its_result_pipe_spoils_itself_alone(words: str) -> None:
    source = f"{FORGED}for fd in range(3, 16):\n    try: os.write(fd, {words})\n    except OSError: pass\n"
    with SandboxPool(warm=1, max_live=1) as pool:
        results = pool.map([source, "print(1)"] * 3, limits=Limits(wall_s=10))
    assert [result.stdout for result in results[1::2]] == [b"1\n"] * 3


FORGERY = """
import os, struct, threading
def forge():
    record = b'V"forged"'
    result = bytes(8) + struct.pack("<I", len(record)) + record
    while not os.path.exists("stop"):
        for id in range(1, 60):
            body = struct.pack("<IiIiQQQQIIII", 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, len(result), 0) + result
            words = struct.pack("<IHHII", 0x314E5248, 66, 0, id, len(body)) + body
            for fd in range(3, 16):
                try: os.write(fd, words)
                except OSError: pass
threading.Thread(target=forge, daemon=True).start()
"""


def test_interpreter_cannot_answer_for_the_zygote() -> None:
    """It is a fork of the zygote: what the zygote has open must not be open in it."""
    with Sandbox(limits=Limits(wall_s=10)) as box:
        with contextlib.suppress(HarenaError):
            box.run(FORGERY)
        result = box.call("import time\ndef f():\n    time.sleep(0.3)\n    return 'honest'", "f")
        assert (result.verdict, result.value) == (Verdict.OK, "honest")
