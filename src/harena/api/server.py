"""`harena up`: API, page, workers, matchmaking and the gRPC executor in one process.

Guarantees: it serves, or says which port, folder or package is in the way and what to do, before anything has changed;
Ctrl-C and SIGTERM end it in order, with what runs given back to the queue; a second start carries on where the first
was. Code without a key is taken on loopback only, by REST and by gRPC alike; counters without a key are shown there
only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before numpy is imported: the threads of its linear algebra are slower than one for boards of our size.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from harena.api import grpc_door, protocol
from harena.api.app import create_app
from harena.api.limits import RequestLimits
from harena.api.metrics import CONTENT_TYPE, Metrics
from harena.arena import demo
from harena.arena.arena import Arena
from harena.arena.db.models import Scope as KeyScope
from harena.arena.settings import Settings
from harena.arena.variables import Environ
from harena.errors import SpecError
from harena.match.executor import config as executor_config
from harena.match.executor import server as executor_server
from harena.match.executor.orders import CALLER

HOST_KEY = "host.key"
REPLAYS = "replays"
"""The folder of what gRPC clients had recorded, in the data folder."""
LOOPBACK = "127.0.0.1"
HOST = "host"
GRACE_S = 3.0
"""For answers on their way when the server stops; streams of events are ended at once."""

log = logging.getLogger("harena.server")


class PortInUse(SpecError):
    """Somebody listens there already. Says which option chooses another port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    ui_port: int | None = 7860
    """The page and the API too, where people look for it; None: not."""
    grpc_port: int | None = 50051
    metrics_port: int | None = 9100
    """The workers' counters, where Prometheus looks for a worker's, on loopback only; the API has them at /metrics
    too."""
    data: Path
    demo: bool = True
    anonymous_submit: bool | None = None
    """None: as HARENA_ANONYMOUS_SUBMIT says, else on loopback only."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which others reach it, besides this machine's own."""
    proxy: str = ""
    """The address of a proxy whose word on the client's address and on https is taken; nobody else's is."""
    json_logs: bool = False
    on_ready: Callable[[dict[str, Any]], object] | None = None


def up(options: ServerOptions) -> int:
    """Serves until it is told to stop."""
    _set_up_logs(json_logs=options.json_logs)
    local = executor_config.is_loopback(options.host)
    anonymous = options.anonymous_submit
    if anonymous is None:
        anonymous = Environ().flag("HARENA_ANONYMOUS_SUBMIT", local)
    if anonymous and not local:
        raise SpecError(
            f"anybody who can reach {options.host} could run code here: give people keys (`harena keys create`) "
            "instead of HARENA_ANONYMOUS_SUBMIT, or listen on 127.0.0.1"
        )
    settings = Settings.from_env(options.data, anonymous_submit=anonymous)
    with contextlib.ExitStack() as stack:
        web = stack.enter_context(_listening(options.host, options.port, "--port"))
        page = None
        if options.ui_port is not None:
            page = stack.enter_context(_listening(options.host, options.ui_port, "--ui-port"))
        arena = Arena(settings)
        stack.callback(arena.stop)
        limits = RequestLimits()
        first = _make_host_key(arena, settings.data)
        if options.demo and demo.load(arena):
            log.info("loaded the demonstration: %d environments", len(demo.EXHIBITS))
        grpc_port = _start_executor(stack, arena, options, limits)
        app = create_app(arena, allowed_hosts=options.allowed_hosts, loopback=local, limits=limits)
        counters = _metrics_socket(stack, options)
        arena.start()
        sockets = [one for one in (web, page, counters) if one is not None]
        ports = {
            "port": _port(web),
            "ui_port": page and _port(page),
            "grpc_port": grpc_port,
            "metrics_port": counters and _port(counters),
        }
        served = _Doors(app, app.state.api.metrics, ports["metrics_port"])
        config = http_config(served, limits, proxy=options.proxy)
        close = app.state.api.live.close  # open event streams end only when they are told to
        ready = functools.partial(_ready, options, settings, ports, anonymous=anonymous, first=first)
        return _serve(config, sockets, ready, close)


class _Doors:
    """The app on its own ports, and nothing but counters on theirs."""

    def __init__(self, app: ASGIApp, metrics: Metrics, metrics_port: int | None) -> None:
        self._app = app
        self._metrics = metrics
        self._metrics_port = metrics_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._metrics_port and (scope.get("server") or ("", 0))[1] == self._metrics_port:
            text = await run_in_threadpool(self._metrics.text)
            await Response(text, 200, {}, CONTENT_TYPE)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def http_config(app: ASGIApp, limits: RequestLimits, *, proxy: str = "", **more: Any) -> uvicorn.Config:
    """How the app is served, with the limits of `protocol`."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=bool(proxy),
        forwarded_allow_ips=proxy or None,
        timeout_graceful_shutdown=int(GRACE_S),
        **protocol.guarded(limits, proxy=proxy),
        **more,
    )


def _serve(
    config: uvicorn.Config, sockets: Sequence[socket.socket], ready: Callable[[], None], close: Callable[[], None]
) -> int:
    server = _Server(config, ready, close)
    server.run(sockets=list(sockets))
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], close: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._close = close

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Not uvicorn's, which raises the signal again when it has ended: the arena has still to be stopped then."""
        if self.should_exit:
            self.force_exit = True
            return
        self.should_exit = True
        print("\nstopping; what runs is given back to the queue", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _listening(host: str, port: int, option: str) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1024)
        except OSError as error:
            raise PortInUse(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another with {option}"
            ) from None
        yield listener


