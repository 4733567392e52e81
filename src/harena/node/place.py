"""Where a server listens: parsing of its URL."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from harena.errors import SpecError


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom to believe that it is the server, where the certificates of the system do not say it."""

    authority: str
    """The only certificate authority, in PEM."""
    name: str
    """The name that the server's certificate must have, in place of its address."""

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    host: str
    """The host, and the port if the URL has one, as a Host header has it."""
    unix: str = ""
    """Path of its Unix socket, if it has one."""
    tls: bool = False
    name: str = ""
    """The host alone, to connect to."""
    port: int = 0
    trust: Trust | None = None
    """Who the server must be, if not by the certificates of the system."""

    @classmethod
    def parse(cls, url: str, trust: Trust | None = None) -> Address:
        """Plain HTTP is for this machine only: anybody on the way could read the token and the code."""
        if url.startswith("unix:"):
            path = url.removeprefix("unix:").removeprefix("//")
            if not os.path.isabs(path):
                raise SpecError(f"{url}: give the absolute path of the server's socket, as in unix:/run/harena.sock")
            return cls(url, "localhost", unix=path)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise SpecError(f"{url[:200]}: not a URL") from None
        wrong = parts.username or parts.query or parts.fragment or parts.path.strip("/")
        if not host or wrong or parts.scheme not in ("http", "https"):
            raise SpecError(f"{url[:200]}: give https://HOST:PORT, http://127.0.0.1:PORT or unix:/PATH, and no more")
        if parts.scheme == "http" and not is_loopback(host):
            raise SpecError(f"{url}: the token and the code would cross the network in the clear; use https://")
        shown = f"[{host}]" if ":" in host else host
        tls = parts.scheme == "https"
        full = f"{shown}:{port}" if port else shown
        return cls(url, full, tls=tls, name=host, port=port or (443 if tls else 80), trust=trust)


def tls_context(place: Address) -> ssl.SSLContext:
    return ssl.create_default_context() if place.trust is None else place.trust.context()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
