"""A terminal of a session over a WebSocket, which ends with the connection.

Bytes are what is typed and what appears. Text is JSON: the client sends {"rows": 24, "cols": 80} or {"signal": 2}, with
0 to end everything; the server sends {"result": {…}} at the end. A client that sends anything else, or does not read,
is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Send

from harena.errors import HarenaError, SpecError, WireError
from harena.node import link, messages, verbs
from harena.sandbox.aio import AsyncStream
from harena.sandbox.process import Process
from harena.sandbox.spec import Result
from harena.serve.plane import REFUSED, STALLED_S

WAIT_S = 30.0
"""How long the end of a process may take after its last output."""
SIZE = verbs.record({"rows": verbs.whole(1, 65535), "cols": verbs.whole(1, 65535)})
SIGNAL = verbs.record({"signal": verbs.whole(0, 64)})
MAX_TEXT = 1000
MAX_FIELDS = 1000
RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


def options_of(query: bytes) -> dict[str, Any]:
    """Read ?rows=24&cols=80&workDir=src&command=python3&command=-q: the words of a command come in their order."""
    found: dict[str, Any] = {"rows": 24, "cols": 80, "cwd": None, "command": []}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise SpecError(f"the query is wrong, or has more than {MAX_FIELDS} fields") from None
    for name, value in pairs:
        if name in ("rows", "cols") and value.isascii() and value.isdigit() and 1 <= int(value[:6]) <= 65535:
            found[name] = int(value)
        elif name == "workDir":
            found["cwd"] = value
        elif name == "command":
            found["command"].append(value)
        else:
            raise SpecError(f"{name[:40]!r}: give rows, cols, workDir and command; sizes are from 1 to 65535")
    return found


async def serve_terminal(receive: Receive, send: Send, process: Process, run: RunInThread) -> None:
    """Serve an accepted connection until it or the process ends. `run` runs something in a thread."""
    showing, typing = asyncio.create_task(_show(process, send)), asyncio.create_task(_type(process, receive, run))
    try:
        done, _ = await asyncio.wait({showing, typing}, return_when=asyncio.FIRST_COMPLETED)
        if typing in done:
            if isinstance(typing.exception(), WireError):
                await _close(send, REFUSED, str(typing.exception()))
        elif showing.exception() is None:
            result: Result = await run(lambda: process.wait(WAIT_S))
            text = json.dumps({"result": messages.result_out(result)[0] | {"out": 0, "err": 0}})
            await send({"type": "websocket.send", "text": text})
            await _close(send, 1000, "the process has ended")
    except (HarenaError, TimeoutError):
        await _close(send, 1011, "the process was lost")
    finally:
        for task in (showing, typing):
            task.cancel()
        await asyncio.gather(showing, typing, return_exceptions=True)


async def _show(process: Process, send: Send) -> None:
    async for data in AsyncStream(process.stdout):
        async with asyncio.timeout(STALLED_S):
            await send({"type": "websocket.send", "bytes": data})


async def _type(process: Process, receive: Receive, run: RunInThread) -> None:
    while True:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            return
        if event.get("bytes"):
            await _write(process, event["bytes"])
        else:
            await _control(process, event.get("text") or "", run)


async def _control(process: Process, text: str, run: RunInThread) -> None:
    message = link.parse(text.encode("utf-8", "replace")) if len(text) <= MAX_TEXT else {}
    if SIZE(message):
        await run(lambda: process.resize(message["rows"], message["cols"]))
    elif SIGNAL(message):
        await run(process.kill if message["signal"] == 0 else lambda: process.send_signal(message["signal"]))
    else:
        raise WireError("text must be a size or a signal")


async def _write(process: Process, data: bytes) -> None:
    """Type into the terminal. What the guest does not read yet makes only this client wait, and takes no thread."""
    fd = process.stdout.fileno()  # a terminal has one descriptor for both directions
    if fd < 0:
        return
    fd, view = os.dup(fd), memoryview(data)
    loop, writable = asyncio.get_running_loop(), asyncio.Event()
    try:
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                writable.clear()
                loop.add_writer(fd, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(fd)
    except OSError:
        return  # the process has ended, which the other task sees
    finally:
        os.close(fd)


async def _close(send: Send, code: int, reason: str) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(1):
            await send({"type": "websocket.close", "code": code, "reason": reason[:100]})
