"""Claims pods and makes boxes in them."""

from __future__ import annotations

import atexit
import functools
import threading
from urllib.parse import urlsplit

from harena.errors import SpecError
from harena.kube import config
from harena.kube.api import KubeApi
from harena.kube.claims import Claim, PoolClient
from harena.kube.placement import PodPlace, PodPlacement
from harena.node import client, websocket
from harena.node.client import NodeBox
from harena.node.connection import Connection
from harena.node.place import Address
from harena.sandbox.backend import Capabilities
from harena.sandbox.spec import Limits, Spec

START_S = 120.0


class KubernetesBackend:
    """One warm pool. The cluster is that of KUBECONFIG, or the one that this process runs in."""

    def __init__(self, url: str, token: str | None = None) -> None:
        if token is not None:
            raise SpecError("token: a pool of a cluster needs none; its Secret has the keys of its pods")
        self.namespace, self.pool = parse_url(url)
        self._lock = threading.Lock()
        self._capabilities: Capabilities | None = None

    @functools.cached_property
    def _placement(self) -> PodPlacement[Connection]:
        api = KubeApi(config.load())
        pods = PoolClient(api, self.namespace or api.namespace, self.pool)
        made = PodPlacement(pods, _connect, lambda connection: connection.usable)
        atexit.register(made.close)
        return made

    def capabilities(self) -> Capabilities:
        with self._lock:
            if self._capabilities is None:
                place = self._placement.enter(START_S)
                try:
                    self._capabilities = client.capabilities(place.connection)
                finally:
                    self._placement.leave(place)
            return self._capabilities

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> KubernetesBox:
        client.refuse_network(spec, "kubernetes")
        place = self._placement.enter(start_s)
        try:
            handle, id, tier = client.create(place.connection, spec, limits, start_s)
            return KubernetesBox(self._placement, place, handle, id, tier)
        except BaseException:
            self._placement.leave(place)
            raise


class KubernetesBox(NodeBox):
    backend = "kubernetes"

    def __init__(
        self, placement: PodPlacement[Connection], place: PodPlace[Connection], handle: int, id: str, isolation: str
    ) -> None:
        super().__init__(place.connection, handle, id, isolation)
        self._placement = placement
        self._place = place
        self._open = True
        self._closing = threading.Lock()

    @property
    def pod(self) -> str:
        """Name of the pod that the box is in."""
        return self._place.claim.pod

    def _forked(self, handle: int, id: str) -> KubernetesBox:
        self._placement.enter_same(self._place)
        return KubernetesBox(self._placement, self._place, handle, id, self.isolation)

    def close(self) -> None:
        super().close()
        with self._closing:
            was_open, self._open = self._open, False
        if was_open:
            self._placement.leave(self._place)


def _connect(claim: Claim) -> Connection:
    return websocket.connect_to(Address.parse(claim.url, claim.trust), claim.token)


def parse_url(url: str) -> tuple[str, str]:
    """Return the namespace, empty for that of the kubeconfig's context, and the pool."""
    parts = urlsplit(url)
    pool = parts.path.strip("/")
    wrong = parts.query or parts.fragment or "@" in parts.netloc or ":" in parts.netloc or "/" in pool
    if parts.scheme != "kubernetes" or wrong or not pool:
        raise SpecError(f"{url[:200]}: give kubernetes://NAMESPACE/POOL")
    return parts.netloc, pool
