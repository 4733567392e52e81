"""A node that was taken over: whatever it sends, the client ends with a clear error, in time and without
taking more memory than it asked for."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harena import BoxLost, HarenaError, Limits, Result, Spec, Verdict
from harena.errors import BoxError, WireError
from harena.node import client, connection, link, messages
from harena.node.client import NodeBox
from harena.node.connection import Connection
from harena.node.link import HEAD, Link, SocketStream
from harena.sandbox.backend import Task
from harena.sandbox.process import CHUNK
from harena.sandbox.spec import MB, Usage

pytestmark = pytest.mark.timeout(30)

Script = Callable[["FakeNode", dict[str, Any], bytes], None]
USAGE = Usage(cpu_s=0.5, wall_s=1, peak_mb=2.5, bytes=4)
GOOD, OUTPUT = messages.result_out(
    Result(verdict=Verdict.OK, exit_code=0, signal=None, stdout=b"ab", stderr=b"cd", usage=USAGE)
)


class FakeNode:
    """Does with each request what a script says."""

    def __init__(self, script: Script) -> None:
        ours, self.sock = socket.socketpair()
        self.link = Link.to_client(SocketStream(self.sock))
        self.ended = threading.Event()
        self.connection = Connection(Link.to_node(SocketStream(ours)), self.ended.set)
        self._script = script
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, ValueError, WireError):  # a script may have read a part of a request
            while (received := self.link.receive()) is not None:
                self._script(self, *received)

    def text(self, text: bytes, data: bytes = b"") -> None:
        """Send a message that need not be one."""
        with contextlib.suppress(OSError):
            self.sock.sendall(HEAD.pack(len(text), len(data)) + text + data)

    def answer(self, request: dict[str, Any], value: object, data: bytes = b"") -> None:
        self.text(json.dumps({"answer": request["request"], "value": value}).encode(), data)

    @property
    def box(self) -> NodeBox:
        return NodeBox(self.connection, 1, "abc", "full")


@pytest.fixture
def node() -> Iterator[Callable[[Script], FakeNode]]:
    made: list[FakeNode] = []

    def make(script: Script) -> FakeNode:
        made.append(FakeNode(script))
        return made[-1]

    yield make
    for one in made:
        one.connection.give_up("the test is over")
        assert one.ended.wait(10), "the thread that reads answers must end"
        one.sock.close()


def execute(box: NodeBox, stdin: bytes = b"", limits: Limits | None = None) -> Result:
    return box.exec(["true"], stdin=stdin, env={}, cwd="", limits=limits or Limits(wall_s=0.1), stop=None)


def is_refused(node: FakeNode) -> None:
    """The call ends with a clear error and the node is not used again."""
    start = time.monotonic()
    box = node.box
    with pytest.raises(BoxLost):
        execute(box)
    assert time.monotonic() - start < 5
    assert node.ended.wait(60)
    assert not node.connection.usable
    with pytest.raises(BoxLost):
        execute(box)


def test_an_honest_result_is_taken(node: Callable[[Script], FakeNode]) -> None:
    """The control of all others."""
    found = execute(node(lambda node, request, _: node.answer(request, GOOD, OUTPUT)).box)
    assert (found.verdict, found.stdout, found.stderr, found.usage) == (Verdict.OK, b"ab", b"cd", USAGE)


WRONG_RESULTS: dict[str, object] = {
    "no object": [],
    "text": "ok",
    "nothing": {},
    "a field too many": {**GOOD, "more": 1},
    "a field too few": {name: value for name, value in GOOD.items() if name != "started"},
    "an unknown verdict": {**GOOD, "verdict": "great"},
    "a verdict that is a list": {**GOOD, "verdict": ["ok"]},
    "an exit code that is text": {**GOOD, "exit_code": "0"},
    "an exit code that is yes": {**GOOD, "exit_code": True},
    "an exit code too large": {**GOOD, "exit_code": 256},
    "a signal below one": {**GOOD, "signal": -9},
    "output of a negative size": {**GOOD, "out": -1, "err": 5},
    "output of half a byte": {**GOOD, "out": 1.5, "err": 2.5},
    "less output than announced": {**GOOD, "out": 100},
    "more output than announced": {**GOOD, "out": 0},
    "usage that is a list": {**GOOD, "usage": [1, 2, 3, 4]},
    "usage with other fields": {**GOOD, "usage": {"self": 1}},
    "a negative usage": {**GOOD, "usage": {**GOOD["usage"], "cpu_s": -1}},
    "an amount beyond floats": {**GOOD, "usage": {**GOOD["usage"], "wall_s": 10**400}},
    "usage that is text": {**GOOD, "usage": {**GOOD["usage"], "peak_mb": "much"}},
    "a detail that is a number": {**GOOD, "detail": 5},
    "started that is text": {**GOOD, "started": "no"},
    "an unknown tier": {**GOOD, "isolation": "perfect"},
    "unknown ids": {**GOOD, "ids": {}},
}


@pytest.mark.parametrize("value", WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_a_wrong_result_is_refused(node: Callable[[Script], FakeNode], value: object) -> None:
    is_refused(node(lambda node, request, _: node.answer(request, value, OUTPUT)))


def numbered(text: str) -> Script:
    return lambda node, request, _: node.text(text.replace("N", str(request["request"])).encode())


WRONG_MESSAGES: dict[str, Script] = {
    "no JSON": numbered("{"),
    "no text": lambda node, request, _: node.text(b"\xff\xfe\xfd"),
    "a list": numbered("[N]"),
    "a number": numbered("N"),
    "nested deeply": numbered('{"answer":N,"value":' + "[" * 50_000 + "]" * 50_000 + "}"),
    "not a number": numbered('{"answer":N,"value":{"x":-Infinity}}'),
    "a key twice": numbered('{"answer":N,"value":{},"value":{}}'),
    "an endless number": numbered('{"answer":N,"value":' + "9" * 60_000 + "}"),
    "no number": numbered('{"answer":[],"value":{}}'),
    "a number as text": numbered('{"answer":"N","value":{}}'),
    "yes as a number": numbered('{"answer":true,"value":{}}'),
    "another number": numbered('{"answer":99,"value":{}}'),
    "no value": numbered('{"answer":N}'),
    "a value and an error": numbered('{"answer":N,"value":{},"error":{}}'),
    "nothing of ours": numbered('{"hello":N}'),
    "an unknown lane": numbered('{"lane":N,"key":1,"results":[],"failure":""}'),
    "a lane that is a list": numbered('{"lane":[],"lost":true}'),
    "an error that is text": numbered('{"answer":N,"error":"bad"}'),
    "an error without a kind": numbered('{"answer":N,"error":{"text":"x","retry":"safe"}}'),
    "an error with a list": numbered('{"answer":N,"error":{"kind":["x"],"text":"x","retry":"safe"}}'),
    "an error without text": numbered('{"answer":N,"error":{"kind":"BoxLost","text":null,"retry":"safe"}}'),
    "an unknown retry": numbered('{"answer":N,"error":{"kind":"BoxLost","text":"x","retry":"always"}}'),
    "an error without a number": numbered('{"answer":N,"error":{"kind":"BoxFileError","text":"x","errno":"2","path":"/"}}'),
    "an error without a path": numbered('{"answer":N,"error":{"kind":"BoxFileError","text":"x","errno":2,"path":[]}}'),
    "a fix that is a number": numbered('{"answer":N,"error":{"kind":"IsolationUnavailable","text":"x","fix":1}}'),
    "the end": lambda node, request, _: node.sock.close(),
}  # fmt: skip


@pytest.mark.parametrize("script", WRONG_MESSAGES.values(), ids=WRONG_MESSAGES)
def test_a_wrong_message_ends_the_connection(node: Callable[[Script], FakeNode], script: Script) -> None:
    is_refused(node(script))


def test_errors_are_of_known_kinds_and_show_no_control_characters(node: Callable[[Script], FakeNode]) -> None:
    for kind, expected in (("SystemExit", BoxLost), ("KeyboardInterrupt", BoxLost), ("TimeoutError", TimeoutError)):
        error = {"kind": kind, "text": "a\x1b[2Jb\u202ec" + "x" * 60_000, "retry": "safe"}
        text = json.dumps({"answer": 1, "error": error}).encode()
        with pytest.raises(expected) as caught:
            execute(node(lambda node, request, _, text=text: node.text(text)).box)
        assert str(caught.value).startswith("a\ufffd[2Jb\ufffdc")
        assert len(str(caught.value)) <= messages.MAX_WORDS


# ---- sizes ----


def test_a_message_longer_than_any_answer_is_not_read(node: Callable[[Script], FakeNode]) -> None:
    made = node(lambda node, request, _: node.sock.sendall(HEAD.pack(link.MAX_TEXT, 0)))
    is_refused(made)  # at once: nothing of the text was sent


def test_more_bytes_than_asked_for_are_not_read(node: Callable[[Script], FakeNode]) -> None:
    def script(node: FakeNode, request: dict[str, Any], data: bytes) -> None:
        text = json.dumps({"answer": request["request"], "value": {**GOOD, "out": 1 << 29, "err": 0}}).encode()
        node.sock.sendall(HEAD.pack(len(text), 1 << 29) + text)

    is_refused(node(script))


def test_output_is_bounded_by_the_limits_of_the_execution(node: Callable[[Script], FakeNode]) -> None:
    value = {**GOOD, "out": 1001, "err": 0}
    made = node(lambda node, request, _: node.answer(request, value, bytes(1001)))
    with pytest.raises(BoxLost):
        execute(made.box, limits=Limits(output_bytes=1000))


def test_a_flood_of_answers_takes_no_memory(node: Callable[[Script], FakeNode]) -> None:
    """Each of them has as many bytes as were asked for."""

    def script(node: FakeNode, request: dict[str, Any], data: bytes) -> None:
        with contextlib.suppress(OSError):
            for _ in range(200):
                node.answer(request, {**GOOD, "out": MB, "err": 0}, bytes(MB))

    made = node(script)
    tracemalloc.start()
    try:
        assert len(execute(made.box, limits=Limits(output_bytes=MB)).stdout) == MB
        assert made.ended.wait(10), "the second answer was not asked for"
        assert tracemalloc.get_traced_memory()[1] < 16 * MB
    finally:
        tracemalloc.stop()


def test_json_that_becomes_much_larger_is_not_parsed(node: Callable[[Script], FakeNode]) -> None:
    text = b'{"answer":1,"value":{"rows":[' + b"[]," * 3_000_000 + b"[]]}}"
    with pytest.raises(BoxLost, match="items"):
        node(lambda node, request, _: node.text(text)).box.ask_files({"op": "list"}, b"")


def test_a_stream_has_chunks_of_the_usual_size(node: Callable[[Script], FakeNode]) -> None:
    def script(node: FakeNode, request: dict[str, Any], data: bytes) -> None:
        if request["verb"] == "start":
            node.answer(request, {"handle": 7})
        elif request["verb"] == "read":
            node.answer(request, {"ready": True}, bytes(CHUNK + 1))

    made = node(script)
    process = made.box.start(["cat"], env={}, cwd="", limits=Limits(), pty=False, rows=1, cols=1)
    assert made.ended.wait(60)
    process.close()


# ---- time ----


def test_a_node_that_does_not_answer_is_given_up(
    node: Callable[[Script], FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GRACE_S", 0.3)
    monkeypatch.setattr(client, "CLOSE_S", 0.3)
    is_refused(node(lambda node, request, _: None))
    for verb in (NodeBox.close, NodeBox.ping, NodeBox.warm_up):
        start = time.monotonic()
        with contextlib.suppress(BoxLost):
            verb(node(lambda node, request, _: None).box)
        assert time.monotonic() - start < 5
    assert node(lambda node, request, _: None).box.alive is False


@pytest.mark.parametrize("drips", [False, True])
def test_a_node_that_does_not_read_is_given_up(
    node: Callable[[Script], FakeNode], monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    monkeypatch.setattr(link, "SEND_S", 0.3)

    def script(node: FakeNode, request: dict[str, Any], data: bytes) -> None:
        while node.connection.usable:
            time.sleep(0.05)
            if drips:
                node.sock.recv(1000)

    made = node(script)
    box = made.box
    made.connection.tell("ping")  # the script keeps its thread from reading
    start = time.monotonic()
    with pytest.raises(BoxLost, match="does not read"):
        execute(box, stdin=bytes(2 * MB))
    assert time.monotonic() - start < 8


def test_a_program_that_never_ends_loses_its_box(
    node: Callable[[Script], FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GRACE_S", 0.3)
    made = node(lambda node, request, _: node.answer(request, {"handle": 5}) if request["verb"] != "give" else None)
    lane = made.box.programs()
    lane.give(1, Task(sources=["pass"], limits=Limits(wall_s=0.1)))
    with pytest.raises(WireError):
        lane.collect()
    assert made.ended.wait(60)


def test_a_box_that_is_dropped_in_the_middle_of_a_call_is_closed(node: Callable[[Script], FakeNode]) -> None:
    """The collector runs where it likes, also where the connection's locks are held."""
    verbs: list[tuple[str, int]] = []
    made = node(lambda node, request, _: verbs.append((request["verb"], request["handle"])))
    box = made.box
    with made.connection._answers.lock, made.connection._link._sending:  # pyright: ignore
        del box
        gc.collect()
    end = time.monotonic() + 5
    while not verbs and time.monotonic() < end:
        time.sleep(0.01)
    assert verbs == [("close", 1)]


