"""`harena up`: API, page, workers, matchmaking and the gRPC executor in one process, or some of them in several.

Guarantees: it serves, or says which port, folder or package is in the way and what to do, before anything has changed;
Ctrl-C and SIGTERM end it in order, with what runs given back to the queue; a second start carries on where the first
was. Code without a key is taken on loopback only, by REST and by gRPC alike; counters without a key are shown there
only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import socket
import sys
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

from harena import telemetry
from harena.api import grpc_door
from harena.api.app import create_app
from harena.api.http.metrics import CONTENT_TYPE, Metrics
from harena.api.logs import set_up_logs
from harena.api.worker.celery_bell import CeleryBell
from harena.arena import demo
from harena.arena.arena import Arena, Roles
from harena.arena.db.models import Scope as KeyScope
from harena.arena.settings import Settings
from harena.arena.variables import Environ
from harena.errors import SpecError
from harena.http import protocol
from harena.http.limits import RequestLimits
from harena.match.executor import config as executor_config
from harena.match.executor import server as executor_server
from harena.match.executor.orders import CALLER

HOST_KEY = "host.key"
REPLAYS = "replays"
"""The folder of what gRPC clients had recorded, in the data folder."""
LOOPBACK = "127.0.0.1"
HOST = "host"
GRACE_S = 3.0
"""Time for answers in progress when the server stops. Event streams are ended at once."""

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
    grpc_host: str = ""
    """Empty: `host`."""
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
    workers: bool = True
    """Does jobs here. Without, processes of `harena worker` do them, and there is no gRPC executor."""
    matchmaker: bool = True
    on_ready: Callable[[dict[str, Any]], object] | None = None


def up(options: ServerOptions) -> int:
    """Serves until it is told to stop."""
    set_up_logs(json_logs=options.json_logs)
    local = executor_config.is_loopback(options.host)
    anonymous = options.anonymous_submit
    if anonymous is None:
        anonymous = Environ().flag("HARENA_ANONYMOUS_SUBMIT", local)
        if anonymous and not local:
            raise SpecError(
                f"HARENA_ANONYMOUS_SUBMIT would let anybody who can reach {options.host} run code here: give people "
                "keys (`harena keys create`), listen on 127.0.0.1, or choose it with --anonymous-submit"
            )
    settings = Settings.from_env(options.data, anonymous_submit=anonymous)
    with contextlib.ExitStack() as stack:
        stack.callback(telemetry.start("up"))
        web = stack.enter_context(_listening(options.host, options.port, "--port"))
        page = None
        if options.ui_port is not None:
            page = stack.enter_context(_listening(options.host, options.ui_port, "--ui-port"))
        arena = Arena(settings, Roles(workers=options.workers, matchmaker=options.matchmaker))
        stack.callback(arena.stop)
        limits = RequestLimits()
        first = _make_host_key(arena, settings.data)
        if demo.load(arena, agents=options.demo):
            log.info("loaded %d environments", len(demo.EXHIBITS))
        grpc_port = _start_executor(stack, arena, options, limits)
        named = tuple(name.strip() for name in Environ().text("HARENA_ALLOW_HOSTS").split(",") if name.strip())
        app = create_app(arena, allowed_hosts=(*options.allowed_hosts, *named), loopback=local, limits=limits)
        counters = _metrics_socket(stack, options)
        if settings.celery_broker:
            bell = CeleryBell(arena, settings.celery_broker)
            bell.start()
            stack.callback(bell.stop)
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
    desk = arena.desk
    if options.grpc_port is None or desk is None:
        return None
    host = options.grpc_host or options.host
    settings = executor_config.override(executor_config.load(None), host=host, port=options.grpc_port)
    if settings.use_k8s:
        log.warning("executor.use_k8s has no effect here: the arena's workers play; run `harena executor` for Jobs")
    images = dataclasses.replace(settings.images, pull=arena.settings.agent_images, only_listed=True)
    settings = dataclasses.replace(settings, images=images)
    if settings.replay.folder is None:
        replay = dataclasses.replace(settings.replay, folder=arena.settings.data / REPLAYS)
        settings = dataclasses.replace(settings, replay=replay)
    door = None
    if not arena.settings.anonymous_submit or not executor_config.is_loopback(host):
        door = grpc_door.KeyDoor(arena.store, arena.settings, limits, token=settings.executor.auth_token)
    try:
        desk.caller = CALLER.get
        running = executor_server.start(settings, runner=desk, at_once=desk.workers, door=door)
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


def _who_may_submit(*, local: bool) -> str:
    if local:
        return "  anybody on this machine may submit without a key; nobody else can reach it"
    return "  anybody who can reach it may submit without a key, and run code in boxes here"


def _ready(
    options: ServerOptions, settings: Settings, ports: dict[str, int | None], *, anonymous: bool, first: bool
) -> None:
    for name, instead in Environ().without_effect().items():
        log.warning("%s is set, and has no effect: %s", name, instead)
    shown = f"[{options.host}]" if ":" in options.host else options.host
    local = executor_config.is_loopback(options.host)
    inside = shown if local else LOOPBACK
    grpc_host = options.grpc_host or options.host
    grpc_open = anonymous and executor_config.is_loopback(grpc_host)
    grpc_needs = "" if grpc_open else "    (running code needs a key)"
    grpc_shown = f"[{grpc_host}]" if ":" in grpc_host else grpc_host
    seen = "    (this machine only; elsewhere /metrics with a key)" if not local else ""
    lines = [
        "",
        f"  page and API   http://{shown}:{ports['port']}    (API: /docs)",
        f"  page           http://{shown}:{ports['ui_port']}" if ports["ui_port"] else "",
        f"  gRPC executor  {grpc_shown}:{ports['grpc_port']}{grpc_needs}" if ports["grpc_port"] else "",
        f"  metrics        http://{inside}:{ports['metrics_port']}{seen}" if ports["metrics_port"] else "",
        f"  data           {settings.data}",
        f"  host's key     {settings.data / HOST_KEY}    (log in with it at /login)" if first else "",
        _who_may_submit(local=local)
        if anonymous
        else "  submitting needs a key: harena keys create --owner NAME --scopes read,submit",
        "  Ctrl-C stops it; the next start carries on",
        "",
    ]
    print("\n".join(line for line in lines if line or line is lines[0] or line is lines[-1]), flush=True)
    if options.on_ready is not None:
        options.on_ready(ports)
