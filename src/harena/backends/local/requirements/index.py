"""Where requirements come from: the index of the settings, or the one that pip would ask.

The host never asks an index. It only decides which one the installing box may reach.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from harena.backends.local import variables
from harena.backends.local.launch import users
from harena.errors import IsolationUnavailable, SpecError
from harena.sandbox.network import Network
from harena.sandbox.spec import Mount

WHEELS = "/opt/harena-wheels"
"""Where a box sees a folder of wheels."""
PIP_S = 30
MAX_CONNECTIONS = 10_000
ASK_PIP = """
import json
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
settings = Configuration(isolated=False)
settings.load()
found = {name: value for name, value in settings.items() if name.endswith(".index-url")}
print(json.dumps({"settings": found, "default": PyPI.simple_url, "files": PyPI.file_storage_domain}))
"""
"""Prints the index that pip is configured with, and pip's own default with the host of its files."""


@dataclass(frozen=True, slots=True)
class PackageIndex:
    name: str
    """What the key of an installed set has of it."""
    arguments: tuple[str, ...]
    """Arguments for pip."""
    network: Network | None = None
    mounts: tuple[Mount, ...] = ()


def find(max_mb: int) -> PackageIndex:
    """Return the index of the settings, else pip's. Raises SpecError for one that cannot be used."""
    named, hosts = variables.package_index(), variables.package_hosts()
    if named:
        if "://" not in named or named.startswith("file://"):
            return _folder(named)
        return _online(named, hosts, "HARENA_PACKAGE_INDEX", max_mb, is_named=True)
    configured, default, files = _of_pip(variables.pip_settings())
    if configured:
        return _online(configured, hosts, "pip's index-url", max_mb, is_named=True)
    return _online(default, (*hosts, f"{files}:443"), "pip's default index", max_mb, is_named=False)


def _folder(named: str) -> PackageIndex:
    path = named
    if named.startswith("file://"):
        parts = urllib.parse.urlsplit(named)
        if parts.netloc not in ("", "localhost"):
            raise SpecError("HARENA_PACKAGE_INDEX: a file address names no other machine")
        path = urllib.parse.unquote(parts.path)
    if not path.startswith("/") or not Path(path).is_dir():
        raise SpecError(f"HARENA_PACKAGE_INDEX: {named!r:.200} is neither an address nor the absolute path of a folder")
    if users.choose() is not None and Path(path).stat().st_mode & 0o005 != 0o005:
        raise SpecError(f"HARENA_PACKAGE_INDEX: users of boxes cannot read {path!r:.200} (chmod o+rx)")
    mount = Mount(source=path, target=WHEELS)
    return PackageIndex(f"folder {path}", ("--no-index", "--find-links", WHEELS), mounts=(mount,))


def _online(url: str, hosts: tuple[str, ...], source: str, max_mb: int, *, is_named: bool) -> PackageIndex:
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        raise SpecError(f"{source}: not an address") from None
    if parts.username is not None or parts.password is not None:
        raise SpecError(f"{source}: it holds a name or password, which the packages' own code could read; use another")
    if not host or not port or not url.isascii() or not url.isprintable() or " " in url:
        raise SpecError(f"{source}: {url!r:.200} is not an address that begins with https://")
    if parts.scheme != "https" and not _is_loopback(host):
        raise SpecError(f"{source}: {url!r:.200}: without TLS anybody on the way could replace packages; use https")
    shown = f"[{host}]" if ":" in host else host
    # The operator named this host, so it may lie in a private network. That of pip's own default may not.
    network = Network(
        allow=tuple(dict.fromkeys((f"{shown}:{port}", *hosts))),
        private_names=is_named,
        max_connections=MAX_CONNECTIONS,
        max_bytes=2 * max_mb << 20,
    )
    return PackageIndex(url, ("--index-url", url), network=network)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@functools.cache
def _of_pip(_settings: tuple[tuple[str, str], ...]) -> tuple[str, str, str]:
    """Index of pip's configuration ("" if it names none), pip's default index, and the host of that one's files."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", ASK_PIP],
            capture_output=True,
            timeout=PIP_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        answer = json.loads(done.stdout)
        found, default, files = answer["settings"], str(answer["default"]), str(answer["files"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        raise IsolationUnavailable(
            "no package index is known: the Python that runs Harena has no pip that could name one",
            fix="set HARENA_PACKAGE_INDEX to the address of an index, HARENA_PACKAGE_HOSTS to the hosts of its files",
        ) from None
    for level in (":env:", "wheel", "install", "global"):
        if found.get(f"{level}.index-url"):
            return str(found[f"{level}.index-url"]), default, files
    return "", default, files
