"""Environment variables of images. The only module of this package that reads them; docs/images.md has the table that
`table` makes.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harena.errors import SpecError
from harena.images.reference import DOCKER_HUB, HUB_NAMES, checked_host

MAX_VALUE = 4096

VARIABLES = {
    "HARENA_IMAGES": "The folder of images and layers (`~/.local/share/harena/images`)",
    "HARENA_IMAGES_MIRRORS": "Registries to ask first, as `docker.io=mirror.example:5000`, separated by commas (none)",
    "HARENA_IMAGES_INSECURE": "Registries that are reached without TLS, separated by commas (only those on loopback)",
    "HARENA_IMAGES_MAX_GB": "After a pull, the images unused for longest are removed down to this size (no limit)",
    "DOCKER_CONFIG": "The folder of Docker's `config.json`, for credentials (`~/.docker`)",
    "HTTPS_PROXY": "Proxy for registries on other machines, with `NO_PROXY` for exceptions (none)",
}
"""What each one does, and in brackets what holds without it."""


@dataclass(frozen=True, slots=True)
class ImageSettings:
    folder: Path
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Mirrors by the registry that they stand in for, in the order in which they are asked."""
    insecure: frozenset[str] = frozenset()
    max_bytes: int | None = None
    docker_config: Path | None = None
    https_proxy: str = ""
    no_proxy: str = ""

    @classmethod
    def from_environment(cls, values: Mapping[str, str] | None = None) -> ImageSettings:
        env = os.environ if values is None else values

        def text(name: str) -> str:
            value = env.get(name, "").strip()
            if len(value) > MAX_VALUE:
                raise SpecError(f"{name} is longer than {MAX_VALUE} characters")
            return value

        proxies = urllib.request.getproxies_environment() if values is None else {"https": text("HTTPS_PROXY")}
        return cls(
            folder=_folder(text("HARENA_IMAGES"), text("XDG_DATA_HOME")),
            mirrors=_mirrors(text("HARENA_IMAGES_MIRRORS")),
            insecure=frozenset(
                _host("HARENA_IMAGES_INSECURE", word) for word in _words(text("HARENA_IMAGES_INSECURE"))
            ),
            max_bytes=_gigabytes(text("HARENA_IMAGES_MAX_GB")),
            docker_config=_docker_config(text("DOCKER_CONFIG")),
            https_proxy=proxies.get("https", ""),
            no_proxy=text("NO_PROXY") or text("no_proxy"),
        )


def _folder(named: str, data_home: str) -> Path:
    if named:
        return Path(named).expanduser().absolute()
    try:
        base = Path(data_home) if data_home.startswith("/") else Path.home() / ".local" / "share"
    except RuntimeError:
        raise SpecError("this user has no home folder: set HARENA_IMAGES to a folder of yours") from None
    return base / "harena" / "images"


def _docker_config(named: str) -> Path | None:
    try:
        return (Path(named) if named else Path.home() / ".docker") / "config.json"
    except RuntimeError:
        return None


def _words(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]


def _host(variable: str, text: str) -> str:
    host = checked_host(text)
    if host is None:
        raise SpecError(f"{variable}: {text!r:.80} is not a host with an optional port")
    return DOCKER_HUB if host in HUB_NAMES else host


def _mirrors(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word in _words(text):
        registry, equals, mirror = word.partition("=")
        if not equals:
            raise SpecError(f"HARENA_IMAGES_MIRRORS: {word!r:.80}: expected registry=mirror")
        registry = _host("HARENA_IMAGES_MIRRORS", registry)
        found[registry] = (*found.get(registry, ()), _host("HARENA_IMAGES_MIRRORS", mirror))
    return found


def _gigabytes(text: str) -> int | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise SpecError(f"HARENA_IMAGES_MAX_GB={text!r:.40}: expected a number of gigabytes")
    return int(value * 1e9)


def table() -> str:
    """Return the variables as a table in Markdown."""
    lines = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return "\n".join(["| variable | what it does (without it) |", "|---|---|", *lines])
