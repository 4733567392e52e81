"""Messages between a client and a node: a JSON object and bytes, on a stream. They carry specs, limits, results and
errors.

Neither side trusts the other. A client does not trust its node, which a guest may have taken over: what comes from a
node has a closed schema, sizes are bounded by what was asked for before memory is allocated, and an unknown error never
becomes a success. `verbs` checks what comes from a client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from harena import errors
from harena.errors import BoxFileError, BoxLost, IsolationUnavailable, Retry, WireError
from harena.sandbox.backend import Capabilities, Task
from harena.sandbox.network import Denied, Network, NetworkReport
from harena.sandbox.spec import MB, Limits, Mount, Result, Spec, Usage, Verdict
from harena.sandbox.strict_json import MAX_ANSWER_ITEMS, parse_json

HEAD = struct.Struct("<II")
MAX_TEXT = 20 * MB
"""Largest JSON object of a request."""
MAX_ANSWER_TEXT = 64 * MB
"""The same for an answer, which may have a value as large as the output of its execution."""
SMALL_TEXT = 64 * 1024
"""Maximum size of the JSON of an answer without lists or values."""
FILES_TEXT = 16 * MB + SMALL_TEXT
"""The same for an answer about files."""
MAX_ITEMS = 3_000_000
"""Commas and brackets of one JSON object of a request: a few bytes of JSON take a hundred in memory."""
MAX_REQUEST = 64 * MB
"""Most bytes beside the object of a request, the same as for a message to a box."""
MAX_ANSWER = 600 * MB
"""Most bytes beside the object of an answer: the output of a group of programs."""
MAX_CORES = 4096
"""Most processors of a node that are believed: a pool makes as many boxes."""
AHEAD = 64 * 1024
"""Bytes to receive at once, so that a usual message takes one call."""
SEND_S = 30.0
SEND_BYTES_S = MB
"""The other side must take what is sent within SEND_S, and one second more for each SEND_BYTES_S bytes."""
Message = dict[str, Any]


class ByteStream(Protocol):
    """A connected stream of bytes. Raises OSError once it is lost."""

    def send(self, data: bytes, deadline: float | None) -> None:
        """Send all of it. Raises TimeoutError if the other side has not taken it at that monotonic time; then a part of
        it may be missing, and the stream is of no use any more."""
        ...

    def receive(self) -> bytes:
        """Return some bytes; b"" at the end of the stream."""
        ...

    def hang_up(self) -> None:
        """End the stream for both sides; whoever receives sees its end."""
        ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Close the copy in a forked child without ending the connection."""
        ...


class SocketStream:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, data: bytes, deadline: float | None) -> None:
        if deadline is None:
            self._sock.sendall(data)
            return
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._sock, select.POLLOUT)
                left = deadline - time.monotonic()
                if left <= 0 or not poll.poll(left * 1000):
                    raise TimeoutError("the other side does not read") from None

    def receive(self) -> bytes:
        return self._sock.recv(AHEAD)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the other side was first
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def abandon(self) -> None:
        fd = self._sock.detach()
        if fd >= 0:
            os.close(fd)


class RequestDecoder:
    """Cuts the stream of a client into requests. Raises WireError for what is none."""

    def __init__(self, max_data: int) -> None:
        self._max_data = max_data
        self._parts: list[bytes] = []
        self._have = 0
        self._need = HEAD.size
        self._head: tuple[int, int] | None = None

    @property
    def waiting(self) -> bool:
        """True in the middle of a message."""
        return self._have > 0 or self._head is not None

    @property
    def held(self) -> int:
        """Bytes of an unfinished message that are in memory."""
        return self._have

    def feed(self, data: bytes) -> list[tuple[Message, bytes]]:
        found: list[tuple[Message, bytes]] = []
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return found
        buffer = memoryview(b"".join(self._parts))
        while len(buffer) >= self._need:
            body, buffer = buffer[: self._need], buffer[self._need :]
            if self._head is None:
                length, size = HEAD.unpack(body)
                if length > MAX_TEXT or size > self._max_data:
                    raise WireError("the other side announced a message that is too long")
                self._head, self._need = (length, size), length + size
            else:
                length, size = self._head
                found.append((parse(bytes(body[:length])), bytes(body[length:])))
                self._head, self._need = None, HEAD.size
        self._parts, self._have = [bytes(buffer)] if buffer else [], len(buffer)
        return found


