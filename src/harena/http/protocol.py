"""HTTP connections with limits: what happens before a request is one, and after its answer has been given.

Guarantees: a head is small and comes within its time; one address holds a bounded number of connections, and when it
opens more, or when there are too many in all, the connection that has waited longest without a request is closed for
the new one; a client that stops reading is dropped; requests that are pipelined wait in a short line; trailers of a
body are dropped and never become headers. What a whole request asks for is `middleware`'s to judge.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from harena.http.limits import RequestLimits, address_of


class HeadRefused(Exception):
    """Raised inside the parser, which then gives up the connection."""


class Connections:
    """The open connections of one server, by address. All of it happens in the thread of the event loop."""

    def __init__(self, limits: RequestLimits, *, proxy: str = "") -> None:
        """`proxy` speaks for many clients and is counted in the total only."""
        self.limits = limits
        # Half of the descriptors are for databases, boxes and files.
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = min(limits.connections, soft // 2) if soft != resource.RLIM_INFINITY else limits.connections
        self._proxy = proxy
        self._by_address: dict[str, OrderedDict[HttpConnection, None]] = {}
        self._all: OrderedDict[HttpConnection, None] = OrderedDict()

    def add(self, one: HttpConnection) -> bool:
        """Whether there is room for it."""
        address, loopback = address_of(one.client)
        most = self.limits.connections_of_loopback if loopback else self.limits.connections_of_address
        if self._proxy and one.client is not None and one.client[0] == self._proxy:
            most = self.most
        same = self._by_address.setdefault(address, OrderedDict())
        if (len(same) >= most and not _make_room(same)) or (len(self._all) >= self.most and not _make_room(self._all)):
            if not same:
                del self._by_address[address]
            return False
        one.address = address
        # Closing the oldest may have emptied, and removed, the address's own line.
        self._by_address.setdefault(address, same)[one] = None
        self._all[one] = None
        return True

    def remove(self, one: HttpConnection) -> None:
        self._all.pop(one, None)
        same = self._by_address.get(one.address)
        if same is not None:
            same.pop(one, None)
            if not same:
                del self._by_address[one.address]


def _make_room(among: OrderedDict[HttpConnection, None]) -> bool:
    """Closes the oldest one that has no request; whether there was one."""
    for one in among:
        if one.idle:
            one.drop()
            return True
    return False


class HttpConnection(HttpToolsProtocol):
    shared: ClassVar[Connections]
    address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._in_head = True
        self._head_bytes = 0
        self._trailer_bytes = 0
        self._refusal: tuple[int, str] | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        if self.shared.add(self):
            self._start_head_timer()
        else:
            self._refuse(503, "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.remove(self)
        self._stop(self._head_timer)
        self._stop(self._write_timer)
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        return getattr(self.cycle, "response_complete", True)  # before the first request there is no cycle

    def drop(self) -> None:
        self.shared.remove(self)
        self.transport.abort()

    # ---- reading ----

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            self._start_head_timer()
        super().data_received(data)
        if self._in_head and self._head_bytes > self.shared.limits.head_bytes and not self.transport.is_closing():
            self._refuse(431, "the head of the request is too large")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._trailer_bytes += len(name) + len(value)
            self._check(self._trailer_bytes <= self.shared.limits.trailer_bytes, 431, "the trailers are too large")
            return
        super().on_header(name, value)
        self._check(len(self.headers) <= self.shared.limits.head_lines, 431, "the request has too many headers")

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._check(size <= self.shared.limits.head_bytes, 431, "the head of the request is too large")
        self._check(len(self.pipeline) < self.shared.limits.pipelined, 429, "too many requests in one go")
        self._in_head = False
        self._stop(self._head_timer)
        self._head_timer = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head_bytes, self._trailer_bytes = True, 0, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head:  # the rest of a body that nobody reads
            self._start_head_timer()

    def send_400_response(self, msg: str) -> None:
        if self._refusal is None:
            super().send_400_response(msg)
        else:
            self._refuse(*self._refusal)

    def _check(self, right: bool, status: int, why: str) -> None:
        if not right:
            self._refusal = status, why
            raise HeadRefused(why)

    def _refuse(self, status: int, why: str) -> None:
        head = STATUS_LINE[status] + b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n%s" % (len(why), why.encode()))
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.shared.limits.head_s, self._too_slow)

    def _too_slow(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or not self.idle:
            return
        if self._in_head and self._head_bytes:
            self._refuse(408, "the head of the request came too slowly")
        else:
            self.transport.close()

    # ---- writing ----

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.shared.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._write_timer)
        self._write_timer = None

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def guarded(limits: RequestLimits, *, proxy: str = "") -> dict[str, Any]:
    """What uvicorn's Config takes so that its connections have these limits."""
    shared = Connections(limits, proxy=proxy)
    kind = type("Connection", (HttpConnection,), {"shared": shared})
    # An upgrade to WebSocket would leave all of this behind. limit_concurrency is not reached: it answers 503 to all.
    return {"http": kind, "ws": "none", "limit_concurrency": limits.connections + 1000}