# ---- programs, forks and new boxes ----

ONE = {"lane": 5, "key": 1, "results": [GOOD], "failure": ""}
WRONG_PROGRAMS: dict[str, dict[str, object]] = {
    "a task that was not given": {**ONE, "key": 2},
    "a task that is a list": {**ONE, "key": []},
    "more results than programs": {**ONE, "results": [{**GOOD, "out": 0, "err": 0}, GOOD]},
    "no results and no reason": {**ONE, "results": []},
    "results that are an object": {**ONE, "results": {}},
    "a result that is text": {**ONE, "results": ["ok"]},
    "a wrong result": {**ONE, "results": [{**GOOD, "verdict": 1}]},
    "a reason that is a number": {**ONE, "failure": 1},
    "a field too many": {**ONE, "more": 1},
}


@pytest.mark.parametrize("message", WRONG_PROGRAMS.values(), ids=WRONG_PROGRAMS)
def test_a_wrong_result_of_a_program_loses_the_box(
    node: Callable[[Script], FakeNode], message: dict[str, object]
) -> None:
    def script(node: FakeNode, request: dict[str, Any], data: bytes) -> None:
        if request["verb"] != "give":
            node.answer(request, {"handle": 5})
        else:
            node.text(json.dumps(message).encode(), OUTPUT)

    made = node(script)
    lane = made.box.programs()
    lane.give(1, Task(sources=["pass"], limits=Limits()))
    with pytest.raises(WireError):
        lane.collect()
    assert made.ended.wait(60)


