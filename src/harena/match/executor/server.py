"""Starts the executor: `serve` runs until SIGTERM, `start` is for callers with their own main loop. Guarantees: an
address that others can reach is served only with authentication (a token, client certificates, or an `Authenticator` of
the caller) or if `insecure` was chosen; during shutdown nothing new is accepted, running matches have the grace time,
and matches that are cut short are answered as cancelled.

Synchronous gRPC on purpose: a match is a thread that waits, and a call that ends cancels it by a callback.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, Protocol, cast

from harena import telemetry, trace
from harena.errors import BackendUnavailable

try:
    import grpc
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    from harena.match import registry
    from harena.match.executor import config, service
    from harena.match.executor.config import ConfigError, ServerConfig
    from harena.match.executor.orders import CALLER, CallRefused
except ImportError as error:
    if error.name and error.name.startswith("harena"):
        raise
    raise BackendUnavailable(f"the executor needs {error.name}: pip install 'harena[executor]'") from error

log = logging.getLogger("harena.executor")

OTHER_CALLS = 16
"""Threads for calls other than matches and watchers."""
LAST_S = 2.0
"""Time for pending answers when the server stops."""
HEALTH = "/grpc.health.v1.Health/"
OPEN_DOOR = (
    "anyone who can reach {} could run code here: set executor.auth_token (EXECUTOR_AUTH_TOKEN) or "
    "executor.tls.client_ca, listen on 127.0.0.1, or choose it with --insecure (EXECUTOR_INSECURE=1)"
)


class Authenticator(Protocol):
    """Authentication of callers. Health checks of grpc.health.v1 are exempt, because probes have no key."""

    def admit(self, method: str, metadata: dict[str, str]) -> str:
        """Return the caller's name, before the message has been read. Raises Refused."""
        ...

    def charge(self, method: str, caller: str, peer: str) -> None:
        """Count the call against what the caller and the address (as gRPC writes it) may ask for. Raises Refused."""
        ...


class RunningServer:
    """A started executor. `stop` may be called from any thread, and more than once."""

    def __init__(
        self, server: grpc.Server, rpcs: service.MatchExecutor, checks: Any, port: int, metrics_port: int | None
    ) -> None:
        self.port = port
        self.metrics_port = metrics_port
        self._server = server
        self._rpcs = rpcs
        self._checks = checks
        self._finally: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self, grace_s: float = 0.0) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._checks.enter_graceful_shutdown()
            self._rpcs.board.drain(grace_s)
            self._server.stop(LAST_S).wait()
            for action in self._finally:
                action()

    def on_stop(self, action: Callable[[], None]) -> None:
        self._finally.append(action)

    def hurry(self) -> None:
        """End the grace time of a waiting `stop`."""
        self._rpcs.board.cancel_all()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def start(
    settings: ServerConfig, *, runner: Any = None, at_once: int | None = None, door: Authenticator | None = None
) -> RunningServer:
    """`runner` is for those who have one already, and stays theirs; it plays `at_once` matches. `door` takes the place
    of executor.auth_token."""
    executor = settings.executor
    if door is None and executor.auth_token:
        door = _Token(executor.auth_token)
    # TLS alone shows clients who we are, not us who they are.
    guarded = door is not None or executor.tls.client_ca is not None or executor.insecure
    if not guarded and not config.is_loopback(executor.host):
        raise ConfigError(OPEN_DOOR.format(executor.host))
    for name in settings.executor.environments:
        registry.trust(name)  # before the runner starts processes, which inherit it
    with contextlib.ExitStack() as stack:
        if runner is None and settings.use_k8s:
            from harena.match.executor.jobs.runner import JobRunner

            jobs = JobRunner(settings)
            stack.callback(jobs.close)
            jobs.start()
            runner, at_once = jobs, settings.k8s.max_jobs
        elif runner is None:
            from harena.match.run.runner import Runner

            at_once = min(executor.max_matches, len(os.sched_getaffinity(0)))
            # Before gRPC has threads: the runner starts processes.
            runner = stack.enter_context(Runner(workers=at_once))
        server = _start(settings, runner, at_once or executor.max_matches, door)
        server.on_stop(stack.pop_all().close)
    return server


