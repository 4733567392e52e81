"""HTTP connections to a server. They notice a server that is silent because the line to it is cut: an execution may
take days, so no time limit of a request would."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import cast

from harena.node.place import Address, Trust

KEEPALIVE_IDLE_S = 15
"""Silence after which the kernel asks whether the server is still there."""
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 4
DEAD_S = KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES
"""A connection over which nothing came through for this long is lost, also while we send."""


def new_connection(place: Address) -> http.client.HTTPConnection:
    """A connection that is opened by its first request."""
    if place.unix:
        return _UnixConnection(place.unix)
    if place.trust is not None:
        return _TrustedConnection(place, place.trust)
    if place.tls:
        return _TlsConnection(place.name, place.port, context=ssl.create_default_context())
    return _PlainConnection(place.name, place.port)


def opened(connection: http.client.HTTPConnection, connect_s: float) -> socket.socket:
    """The socket of a connection, which is opened if it is not yet."""
    if connection.sock is None:
        connection.timeout = connect_s
        connection.connect()
    return cast("socket.socket", connection.sock)


def _notice_cuts(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * DEAD_S)


class _PlainConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        _notice_cuts(self.sock)


class _TlsConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        _notice_cuts(self.sock)


class _TrustedConnection(_PlainConnection):
    def __init__(self, place: Address, trust: Trust) -> None:
        super().__init__(place.name, place.port)
        self._trust = trust

    def connect(self) -> None:
        super().connect()
        self.sock = self._trust.context().wrap_socket(self.sock, server_hostname=self._trust.name)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
