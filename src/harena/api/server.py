"""`harena up`: API, page, workers, matchmaking and the gRPC executor in one process.

Guarantees: it serves, or says which port, folder or package is in the way and what to do, before anything has changed;
Ctrl-C and SIGTERM end it in order, with what runs given back to the queue; a second start carries on where the first
was. Submissions without a key are taken on loopback only.
"""

from __future__ import annotations

import contextlib
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
from prometheus_client import CollectorRegistry, start_http_server

from harena.api.app import create_app
from harena.arena import demo
from harena.arena.arena import Arena
from harena.arena.models import Scope
from harena.arena.settings import Settings
from harena.errors import SpecError
from harena.match.executor import config as executor_config
from harena.match.executor import server as executor_server

HOST_KEY = "host.key"
HOST = "host"
GRACE_S = 3.0
"""For answers on their way when the server stops; streams of events are ended at once."""
LATER = {
    "REDIS_URL": "events stay in the process",
    "CELERY_BROKER_URL": "jobs are claimed from the database",
    "CELERY_RESULT_BACKEND": "results are in the database",
    "SUPABASE_URL": "files are in the data folder",
    "SENTRY_DSN": "errors are in the log",
    "DOCKER_HOST": "boxes are made by the local backend",
}
"""Variables that people set for such a service, which this one does not use yet, and what it does instead."""

log = logging.getLogger("harena.server")


class PortInUse(SpecError):
    """Somebody listens there already. Says which option chooses another port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    ui_port: int | None = 7860
    """The page and the API too, where people look for it; None: not."""
    grpc_port: int | None = 50051
    metrics_port: int | None = 9100
    """The workers' counters, where Prometheus looks for a worker's; the API has them at /metrics too."""
    data: Path
    demo: bool = True
    anonymous_submit: bool | None = None
    """None: on loopback only."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which others reach it, besides this machine's own."""
    proxy: str = ""
    """The address of a proxy whose word on the client's address and on https is taken; nobody else's is."""
    json_logs: bool = False
    on_ready: Callable[[dict[str, Any]], object] | None = None


def up(options: Options) -> int:
    """Serves until it is told to stop."""
    _set_up_logs(json_logs=options.json_logs)
    local = executor_config.is_loopback(options.host)
    anonymous = local if options.anonymous_submit is None else options.anonymous_submit
    if anonymous and not local:
        raise SpecError(
            f"anybody who can reach {options.host} could run code here: give people keys (`harena keys create`) "
            "instead of --anonymous-submit, or listen on 127.0.0.1"
        )
    settings = Settings.from_env(options.data, anonymous_submit=anonymous)
    with contextlib.ExitStack() as stack:
        web = stack.enter_context(_listening(options.host, options.port, "--port"))
        page = None
        if options.ui_port is not None:
            page = stack.enter_context(_listening(options.host, options.ui_port, "--ui-port"))
        arena = Arena(settings)
        stack.callback(arena.stop)
        first = _make_host_key(arena, settings.data)
        if options.demo and demo.load(arena):
            log.info("loaded the demonstration: %d environments", len(demo.EXHIBITS))
        grpc_port = _start_executor(stack, arena, options)
        app = create_app(arena, allowed_hosts=options.allowed_hosts, loopback=local)
        metrics_port = _serve_metrics(stack, app.state.api.metrics.registry, options)
        arena.start()
        sockets = [web] if page is None else [web, page]
        ports = {
            "port": _port(web),
            "ui_port": page and _port(page),
            "grpc_port": grpc_port,
            "metrics_port": metrics_port,
        }
        return _serve(
            app, sockets, options.proxy, lambda: _ready(options, settings, ports, anonymous=anonymous, first=first)
        )


def _serve(app: Any, sockets: Sequence[socket.socket], proxy: str, ready: Callable[[], None]) -> int:
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, date_header=True,
        proxy_headers=bool(proxy), forwarded_allow_ips=proxy or None,
        timeout_graceful_shutdown=int(GRACE_S), h11_max_incomplete_event_size=64 << 10, limit_concurrency=2000,
    )  # fmt: skip
    server = _Server(config, ready)
    server.run(sockets=list(sockets))
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: Any = self.config.app
        app.state.api.live.close()  # open event streams end only when they are told to
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


def _start_executor(stack: contextlib.ExitStack, arena: Arena, options: Options) -> int | None:
    if options.grpc_port is None:
        return None
    settings = executor_config.override(executor_config.load(None), host=options.host, port=options.grpc_port)
    try:
        running = executor_server.start(settings, runner=arena.runner)
    except executor_config.ConfigError as error:
        raise PortInUse(f"gRPC: {error}; choose another port with --grpc-port") from None
    stack.callback(running.stop)
    return running.port


def _serve_metrics(stack: contextlib.ExitStack, registry: CollectorRegistry, options: Options) -> int | None:
    if options.metrics_port is None:
        return None
    try:
        served, thread = start_http_server(options.metrics_port, options.host, registry)
    except OSError as error:
        # Others use this port by default, too; the same numbers are at /metrics.
        log.warning("no metrics on port %d: %s; see --metrics-port", options.metrics_port, error.strerror)
        return None
    stack.callback(thread.join)
    stack.callback(served.server_close)
    stack.callback(served.shutdown)
    return served.server_port


def _make_host_key(arena: Arena, data: Path) -> bool:
    """On the first start. Whoever can read the folder is its host."""
    file = data / HOST_KEY
    if file.exists() or arena.store.keys_of(HOST):
        return False
    _, token = arena.store.create_key(HOST, [Scope.ADMIN], label="made on the first start")
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(token + "\n")
    return True


def _ready(
    options: Options, settings: Settings, ports: dict[str, int | None], *, anonymous: bool, first: bool
) -> None:  # fmt: skip
    for name, instead in LATER.items():
        if os.environ.get(name):
            log.warning("%s is set, and not used yet: %s", name, instead)
    shown = f"[{options.host}]" if ":" in options.host else options.host
    lines = [
        "",
        f"  page and API   http://{shown}:{ports['port']}    (API: /docs)",
        f"  page           http://{shown}:{ports['ui_port']}" if ports["ui_port"] else "",
        f"  gRPC executor  {shown}:{ports['grpc_port']}" if ports["grpc_port"] else "",
        f"  metrics        http://{shown}:{ports['metrics_port']}" if ports["metrics_port"] else "",
        f"  data           {settings.data}",
        f"  host's key     {settings.data / HOST_KEY}    (log in with it at /login)" if first else "",
        "  anybody on this machine may submit without a key; nobody else can reach it" if anonymous else
        "  submitting needs a key: harena keys create --owner NAME --scopes read,submit",
        "  Ctrl-C stops it; the next start carries on",
        "",
    ]  # fmt: skip
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
    level = (os.environ.get("LOG_LEVEL") or ("INFO" if json_logs else "WARNING")).upper()
    if level not in logging.getLevelNamesMapping():
        raise SpecError(f"LOG_LEVEL={level}: one of DEBUG, INFO, WARNING, ERROR")
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if json_logs else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("harena")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
