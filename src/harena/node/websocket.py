"""WebSocket connections to a server: opening one, and a stream of bytes over it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from harena.errors import BackendUnavailable, BoxError, Retry, WireError
from harena.node import messages, variables
from harena.node.connection import Connection
from harena.node.link import Link
from harena.node.place import Address, tls_context
from harena.sandbox.alarm import ALARM

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

PATH = "/v1/boxes"
PIECE = 1 << 18
"""Bytes of one WebSocket message that we send."""
MAX_PIECE = 1 << 20
"""Largest WebSocket message that we accept."""
OPEN_S = 20.0
PING_S = 20.0
"""A server that answers no ping within this time is lost."""


def connect_to(place: Address, token: str | None) -> Connection:
    """Open the connection for boxes of a server."""
    stream = WebSocketStream(open_websocket(place, token, PATH))
    return Connection(Link.to_node(stream), is_server=True, name=place.url)


def open_websocket(
    place: Address, token: str | None, path: str, error_in: Callable[[object], Exception] = messages.error_in
) -> ClientConnection:
    """Connect, or raise what the server or the network said. `error_in` reads the server's errors."""
    try:
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect, unix_connect
    except ImportError:
        raise BackendUnavailable("boxes on a server need websockets: pip install 'harena[remote]'") from None
    scheme = "wss" if place.tls else "ws"
    url = f"{scheme}://{place.host}{path}"
    headers = {"X-Harena-Run": variables.run(), "X-Harena-Agent": variables.agent()}
    headers = {name: value for name, value in headers.items() if value}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        if place.unix:
            made = unix_connect(
                place.unix,
                url,
                additional_headers=headers,
                compression=None,
                max_size=MAX_PIECE,
                open_timeout=OPEN_S,
                ping_interval=PING_S,
                ping_timeout=PING_S,
            )
        else:
            made = connect(
                url,
                ssl=tls_context(place) if place.tls else None,
                server_hostname=None if place.trust is None else place.trust.name,
                proxy=True if place.tls and place.trust is None else None,
                additional_headers=headers,
                compression=None,
                max_size=MAX_PIECE,
                open_timeout=OPEN_S,
                ping_interval=PING_S,
                ping_timeout=PING_S,
            )
    except InvalidStatus as error:
        status = error.response.status_code
        raise _refusal(place, status, bytes(error.response.body or b""), error_in) from None
    except (OSError, ValueError, WebSocketException) as error:
        raise BoxError(f"{place.url}: cannot connect: {error}", retry=Retry.SAFE) from None
    return made.__enter__()  # ended by whoever has it


def _refusal(place: Address, status: int, body: bytes, error_in: Callable[[object], Exception]) -> Exception:
    """What a server that refuses a connection means."""
    if status == 401:
        return BackendUnavailable(
            f"{place.url}: the server does not accept the token; give token=… or set HARENA_TOKEN"
        )
    try:
        return error_in(json.loads(body[:65536])["error"])
    except (ValueError, LookupError, TypeError, RecursionError, WireError):
        retry = Retry.SAFE if status in (429, 503) else Retry.NEVER
        return BoxError(f"{place.url}: the server answered with status {status}", retry=retry)


class WebSocketStream:
    """Carries the bytes of a link in binary WebSocket messages, whose borders mean nothing."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._deadline: float | None = None
        """When the server must have taken what is being sent."""
        self._watched = False

    def send(self, data: bytes, deadline: float | None) -> None:
        from websockets.exceptions import ConnectionClosed

        view = memoryview(data)
        self._expect(deadline)
        try:
            for start in range(0, len(view), PIECE):
                self._connection.send(view[start : start + PIECE])
        except ConnectionClosed as error:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("the server does not read") from None
            raise OSError(str(error)) from None
        finally:
            self._expect(None)

    def _expect(self, deadline: float | None) -> None:
        with self._lock:
            self._deadline = deadline
            watch = deadline is not None and not self._watched
            self._watched = self._watched or watch
        if watch and deadline is not None:
            ALARM.at(deadline, self._overdue)

    def _overdue(self) -> float | None:
        """End the connection if the server does not read. Returns when to look again."""
        with self._lock:
            deadline = self._deadline
            if deadline is not None and deadline > time.monotonic():
                return deadline
            self._watched = False
        if deadline is not None:
            self.hang_up()
        return None

    def receive(self) -> bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            data = self._connection.recv()
        except ConnectionClosed:
            return b""
        if isinstance(data, str) or not data:
            raise WireError("the server sent something else than bytes")
        return data

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the server was first
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()

    def abandon(self) -> None:
        fd = self._connection.socket.detach()
        if fd >= 0:
            os.close(fd)