def _start(settings: ServerConfig, runner: Any, at_once: int, door: Authenticator | None) -> RunningServer:
    executor = settings.executor
    rpcs = service.MatchExecutor(settings, runner, at_once=at_once)
    threads = executor.max_matches + executor.max_watchers + OTHER_CALLS
    server = grpc.server(
        futures.ThreadPoolExecutor(threads, thread_name_prefix="executor"),
        handlers=[service.handlers(rpcs)],
        interceptors=[_Guard(door)] if door is not None else [],
        options=[
            ("grpc.max_receive_message_length", executor.max_message_mb << 20),
            ("grpc.max_send_message_length", executor.max_message_mb << 20),
            ("grpc.so_reuseport", 0),  # else two servers would share a port and each see half of the calls
        ],
        maximum_concurrent_rpcs=threads,
    )
    checks = health.HealthServicer()
    cast(Any, health_pb2_grpc).add_HealthServicer_to_server(checks, server)
    checks.set(service.NAME, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((service.NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    port = _listen(server, settings)
    end_metrics, metrics_port = rpcs.metrics.serve(executor.host, executor.metrics_port)
    server.start()
    running = RunningServer(server, rpcs, checks, port, metrics_port)
    running.on_stop(end_metrics)
    return running


def _listen(server: grpc.Server, settings: ServerConfig) -> int:
    executor = settings.executor
    host = f"[{executor.host}]" if ":" in executor.host else executor.host
    address = f"{host}:{executor.port}"
    credentials = _credentials(executor.tls)
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError:
        raise ConfigError(f"cannot listen on {address}: is it in use, or no address of this machine?") from None


def _credentials(tls: config.Tls) -> grpc.ServerCredentials | None:
    if tls.cert is None or tls.key is None:
        return None
    try:
        key, cert = tls.key.read_bytes(), tls.cert.read_bytes()
        client_ca = tls.client_ca.read_bytes() if tls.client_ca else None
    except OSError as error:
        raise ConfigError(f"executor.tls: cannot read {error.filename}: {error.strerror}") from None
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=client_ca, require_client_auth=client_ca is not None
    )


class _Guard(grpc.ServerInterceptor):
    """Passes every call except health checks to the door."""

    def __init__(self, door: Authenticator) -> None:
        self._door = door

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        if method.startswith(HEALTH):
            return continuation(handler_call_details)
        given = {name: _as_text(value) for name, value in handler_call_details.invocation_metadata}
        try:
            caller = self._door.admit(method, given)
        except CallRefused as refusal:
            return _refusing(refusal)
        except Exception:
            log.exception("a caller could not be checked")
            return _refusing(CallRefused(grpc.StatusCode.UNAVAILABLE, "callers cannot be checked now; try again"))
        handler = continuation(handler_call_details)
        return handler and self._named(handler, method, caller, trace.parse(given.get("traceparent", "")))

    def _named(self, handler: Any, method: str, caller: str, parent: trace.SpanPlace | None) -> Any:
        def begin(context: grpc.ServicerContext) -> None:
            try:
                self._door.charge(method, caller, context.peer())
            except CallRefused as refusal:
                context.abort(refusal.code, str(refusal))
            CALLER.set(caller)

        def whole(behaviour: Any) -> Any:
            def call(request: Any, context: grpc.ServicerContext) -> Any:
                with trace.span(method, parent=parent):
                    begin(context)
                    return behaviour(request, context)

            return call

        def streamed(behaviour: Any) -> Any:
            def call(request: Any, context: grpc.ServicerContext) -> Any:
                begin(context)
                yield from behaviour(request, context)

            return call

        return handler._replace(
            unary_unary=handler.unary_unary and whole(handler.unary_unary),
            unary_stream=handler.unary_stream and streamed(handler.unary_stream),
            stream_unary=handler.stream_unary and whole(handler.stream_unary),
            stream_stream=handler.stream_stream and streamed(handler.stream_stream),
        )


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _refusing(refusal: CallRefused) -> Any:
    """Refuse a call as a stream: a handler of one message would hold a thread until the client has sent it."""

    def refuse(_: object, context: grpc.ServicerContext) -> Any:
        context.abort(refusal.code, str(refusal))
        yield b""

    return cast(Any, grpc).stream_stream_rpc_method_handler(refuse)


def bearer(metadata: dict[str, str]) -> str:
    """Token of `authorization: Bearer TOKEN`; empty if there is none."""
    scheme, _, token = metadata.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class _Token:
    """Authenticator with one token for all callers."""

    def __init__(self, token: str) -> None:
        self._expected = token.encode()

    def admit(self, method: str, metadata: dict[str, str]) -> str:
        if not hmac.compare_digest(bearer(metadata).encode(errors="replace"), self._expected):
            raise CallRefused(grpc.StatusCode.UNAUTHENTICATED, "send the metadata `authorization: Bearer TOKEN`")
        return ""

    def charge(self, method: str, caller: str, peer: str) -> None:
        pass


def serve(settings: ServerConfig) -> None:
    """Blocks until SIGTERM or SIGINT, then lets running matches finish; a second signal ends the waiting."""
    logging.basicConfig(
        level=settings.executor.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    end_telemetry = telemetry.start("executor")
    asked, hurry = threading.Event(), threading.Event()

    def on_signal(number: int, frame: object) -> None:
        (hurry if asked.is_set() else asked).set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        running = start(settings)
        _announce(settings, running)
        _wait(asked)
        log.info("shutting down: running matches have %g s", settings.executor.grace_sec)
        stopper = threading.Thread(target=running.stop, args=(settings.executor.grace_sec,))
        stopper.start()
        while stopper.is_alive():
            if hurry.is_set():
                running.hurry()
            stopper.join(0.1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        end_telemetry()


def _wait(asked: threading.Event) -> None:
    while not asked.wait(1.0):  # with a timeout, so that signal handlers get their turn
        pass


def _announce(settings: ServerConfig, running: RunningServer) -> None:
    executor, port = settings.executor, running.port
    secured = "TLS" if executor.tls.cert else "plain text"
    log.info("listening on %s port %d, %s", executor.host, port, secured)
    if running.metrics_port is not None:
        log.info("metrics on http://%s:%d/metrics", executor.host, running.metrics_port)
    if executor.insecure and not config.is_loopback(executor.host):
        log.warning("--insecure: anyone who can reach %s port %d can run code here", executor.host, port)


def serve_from(
    host: str | None = None,
    port: int | None = None,
    metrics_port: int | None = None,
    config_path: str | None = None,
    file_folder: str | None = None,
    insecure: bool = False,
) -> None:
    """Run `harena executor`: arguments override the environment, which overrides the file. `file_folder` allows file://
    URLs below it."""
    loaded = config.load(config_path)
    chosen = config.override(
        loaded, host=host, port=port, metrics_port=metrics_port, file_folder=file_folder, insecure=insecure
    )
    serve(chosen)
