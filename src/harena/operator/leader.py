"""Leader election by a Lease: of several operators one acts.

A leader that could not renew its Lease in time stops acting before another one may start.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from harena.errors import BoxError
from harena.kube.api import KubeApi, KubeError, path
from harena.kube.objects import Object, part
from harena.operator.views import when

LEASE_S = 15
RENEW_S = 4.0
MARGIN_S = 4.0
"""How long before its end a leader stops acting: requests that are on their way, and clocks that differ."""

log = logging.getLogger("harena.operator")


class Leader:
    def __init__(self, api: KubeApi, namespace: str, name: str = "harena-operator") -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self.identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        self._until = 0.0
        self._seen: tuple[str, float] = ("", 0.0)
        """The other's last renewal and when we saw it, by our own clock."""

    @property
    def leads(self) -> bool:
        return time.monotonic() < self._until

    async def run(self, started: Callable[[], Awaitable[object]], stopped: Callable[[], object]) -> None:
        """Become leader, and stay it. `stopped` is called when another one may lead."""
        was = False
        while True:
            before = time.monotonic()
            try:
                held = await asyncio.to_thread(self._try)
            except BoxError as error:
                log.warning("the lease could not be renewed: %s", error)
                held = self.leads
            else:
                self._until = before + LEASE_S - MARGIN_S if held else 0.0
            if held and not was:
                log.info("leading as %s", self.identity)
                try:
                    await started()
                except BoxError as error:
                    log.warning("the cluster could not be read: %s", error)
                    held, self._until = False, 0.0  # the next round tries again
            elif was and not held:
                log.warning("not leading any more")
                stopped()
            was = held
            await asyncio.sleep(RENEW_S if held else 1.0)

    def _try(self) -> bool:
        where = path(self._namespace, "leases", self._name)
        try:
            lease = self._api.get(where)
        except KubeError as error:
            if error.status != 404:
                raise
            return self._write(self._api.create, path(self._namespace, "leases"), self._body({}))
        spec: Object = part(lease, "spec")
        if spec.get("holderIdentity") not in (None, "", self.identity) and not self._is_over(spec):
            return False
        return self._write(self._api.replace, where, {**lease, "spec": self._body(spec)["spec"]})

    def _is_over(self, spec: Object) -> bool:
        """Whether the other has not renewed for as long as its lease lasts, by our own clock."""
        renewed = str(spec.get("renewTime"))
        if renewed != self._seen[0]:
            # A lease that ended long before we started is free at once; a younger one is watched.
            age = time.time() - when(spec.get("renewTime"))
            fresh = age < 4 * LEASE_S
            self._seen = renewed, time.monotonic() if fresh else 0.0
        return time.monotonic() - self._seen[1] > float(spec.get("leaseDurationSeconds") or LEASE_S)

    def _write(self, call: Callable[[str, Object], Any], where: str, body: Object) -> bool:
        try:
            call(where, body)
        except KubeError as error:
            if error.status == 409:
                return False  # another one was first
            raise
        return True

    def _body(self, before: Object) -> Object:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.get("holderIdentity") == self.identity
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_S,
                "acquireTime": before.get("acquireTime") if mine else now,
                "renewTime": now,
                "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine else 1),
            },
        }

    def release(self) -> None:
        """Let another one lead at once."""
        if not self.leads:
            return
        self._until = 0.0
        where = path(self._namespace, "leases", self._name)
        try:
            lease = self._api.get(where)
            if part(lease, "spec").get("holderIdentity") == self.identity:
                self._api.replace(where, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except BoxError as error:
            log.warning("the lease could not be given back: %s", error)
