"""Lists of nodes that are servers: in a URL, or in a file that is read again when it changes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Protocol

from harena.backends.remote.backend import open_connection
from harena.errors import SpecError
from harena.node.connection import Connection
from harena.node.place import Address, is_loopback

LIST, FILE = "harena://", "nodes:"
DEFAULT_PORT = 8700
"""The port of `harena serve`."""
MAX_NODES = 10_000
MAX_FILE = 1 << 20

log = logging.getLogger("harena.nodes")


class Roster(Protocol):
    """Which nodes there are."""

    def names(self) -> Sequence[str]:
        """Return the nodes of this moment. Does not wait for any of them."""
        ...

    def connect(self, name: str) -> Connection:
        """Connect to a node. Raises HarenaError."""
        ...

    def close(self) -> None:
        """End what the roster itself has opened."""
        ...


def roster_of(url: str, token: str | None) -> Roster:
    if url.startswith(FILE):
        return FileRoster(url.removeprefix(FILE), token)
    return ListRoster(parse_nodes(url.removeprefix(LIST).split(","), url), token)


def parse_nodes(words: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the URL of each node. Raises SpecError for a list that cannot be used."""
    if not words or len(words) > MAX_NODES:
        raise SpecError(f"{where[:200]}: give from 1 to {MAX_NODES} nodes, as in harena://n1:8700,n2:8700")
    urls = tuple(node_url(word.strip(), where) for word in words)
    if len(set(urls)) < len(urls):
        raise SpecError(f"{where[:200]}: names a node twice")
    return urls


def node_url(word: str, where: str) -> str:
    """HOST[:PORT] is https, or http on this machine; /PATH is a Unix socket; URLs are kept."""
    if word.startswith("/"):
        word = f"unix:{word}"
    if "://" not in word and not word.startswith("unix:"):
        host = word.rpartition(":")[0] if not word.endswith("]") and ":" in word else word
        port = "" if host != word else f":{DEFAULT_PORT}"
        scheme = "http" if is_loopback(host.removeprefix("[").removesuffix("]")) else "https"
        word = f"{scheme}://{word}{port}"
    try:
        return Address.parse(word).url
    except SpecError as error:
        raise SpecError(f"{where[:200]}: {error}") from None


class ListRoster:
    def __init__(self, urls: tuple[str, ...], token: str | None) -> None:
        self._urls = urls
        self._token = token

    def names(self) -> Sequence[str]:
        return self._urls

    def connect(self, name: str) -> Connection:
        return open_connection(Address.parse(name), self._token)

    def close(self) -> None: ...


class FileRoster:
    """One node on each line; what follows a # is a comment. A file that cannot be read keeps the last list."""

    def __init__(self, path: str, token: str | None) -> None:
        self._path = os.path.abspath(path)
        self._token = token
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._urls = self._read()

    def names(self) -> Sequence[str]:
        with self._lock:
            try:
                stamp = self._stamp()
                if stamp != self._seen:
                    self._seen = stamp  # also if it is of no use: one warning for each version is enough
                    self._urls = self._read()
            except SpecError as error:
                log.warning("%s; the nodes stay as they were", error)
            return self._urls

    def connect(self, name: str) -> Connection:
        return open_connection(Address.parse(name), self._token)

    def close(self) -> None: ...

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[str, ...]:
        try:
            with open(self._path, "rb") as file:
                data = file.read(MAX_FILE + 1)
            text = data.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{FILE}{self._path}: cannot be read: {error}") from None
        if len(data) > MAX_FILE:
            raise SpecError(f"{FILE}{self._path}: larger than {MAX_FILE} bytes")
        words = [line.partition("#")[0].strip() for line in text.splitlines()]
        return parse_nodes([word for word in words if word], FILE + self._path)