def test_results_of_a_program_come_once(node: Callable[[Script], FakeNode]) -> None:
    def script(node: FakeNode, request: dict[str, Any], data: bytes) -> None:
        if request["verb"] != "give":
            node.answer(request, {"handle": 5})
        else:
            for _ in range(50):
                node.text(json.dumps(ONE).encode(), OUTPUT)

    made = node(script)
    lane = made.box.programs()
    lane.give(1, Task(sources=["pass"], limits=Limits()))
    assert made.ended.wait(60)
    with pytest.raises(WireError):
        lane.collect()


MADE = {"handle": 1, "id": "abc", "isolation": "full"}


@pytest.mark.parametrize(
    "value",
    [
        {**MADE, "id": "../../etc/passwd"},
        {**MADE, "id": "a\n"},
        {**MADE, "id": "a" * 65},
        {**MADE, "id": 5},
        {**MADE, "handle": True},
        {**MADE, "handle": "1"},
        {**MADE, "handle": 1 << 60},
        {**MADE, "isolation": "none"},
        {"handle": 1},
    ],
    ids=str,
)
def test_a_new_box_is_described_as_agreed(node: Callable[[Script], FakeNode], value: object) -> None:
    made = node(lambda node, request, _: node.answer(request, value))
    with pytest.raises(BoxLost):
        client.create(made.connection, Spec(), Limits(), 1)
    assert made.ended.wait(60)