def parse(text: bytes) -> Message:
    """Parse the JSON object of a request, of bounded size; NaN and infinities are refused."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_ITEMS:
        raise WireError("the other side sent a message with too many items")
    try:
        message = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the other side sent something else than JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise WireError("the other side sent something else than a message")
    return cast("Message", message)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def encode(message: Mapping[str, Any], data: bytes, max_data: int, max_text: int = MAX_ANSWER_TEXT) -> bytes:
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(text) > max_text or len(data) > max_data:
        raise WireError(f"a message of {len(text) + len(data)} bytes is too long")
    return b"".join((HEAD.pack(len(text), len(data)), text, data))


class Link:
    """One end of the stream. Any thread may send; one receives, either requests or answers."""

    def __init__(self, stream: ByteStream, *, max_sent: int, max_text: int, max_received: int) -> None:
        self._stream = stream
        self._max_text = max_text
        self._sending = threading.Lock()
        self._max_sent = max_sent
        self._max_received = max_received
        self._decoder = RequestDecoder(max_received)
        self._requests: deque[tuple[Message, bytes]] = deque()
        self._early = b""
        """What was received beyond the part of an answer that was asked for."""

    @classmethod
    def to_node(cls, stream: ByteStream) -> Link:
        """The end of a client."""
        return cls(stream, max_sent=MAX_REQUEST, max_text=MAX_TEXT, max_received=MAX_ANSWER)

    @classmethod
    def to_client(cls, stream: ByteStream) -> Link:
        """The end of a node."""
        return cls(stream, max_sent=MAX_ANSWER, max_text=MAX_ANSWER_TEXT, max_received=MAX_REQUEST)

    def send(self, message: Mapping[str, Any], data: bytes = b"", *, within_s: float | None = None) -> None:
        """Send a message. Raises OSError if the other side is gone, or has not taken it in time; then the rest of a
        message may be missing, and the link is of no use any more."""
        frame = encode(message, data, self._max_sent, self._max_text)
        if within_s is None:
            with self._sending:
                self._stream.send(frame, None)
            return
        within_s += len(frame) / SEND_BYTES_S
        deadline = time.monotonic() + within_s
        if not self._sending.acquire(timeout=within_s):
            raise TimeoutError("the other side does not read")
        try:
            self._stream.send(frame, deadline)
        finally:
            self._sending.release()

    def receive(self) -> tuple[Message, bytes] | None:
        """Receive a request of a client; None at the end of the stream."""
        while not self._requests:
            data = self._some()
            if not data:
                return None
            self._requests.extend(self._decoder.feed(data))
        return self._requests.popleft()

    def receive_answer(
        self, max_text: Callable[[], int], room: Callable[[Message], int]
    ) -> tuple[Message, bytes] | None:
        """Receive a message of a node; None at the end of the stream. `max_text` says how long its JSON may be, and
        `room` how many bytes may follow this message; it raises WireError for a message that nobody waits for."""
        head = self._exactly(HEAD.size)
        if head is None:
            return None
        length, size = HEAD.unpack(head)
        if length > min(max_text(), MAX_ANSWER_TEXT) or size > self._max_received:
            raise WireError("the other side announced a message that is too long")
        text = self._exactly(length)
        if text is None:
            return None
        message = parse_json(text, MAX_ANSWER_ITEMS)
        if not isinstance(message, dict):
            raise WireError("the other side sent something else than a message")
        message = cast("Message", message)
        if size > room(message):
            raise WireError("the other side announced more bytes than were asked for")
        data = self._exactly(size)
        return None if data is None else (message, data)

    def _exactly(self, size: int) -> bytes | None:
        part, self._early = self._early, b""
        parts: list[bytes] = []
        while len(part) < size:
            parts.append(part)
            size -= len(part)
            part = self._some()
            if not part:
                return None
        parts.append(part[:size])
        self._early = part[size:]
        return b"".join(parts)

    def _some(self) -> bytes:
        try:
            return self._stream.receive()
        except OSError:
            return b""

    def hang_up(self) -> None:
        """End the conversation; whoever receives sees its end."""
        self._stream.hang_up()

    def close(self) -> None:
        self._stream.close()

    def abandon(self) -> None:
        """Close the copy in a forked child without ending the connection."""
        self._stream.abandon()


# ---- values that a client sends; `verbs` checks them ----


def spec_out(spec: Spec) -> Message:
    return dataclasses.asdict(spec) | {"env": dict(spec.env)}


def spec_in(message: Message) -> Spec:
    mounts = tuple(Mount(**mount) for mount in message["mounts"])
    lists = {name: tuple(message[name]) for name in ("packages", "requirements", "preload", "paths", "allow")}
    fields: Message = {**message, **lists, "mounts": mounts, "network": network_in(message["network"])}
    return Spec(**fields)


def network_out(network: Network | None) -> Message | None:
    return None if network is None else dataclasses.asdict(network)


def network_in(message: Message | None) -> Network | None:
    return None if message is None else Network(**message)


def limits_out(limits: Limits) -> Message:
    return {name: getattr(limits, name) for name in Limits.__dataclass_fields__}


def task_out(task: Task) -> tuple[Message, bytes]:
    """The sources and the input travel as bytes, which need no quoting."""
    pieces = [source.encode("utf-8", "surrogatepass") for source in task.sources]
    fields: Message = {"grouped": task.grouped, "limits": limits_out(task.limits), "more": task.more}
    return {**fields, "sizes": [len(piece) for piece in pieces]}, b"".join([*pieces, task.stdin])


def task_in(message: Message, data: bytes) -> Task:
    sources: list[str] = []
    for size in message["sizes"]:
        sources.append(data[:size].decode("utf-8", "surrogatepass"))
        data = data[size:]
    limits = Limits(**message["limits"])
    return Task(sources=sources, stdin=data, grouped=message["grouped"], limits=limits, more=message["more"])


def json_arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Message:
    """Check that the arguments of a call are valid JSON before anything is sent."""
    given = {"args": [*args], "kwargs": {**kwargs}}
    try:
        json.dumps(given, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise errors.SpecError(f"call {name}: its arguments are not JSON: {error}") from None
    return given


# ---- values that a node sends; a client does not trust them ----


def result_out(result: Result) -> tuple[Message, bytes]:
    message = {
        "verdict": result.verdict.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "usage": dataclasses.asdict(result.usage),
        "detail": result.detail,
        "value": result.value,
        "started": result.started,
        "ids": result.ids,
        "isolation": result.isolation,
        "out": len(result.stdout),
        "err": len(result.stderr),
    }
    return message, result.stdout + result.stderr


def field(message: Message, name: str, *kinds: type) -> Any:
    """A field of an answer, which must have one of these types; a bool is not an int."""
    value = message.get(name)
    if type(value) not in kinds:
        raise WireError(f"the node sent an answer with a wrong {name}")
    return value


MAX_DENIED = 100
REPORT_TEXT = MAX_DENIED * 2048 + SMALL_TEXT
"""Maximum size of the JSON of a report of a network."""
MAX_NUMBER = 1 << 53
MAX_WORDS = 16 * 1024
"""Characters of a text from a node that are kept."""
IDS = ("", "single", "full")
TIERS = ("full", "restricted")


def fields(message: object, *names: str) -> Message:
    """An object that has exactly these fields."""
    if not isinstance(message, dict) or set(cast("Message", message)) != set(names):
        raise WireError(f"the node sent something else than {', '.join(names) or 'nothing'}")
    return cast("Message", message)


def whole(value: object, least: int = 0, most: int = MAX_NUMBER) -> int:
    if type(value) is not int or not least <= value <= most:
        raise WireError(f"the node sent something else than a number from {least} to {most}")
    return value


def number(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= cast("float", value) <= MAX_NUMBER:
        raise WireError("the node sent something else than an amount")
    return cast("float", value)


def yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise WireError("the node sent something else than yes or no")
    return value


def word(value: object, known: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise WireError(f"the node sent something else than one of {known}")
    return value


def words(value: object) -> str:
    """Text for people: without control characters, and not longer than anybody reads."""
    if not isinstance(value, str):
        raise WireError("the node sent something else than text")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in value[:MAX_WORDS])


def items(value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(cast("list[Any]", value)) > most:
        raise WireError(f"the node sent something else than a list of at most {most}")
    return cast("list[Any]", value)


RESULT = (
    *("verdict", "exit_code", "signal", "usage", "detail", "value", "started", "ids", "isolation"),
    *("out", "err"),
)
VERDICTS = tuple(verdict.value for verdict in Verdict)


def result_in(message: object, data: bytes) -> Result:
    found = fields(message, *RESULT)
    usage = fields(found["usage"], "cpu_s", "wall_s", "peak_mb", "bytes")
    out = whole(found["out"])
    if out + whole(found["err"]) != len(data):
        raise WireError("the node sent more or less output than it announced")
    return Result(
        verdict=Verdict(word(found["verdict"], VERDICTS)),
        exit_code=None if found["exit_code"] is None else whole(found["exit_code"], 0, 255),
        signal=None if found["signal"] is None else whole(found["signal"], 1, 64),
        stdout=data[:out],
        stderr=data[out:],
        usage=Usage(
            cpu_s=number(usage["cpu_s"]),
            wall_s=number(usage["wall_s"]),
            peak_mb=number(usage["peak_mb"]),
            bytes=whole(usage["bytes"]),
        ),
        detail=words(found["detail"]),
        value=found["value"],
        started=yes(found["started"]),
        ids=word(found["ids"], IDS),
        isolation=word(found["isolation"], TIERS),
    )


def results_in(values: object, data: bytes, most: int) -> list[Result]:
    results: list[Result] = []
    for one in items(values, most):
        if not isinstance(one, dict):
            raise WireError("the node sent something else than a result")
        message = cast("Message", one)
        size = whole(message.get("out")) + whole(message.get("err"))
        results.append(result_in(message, data[:size]))
        data = data[size:]
    if data:
        raise WireError("the node sent more output than it announced")
    return results


def capabilities_in(message: object) -> Capabilities:
    found = fields(message, *Capabilities.__dataclass_fields__)
    return Capabilities(
        launcher=words(found["launcher"]),
        memory=words(found["memory"]),
        processes=words(found["processes"]),
        landlock=whole(found["landlock"]),
        counts_memory=yes(found["counts_memory"]),
        forks=yes(found["forks"]),
        network=yes(found["network"]),
        ids=word(found["ids"], IDS),
        isolation=word(found["isolation"], TIERS),
        not_covered=tuple(map(words, items(found["not_covered"], 100))),
        notes=tuple(map(words, items(found["notes"], 100))),
        cores=whole(found["cores"], 0, MAX_CORES),
    )


def report_out(report: NetworkReport) -> Message:
    return dataclasses.asdict(report)


def report_in(message: object) -> NetworkReport:
    found = fields(message, *NetworkReport.__dataclass_fields__)
    denied = [fields(one, *Denied.__dataclass_fields__) for one in items(found["denied"], MAX_DENIED)]
    return NetworkReport(
        connections=whole(found["connections"]),
        bytes_out=whole(found["bytes_out"], 0, 1 << 63),
        bytes_in=whole(found["bytes_in"], 0, 1 << 63),
        refused=whole(found["refused"]),
        denied=tuple(Denied(words(one["target"]), words(one["reason"]), whole(one["count"])) for one in denied),
    )


# ---- errors ----

PLAIN = {
    kind.__name__: kind
    for kind in (
        errors.SpecError,
        errors.BackendUnavailable,
        errors.Unsupported,
        errors.BoxClosed,
        errors.RequirementsFailed,
        errors.StartTimeout,
        errors.QueueTimeout,
        errors.BudgetExceeded,
        errors.WireError,
        BrokenPipeError,
        ProcessLookupError,
        BlockingIOError,
        TimeoutError,
        OSError,
    )
}
"""Errors that are recreated from their text alone, the most specific first."""
RETRYABLE = {kind.__name__: kind for kind in (errors.BoxError, errors.JournalError)}
"""Errors that say whether to try again. What is not known is a box that was lost."""


def error_out(error: BaseException) -> Message:
    """What a client learns of an error. The text of one that is not ours could name files of the host."""
    if isinstance(error, BoxFileError):
        return {"kind": "BoxFileError", "text": error.strerror, "errno": error.errno, "path": error.filename}
    if isinstance(error, IsolationUnavailable):
        return {"kind": "IsolationUnavailable", "text": error.missing, "fix": error.fix}
    kind = next((name for name, plain in PLAIN.items() if isinstance(error, plain)), type(error).__name__)
    retry = error.retry.value if isinstance(error, errors.BoxError) else Retry.UNKNOWN.value
    if isinstance(error, errors.HarenaError):
        text = str(error)
    elif isinstance(error, OSError):
        text = error.strerror or (str(error) if error.filename is None else type(error).__name__)
    else:
        text = f"the node failed: {type(error).__name__}"
    return {"kind": kind, "text": text, "retry": retry}


def error_in(message: object) -> Exception:
    if not isinstance(message, dict):
        raise WireError("the node sent something else than an error")
    found = cast("Message", message)
    kind, text = found.get("kind"), words(found.get("text"))
    if not isinstance(kind, str):
        raise WireError("the node sent an error without a kind")
    if kind == "BoxFileError":
        fields(found, "kind", "text", "errno", "path")
        return errors.file_error(whole(found["errno"], 1, 4095), words(found["path"]), text)
    if kind == "IsolationUnavailable":
        fields(found, "kind", "text", "fix")
        return IsolationUnavailable(text, fix=words(found["fix"]))
    fields(found, "kind", "text", "retry")
    retry = Retry(word(found["retry"], [one.value for one in Retry]))
    if kind in PLAIN:
        return PLAIN[kind](text)
    return RETRYABLE.get(kind, BoxLost)(text, retry=retry)
