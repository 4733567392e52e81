"""Interactive shells of sessions: a Process with a terminal, here or at the end of a WebSocket to a server."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, cast
from urllib.parse import urlencode

from harena.errors import BoxLost, WireError
from harena.node import messages
from harena.node.link import Message
from harena.node.place import Address
from harena.node.websocket import open_websocket
from harena.sandbox.process import CHUNK, Process, Written
from harena.sandbox.shell import LIFETIME_S, TERMINAL_BYTES
from harena.sandbox.spec import Limits, Result
from harena.sessions import errors

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash -i; exec sh -i")


def limits_of_terminal(limits: Limits) -> Limits:
    """A shell lives as long as its session; what its jobs may use at once stays as it is."""
    return replace(limits, wall_s=LIFETIME_S, cpu_s=None, output_bytes=TERMINAL_BYTES)


class _TerminalControl:
    """The server's side of a process. The server has seen all output and determines the verdict."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ended = threading.Event()
        self._result: Result | None = None

    def signal(self, number: int) -> None:
        self._send({"signal": number})

    def resize(self, rows: int, cols: int) -> None:
        self._send({"rows": rows, "cols": cols})

    def _send(self, message: Message) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):  # the process has ended
            self._connection.send(json.dumps(message))

    def wait(self, timeout_s: float, written: Written) -> Result:
        if not self._ended.wait(timeout_s):
            raise TimeoutError("the process has not ended")
        if self._result is None:
            raise BoxLost("the connection to the terminal was lost")
        return self._result

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def show(self, sock: socket.socket) -> None:
        """Pass on what appears, until the end."""
        from websockets.exceptions import ConnectionClosed

        try:
            with contextlib.suppress(ConnectionClosed, OSError):
                while self._result is None:
                    data = self._connection.recv()
                    if isinstance(data, bytes):
                        sock.sendall(data)
                    else:
                        self._result = _result_in(data)
        except WireError:
            self.forget()
        finally:
            self._ended.set()
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def type(self, fd: int) -> None:
        """Pass on what is typed, until nobody has the process any more."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed, OSError), os.fdopen(fd, "rb", buffering=0) as file:
            while data := file.read(CHUNK):
                self._connection.send(data)
        self.forget()


def _result_in(text: str) -> Result:
    try:
        message = cast("object", json.loads(text))
    except (ValueError, RecursionError):
        raise WireError("the server sent something else than JSON") from None
    return messages.result_in(messages.fields(message, "result")["result"], b"")


def open_terminal(
    place: Address,
    token: str | None,
    session_id: str,
    *,
    command: list[str],
    cwd: str | None,
    rows: int,
    cols: int,
) -> Process:
    """Start a process with a terminal in a session of a server."""
    options = [("rows", str(rows)), ("cols", str(cols)), *(("command", word) for word in command)]
    if cwd is not None:
        options.append(("workDir", cwd))
    path = f"/v1/sessions/{session_id}/shell?{urlencode(options)}"
    connection = open_websocket(place, token, path, errors.error_in)
    control = _TerminalControl(connection)
    terminal, theirs = socket.socketpair()
    typed = os.dup(theirs.fileno())
    for name, work, argument in (("show", control.show, theirs), ("type", control.type, typed)):
        threading.Thread(target=work, args=(argument,), name=f"harena-terminal-{name}", daemon=True).start()
    fd = terminal.detach()
    limits = limits_of_terminal(Limits())
    return Process(control, limits, (command or SHELL)[0], stdin=fd, stdout=fd, stderr=None, pty=True)
