"""`harena serve`: listens on a TCP port or a Unix socket, and ends in order.

Guarantees: without a token it listens only on a Unix socket of its own user; outside of this machine it speaks TLS, or
plain HTTP where the operator says that a proxy adds it; when it ends, however it ends, so do all boxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from harena.errors import SpecError
from harena.http.limits import RequestLimits, address_of
from harena.http.protocol import Connections, HttpConnection
from harena.node.rules import Rules
from harena.sandbox import backend
from harena.serve import plane
from harena.serve.app import BOXES, MAX_RATE, App
from harena.serve.routes.records import open_records
from harena.serve.tokens import Tokens

GRACE_S = 10
"""Time to close the boxes when the server stops."""
LINGER_S = 5.0
"""Time that a client has to read the end of its connection."""
MOST_DESCRIPTORS = 65536
PING_S = 20.0
MAX_UPGRADE_LINE, MAX_UPGRADE_LINES = 8000, 100
"""Less than what the WebSocket library parses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    listen: str = "127.0.0.1:8700"
    """HOST:PORT, or unix:/PATH. Port 0 is any free one."""
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    plain_http: bool = False
    """Plain HTTP outside of this machine, because a proxy in front adds TLS."""
    rules: Rules = field(default_factory=Rules)
    max_clients: int = 256
    max_rate: float = MAX_RATE
    """Requests of one owner in a second."""
    drain_s: float = 0.0
    """How long SIGTERM waits for clients and sessions to end. Meanwhile there are no new ones."""
    journal: str | None = None
    """Folder for the journals of sessions."""
    journal_key: str | None = None
    """File with the key that signs them."""
    journal_mb: int = 10240
    """Size of all journals of one owner."""
    usage: str | None = None
    """File for what every owner used; None: it is forgotten at the end."""
    budgets: tuple[str, ...] = ()
    """OWNER:cpu_s=3600,per=day and the like."""
    end_idle_s: float = 0.0
    """End this long after the last client and session have gone; 0: never. Before the first one it waits forever."""
    executor: str = ""
    """Unix socket on which the node of another container connects, which makes the boxes."""
    on_ready: Callable[[str], object] | None = None
    """Called with the URL when it listens."""


