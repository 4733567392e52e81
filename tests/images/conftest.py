from __future__ import annotations

import ipaddress
import socket

import pytest

from harena.images import ImageStore
from harena.images.settings import ImageSettings
from support.registries import PATIENT, QUICK, Registry


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch):
    """A bug must not send a packet elsewhere: what leads out of loopback fails before it is sent."""
    true_connect, true_lookup = socket.socket.connect, socket.getaddrinfo

    def connect(self, address):
        if self.family != socket.AF_UNIX:
            found = ipaddress.ip_address(address[0])
            mapped = getattr(found, "ipv4_mapped", None) or found
            assert mapped.is_loopback or mapped.is_unspecified, f"a test connects to {address}"
        return true_connect(self, address)

    def lookup(host, *more, **rest):
        if host != "localhost":
            ipaddress.ip_address(host.partition("%")[0])  # a name would be asked of a server
        return true_lookup(host, *more, **rest)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", lookup)


@pytest.fixture
def registry():
    with Registry() as served:
        yield served


@pytest.fixture
def store(tmp_path):
    return ImageStore(tmp_path / "store", settings=ImageSettings(tmp_path / "store"), patience=PATIENT)


@pytest.fixture
def hurried(tmp_path):
    """A store that soon gives up on a server."""
    return ImageStore(tmp_path / "store", settings=ImageSettings(tmp_path / "store"), patience=QUICK)