def _port(listener: socket.socket) -> int:
    return listener.getsockname()[1]


def _start_executor(
    stack: contextlib.ExitStack, arena: Arena, options: ServerOptions, limits: RequestLimits
) -> int | None:
    if options.grpc_port is None:
        return None
    settings = executor_config.override(executor_config.load(None), host=options.host, port=options.grpc_port)
    if settings.replay.folder is None:
        replay = dataclasses.replace(settings.replay, folder=arena.settings.data / REPLAYS)
        settings = dataclasses.replace(settings, replay=replay)
    door = None
    if not arena.settings.anonymous_submit:
        door = grpc_door.KeyDoor(arena.store, arena.settings, limits, token=settings.executor.auth_token)
    try:
        arena.desk.caller = CALLER.get
        running = executor_server.start(settings, runner=arena.desk, door=door)
    except executor_config.ConfigError as error:
        raise PortInUse(f"gRPC: {error}; choose another port with --grpc-port") from None
    stack.callback(running.stop)
    return running.port


def _metrics_socket(stack: contextlib.ExitStack, options: ServerOptions) -> socket.socket | None:
    """On loopback, whatever the rest listens on: scrapers elsewhere read /metrics with a key."""
    if options.metrics_port is None:
        return None
    host = options.host if executor_config.is_loopback(options.host) else LOOPBACK
    try:
        return stack.enter_context(_listening(host, options.metrics_port, "--metrics-port"))
    except PortInUse as error:
        # Others use this port by default, too; the same numbers are at /metrics.
        log.warning("no metrics on port %d: %s", options.metrics_port, error)
        return None


def _make_host_key(arena: Arena, data: Path) -> bool:
    """On the first start. Whoever can read the folder is its host."""
    file = data / HOST_KEY
    if file.exists() or arena.store.keys.of(HOST):
        return False
    _, token = arena.store.keys.create(HOST, [KeyScope.ADMIN], label="made on the first start")
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(token + "\n")
    return True


def _ready(
    options: ServerOptions, settings: Settings, ports: dict[str, int | None], *, anonymous: bool, first: bool
) -> None:
    for name, instead in Environ().without_effect().items():
        log.warning("%s is set, and has no effect: %s", name, instead)
    shown = f"[{options.host}]" if ":" in options.host else options.host
    local = executor_config.is_loopback(options.host)
    inside = shown if local else LOOPBACK
    grpc_needs = "" if anonymous else "    (running code needs a key)"
    seen = "    (this machine only; elsewhere /metrics with a key)" if not local else ""
    lines = [
        "",
        f"  page and API   http://{shown}:{ports['port']}    (API: /docs)",
        f"  page           http://{shown}:{ports['ui_port']}" if ports["ui_port"] else "",
        f"  gRPC executor  {shown}:{ports['grpc_port']}{grpc_needs}" if ports["grpc_port"] else "",
        f"  metrics        http://{inside}:{ports['metrics_port']}{seen}" if ports["metrics_port"] else "",
        f"  data           {settings.data}",
        f"  host's key     {settings.data / HOST_KEY}    (log in with it at /login)" if first else "",
        "  anybody on this machine may submit without a key; nobody else can reach it"
        if anonymous
        else "  submitting needs a key: harena keys create --owner NAME --scopes read,submit",
        "  Ctrl-C stops it; the next start carries on",
        "",
    ]
    print("\n".join(line for line in lines if line or line is lines[0] or line is lines[-1]), flush=True)
    if options.on_ready is not None:
        options.on_ready(ports)


# ---- logs ----


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """What the record carries besides its words: ids of requests, jobs, matches."""
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime"}


class _JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        more = " ".join(f"{name}={value!r:.200}" for name, value in _extra(record).items())
        text = super().format(record)
        return f"{text} [{more}]" if more else text


def _set_up_logs(*, json_logs: bool) -> None:
    # On a terminal every job and request would bury the lines that a person reads.
    level = (Environ().text("LOG_LEVEL") or ("INFO" if json_logs else "WARNING")).upper()
    if level not in logging.getLevelNamesMapping():
        raise SpecError(f"LOG_LEVEL={level}: one of DEBUG, INFO, WARNING, ERROR")
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if json_logs else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("harena")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
