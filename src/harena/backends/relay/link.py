"""Messages between a client and a node: a JSON object and bytes, on a stream. They carry specs, limits, results and
errors. Sizes are capped before memory is allocated, and an unknown error never becomes a success.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

from harena import errors
from harena.errors import BoxFileError, BoxLost, IsolationUnavailable, Retry, WireError
from harena.sandbox.backend import Task
from harena.sandbox.spec import MB, Limits, Mount, Result, Spec, Usage, Verdict

HEAD = struct.Struct("<II")
MAX_TEXT = 64 * MB
MAX_DATA = 1 << 30
Message = dict[str, Any]


class Link:
    """One end of the stream. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any], data: bytes = b"") -> None:
        text = json.dumps(message, separators=(",", ":")).encode()
        if len(text) > MAX_TEXT or len(data) > MAX_DATA:
            raise WireError(f"a message of {len(text) + len(data)} bytes is too long")
        with self._sending:
            self._sock.sendall(HEAD.pack(len(text), len(data)) + text + data)

    def receive(self) -> tuple[Message, bytes] | None:
        """Receive a message; None at the end of the stream."""
        head = self._exactly(HEAD.size)
        if head is None:
            return None
        length, size = HEAD.unpack(head)
        if length > MAX_TEXT or size > MAX_DATA:
            raise WireError("the other side announced a message that is too long")
        text, data = self._exactly(length), self._exactly(size)
        if text is None or data is None:
            return None
        message = json.loads(text)
        if not isinstance(message, dict):
            raise WireError("the other side sent something else than a message")
        return cast("Message", message), data

    def _exactly(self, size: int) -> bytes | None:
        parts: list[bytes] = []
        while size:
            try:
                part = self._sock.recv(min(size, 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def hang_up(self) -> None:
        """End the conversation; whoever receives sees its end."""
        with contextlib.suppress(OSError):  # the other side was first
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def abandon(self) -> None:
        """Close the copy in a forked child without ending the connection."""
        fd = self._sock.detach()
        if fd >= 0:
            os.close(fd)


# ---- values ----


def spec_out(spec: Spec) -> Message:
    return dataclasses.asdict(spec) | {"env": dict(spec.env)}


def spec_in(message: Message) -> Spec:
    mounts = tuple(Mount(**mount) for mount in message["mounts"])
    lists = {name: tuple(message[name]) for name in ("packages", "preload", "paths", "allow")}
    fields: Message = {**message, **lists, "mounts": mounts}
    return Spec(**fields)


def task_out(task: Task) -> Message:
    return {**dataclasses.asdict(task), "sources": list(task.sources), "stdin": None}


def task_in(message: Message, stdin: bytes) -> Task:
    fields: Message = {**message, "limits": Limits(**message["limits"]), "stdin": stdin}
    return Task(**fields)


def json_arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Message:
    """Check that the arguments of a call are valid JSON before anything is sent."""
    given = {"args": [*args], "kwargs": {**kwargs}}
    try:
        json.dumps(given, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise errors.SpecError(f"call {name}: its arguments are not JSON: {error}") from None
    return given


def result_out(result: Result) -> tuple[Message, bytes]:
    message = {
        "verdict": result.verdict.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "usage": dataclasses.asdict(result.usage),
        "detail": result.detail,
        "value": result.value,
        "started": result.started,
        "out": len(result.stdout),
        "err": len(result.stderr),
    }
    return message, result.stdout + result.stderr


def result_in(message: Message, data: bytes) -> Result:
    out, end = message["out"], message["out"] + message["err"]
    return Result(
        verdict=Verdict(message["verdict"]),
        exit_code=message["exit_code"],
        signal=message["signal"],
        stdout=data[:out],
        stderr=data[out:end],
        usage=Usage(**message["usage"]),
        detail=message["detail"],
        value=message["value"],
        started=message["started"],
    )


# ---- errors ----

PLAIN = {
    kind.__name__: kind
    for kind in (
        errors.SpecError,
        errors.BackendUnavailable,
        errors.Unsupported,
        errors.BoxClosed,
        errors.StartTimeout,
        errors.QueueTimeout,
        errors.WireError,
        BrokenPipeError,
        ProcessLookupError,
        BlockingIOError,
        TimeoutError,
        OSError,
    )
}
"""Errors that are recreated from their text alone, the most specific first."""


def error_out(error: BaseException) -> Message:
    if isinstance(error, BoxFileError):
        return {"kind": "BoxFileError", "text": error.strerror, "errno": error.errno, "path": error.filename}
    if isinstance(error, IsolationUnavailable):
        return {"kind": "IsolationUnavailable", "text": error.missing, "fix": error.fix}
    kind = next((name for name, plain in PLAIN.items() if isinstance(error, plain)), type(error).__name__)
    retry = error.retry.value if isinstance(error, errors.BoxError) else Retry.UNKNOWN.value
    return {"kind": kind, "text": str(error), "retry": retry}


def error_in(message: Message) -> Exception:
    kind, text = message["kind"], message["text"]
    if kind == "BoxFileError":
        return errors.file_error(message["errno"], message["path"], text)
    if kind == "IsolationUnavailable":
        return IsolationUnavailable(text, fix=message["fix"])
    if kind in PLAIN:
        return PLAIN[kind](text)
    retry = Retry(message["retry"])
    return errors.BoxError(text, retry=retry) if kind == "BoxError" else BoxLost(text, retry=retry)