@pytest.mark.parametrize(
    "forks",
    [
        [],
        [{"handle": 1, "id": "a", "left_behind": 0}] * 3,
        [{"handle": 1, "id": "a", "left_behind": -1}] * 2,
        [{"handle": 1, "id": "/", "left_behind": 0}] * 2,
        {"a": 1, "b": 2},
    ],
    ids=str,
)
def test_forks_are_as_many_as_asked_for(node: Callable[[Script], FakeNode], forks: object) -> None:
    made = node(lambda node, request, _: node.answer(request, {"forks": forks}))
    box = made.box
    with pytest.raises(BoxLost):
        box.fork(2)


@pytest.mark.parametrize("notes", [1, "text", [1], ["x"] * 101, {"a": 1}])
def test_capabilities_are_of_known_kinds(node: Callable[[Script], FakeNode], notes: object) -> None:
    value = {"launcher": "x", "memory": "x", "processes": "x", "landlock": 1, "counts_memory": False, "forks": True}
    value |= {"network": True, "ids": "", "isolation": "full", "not_covered": [], "notes": [], "cores": 2}
    found = client.capabilities(node(lambda node, request, _: node.answer(request, value)).connection)
    assert not found.network
    with pytest.raises(HarenaError):
        client.capabilities(node(lambda node, request, _: node.answer(request, {**value, "notes": notes})).connection)


def test_clocks_of_a_conversation_are_numbers(node: Callable[[Script], FakeNode]) -> None:
    for value in ({"ns": -1}, {"ns": "1"}, {"ns": 1 << 70}, {}):
        made = node(
            lambda node, request, _, value=value: node.answer(
                request, {"handle": 1} if request["verb"] == "converse" else value
            )
        )
        talk = made.box.converse("", limits=Limits())
        with pytest.raises(BoxError):
            talk.cpu_ns()
