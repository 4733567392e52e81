"""Connects the controller to kopf, which watches the custom resources, and runs everything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import kopf

from harena.kube import config, names
from harena.kube.api import KubeApi
from harena.operator.controller import Controller
from harena.operator.leader import Leader

KINDS = ("warmpools", "sandboxes", "tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    server_image: str
    """Image of pods, with `harena serve`."""
    namespace: str | None = None
    """The only namespace to look after; None: all of the cluster."""
    lease_namespace: str | None = None
    """Where the Lease of the leader is; None: the operator's own namespace."""
    port: int | None = None
    """Port of /healthz and /metrics on loopback of the pod; None: none."""
    requests: Counter[str] = field(default_factory=Counter[str])
    """Requests to the API by method, for metrics."""


def run(options: OperatorOptions) -> None:
    """Run until SIGTERM or SIGINT."""
    asyncio.run(_run(options))


async def _run(options: OperatorOptions) -> None:
    loop = asyncio.get_running_loop()
    counting = threading.Lock()

    def count(method: str, path: str) -> None:
        with counting:
            options.requests[f"{method} {'leases' if '/leases' in path else 'objects'}"] += 1

    api = KubeApi(config.load(), count=count)
    leader = Leader(api, options.lease_namespace or api.namespace)
    controller = Controller(api, leader, server_image=options.server_image, namespace=options.namespace)
    registry = _registry(controller)
    threading.Thread(target=controller.watch_pods, args=(loop,), name="harena-watch-pods", daemon=True).start()
    background = [
        loop.create_task(leader.run(controller.start, controller.stop)),
        loop.create_task(controller.sweep()),
    ]
    server = await _serve_metrics(options) if options.port is not None else None
    identity: Any = leader.identity  # else kopf looks for the name of its user, and in a pod that has none
    try:
        await kopf.operator(
            registry=registry,
            standalone=True,
            identity=identity,
            clusterwide=options.namespace is None,
            namespaces=[] if options.namespace is None else [options.namespace],
        )
    finally:
        for task in background:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*background, return_exceptions=True)
        if server is not None:
            server.close()
        leader.release()
        controller.close()


def _registry(controller: Controller) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False  # events are ours
        settings.scanning.disabled = True
        settings.batching.batch_window = 0.01

    async def log_in(**arguments: Any) -> kopf.ConnectionInfo | None:
        by_file = bool(os.environ.get("KUBECONFIG")) or not config.in_cluster()
        return kopf.login_with_kubeconfig(**arguments) if by_file else kopf.login_with_service_account(**arguments)

    kopf.on.startup(registry=registry)(configure)
    kopf.on.login(registry=registry)(log_in)
    for kind in KINDS:

        async def observe(event: Any, kind: str = kind, **_: Any) -> None:
            controller.observe(kind, event.get("type"), dict(event["object"]))

        kopf.on.event(names.GROUP, names.VERSION, kind, registry=registry, id=f"observe-{kind}")(observe)
    return registry


async def _serve_metrics(options: OperatorOptions) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(5):
                line = await reader.readline()
                lines = [
                    f'harena_operator_requests_total{{method="{name.split()[0]}",what="{name.split()[1]}"}} {number}'
                    for name, number in sorted(options.requests.items())
                ]
                body = "\n".join(["# TYPE harena_operator_requests_total counter", *lines, ""]).encode()
                if not line.startswith(b"GET /metrics"):
                    body = b"ok\n"
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "0.0.0.0", options.port)


def set_up_logs(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("kopf", "aiohttp"):
        logging.getLogger(name).setLevel("WARNING")