def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT."""
    _check(options)
    tokens = Tokens({}) if options.token_file is None else Tokens.read(options.token_file)
    boxes = f"executor:{options.executor}" if options.executor else "local"
    backend.load(boxes, None).capabilities()  # raises IsolationUnavailable before anybody connects
    _raise_descriptors()
    with contextlib.ExitStack() as stack:
        listener, url = _listen(stack, options)
        records = open_records(options)
        if records.ledger is not None:
            stack.callback(records.ledger.close)
        app = App(
            tokens,
            options.rules,
            max_clients=options.max_clients,
            max_rate=options.max_rate,
            backend=boxes,
            records=records,
        )
        server = _DrainingServer(_config(app, options), app, lambda: _ready(options, url), options)
        stack.callback(app.service.close)
        server.run(sockets=[listener])
    return 0 if server.started else 1


def _check(options: ServeOptions) -> None:
    unix = options.listen.startswith("unix:")
    if (options.tls_cert is None) != (options.tls_key is None):
        raise SpecError("--tls-cert and --tls-key: give both")
    for path in (options.tls_cert, options.tls_key):
        if path is not None and not os.path.isfile(path):
            raise SpecError(f"{path}: not a file")
    if not unix and options.token_file is None:
        raise SpecError("every user of this machine could connect: give --token-file, or --listen unix:/PATH")
    if unix or options.tls_cert is not None or options.plain_http:
        return
    host = _host_and_port(options.listen)[0]
    if not address_of((host, 0))[1]:
        raise SpecError(
            f"{host}: tokens would cross the network in the clear; give --tls-cert and --tls-key, or --plain-http if a "
            "proxy in front adds TLS"
        )


def _host_and_port(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise SpecError(f"--listen {listen}: give HOST:PORT, such as 127.0.0.1:8700, or unix:/PATH")
    return host, int(port)


def _listen(stack: contextlib.ExitStack, options: ServeOptions) -> tuple[socket.socket, str]:
    if options.listen.startswith("unix:"):
        path = options.listen.removeprefix("unix:").removeprefix("//")
        return _listen_unix(stack, path), f"unix:{path}"
    host, port = _host_and_port(options.listen)
    listener = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        raise SpecError(f"cannot listen on {options.listen}: {error.strerror}; choose another with --listen") from None
    scheme = "https" if options.tls_cert is not None else "http"
    shown = f"[{host}]" if ":" in host else host
    return listener, f"{scheme}://{shown}:{listener.getsockname()[1]}"


def _listen_unix(stack: contextlib.ExitStack, path: str) -> socket.socket:
    """Only the user of the server may connect to it. A socket that an earlier server left behind is replaced."""
    if not os.path.isabs(path):
        raise SpecError(f"--listen unix:{path}: give an absolute path")
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise SpecError(f"{path}: exists, and is not a socket")
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise SpecError(f"{path}: another server listens there")
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    before = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError as error:
        raise SpecError(f"cannot listen on {path}: {error.strerror}") from None
    finally:
        os.umask(before)
    stack.callback(_remove, path, os.lstat(path).st_ino)
    listener.listen(1024)
    return listener


def _remove(path: str, inode: int) -> None:
    with contextlib.suppress(OSError):
        if os.lstat(path).st_ino == inode:
            os.unlink(path)


def _raise_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Http(HttpConnection):
    def handle_websocket_upgrade(self) -> None:
        lines = [len(self.url), *(len(name) + len(value) for name, value in self.headers)]
        if max(lines) > MAX_UPGRADE_LINE or len(lines) > MAX_UPGRADE_LINES:
            # Otherwise the connection would neither be answered nor closed.
            self._refuse(431, "the head of the request is too large")
            return
        self.shared.remove(self)  # counted as a client from here on
        super().handle_websocket_upgrade()


class _WebSocket(WebSocketsSansIOProtocol):
    async def run_asgi(self) -> None:
        """End the connection in any case: a client that does not read keeps a closed one open for as long as it
        likes."""
        await super().run_asgi()
        self.loop.call_later(LINGER_S, self.transport.abort)


def _config(app: App, options: ServeOptions) -> uvicorn.Config:
    limits = RequestLimits()
    kind = type("Connection", (_Http,), {"shared": Connections(limits)})
    return uvicorn.Config(
        app,
        http=kind,
        ws=_WebSocket,
        ws_max_size=plane.MAX_PIECE,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )


class _DrainingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: App, ready: Callable[[], None], options: ServeOptions) -> None:
        super().__init__(config)
        self._drain_s = options.drain_s
        self._drained_at: float | None = None
        self._end_idle_s = options.end_idle_s
        self._used_at: float | None = None
        """When somebody was last seen to use a box; None before the first."""
        self._app = app
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.ready = False
        closing = asyncio.create_task(asyncio.to_thread(self._app.service.close))  # ends the requests that execute
        await super().shutdown(sockets)
        await closing
        await asyncio.get_running_loop().shutdown_default_executor()  # what closes boxes

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Not uvicorn's, which raises the signal again when it has ended. A second signal ends the wait."""
        if sig == signal.SIGTERM and self._drain_s > 0 and self._drained_at is None:
            self._app.ready = False
            self._drained_at = time.monotonic() + self._drain_s
            return
        self.force_exit = self.should_exit
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._drained_at is not None and (not self._app.busy or time.monotonic() > self._drained_at):
            self.should_exit = True
        if self._end_idle_s > 0:
            if self._app.busy or (self._app.used and self._used_at is None):
                self._used_at = time.monotonic()
            elif self._used_at is not None and time.monotonic() > self._used_at + self._end_idle_s:
                self.should_exit = True
        return await super().on_tick(counter)


def _ready(options: ServeOptions, url: str) -> None:
    _set_up_logs()
    lines = [f"  boxes      {url}    (clients connect to {BOXES})"]
    if options.token_file is not None:
        lines.append(f"  tokens     {os.path.abspath(options.token_file)}")
    print("\n".join(["", *lines, "  Ctrl-C stops it and closes all boxes", ""]), flush=True)
    if options.on_ready is not None:
        options.on_ready(url)


def _set_up_logs() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("harena")
    root.handlers[:] = [handler]
    root.propagate = False
    # uvicorn takes a refusal for a mistake of the application.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "without completing handshake" not in record.msg)
