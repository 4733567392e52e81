"""Names of images: references, digests and platforms.

Guarantees: a parsed reference has one canonical spelling, and none of its parts can be mistaken for a path, an
option or a URL.
"""

from __future__ import annotations

import hashlib
import ipaddress
import platform
import re
from dataclasses import dataclass

from harena.images.errors import BadReference

DOCKER_HUB = "docker.io"
HUB_NAMES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
MAX_REFERENCE = 512
MAX_NAME = 255
HEX_LENGTHS = {"sha256": 64, "sha512": 128}

_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_HOST_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_DIGEST = re.compile(r"(sha256|sha512):([0-9a-f]+)", re.ASCII)
_WORD = re.compile(r"[a-z0-9_][a-z0-9_.]{0,31}", re.ASCII)

MACHINES = {
    "x86_64": ("amd64", ""),
    "amd64": ("amd64", ""),
    "aarch64": ("arm64", "v8"),
    "arm64": ("arm64", "v8"),
    "armv7l": ("arm", "v7"),
    "armv6l": ("arm", "v6"),
    "i686": ("386", ""),
    "i386": ("386", ""),
    "ppc64le": ("ppc64le", ""),
    "riscv64": ("riscv64", ""),
    "s390x": ("s390x", ""),
}
"""Architecture and variant of an image by the name that the kernel has for the machine."""


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """Hash of a blob, such as sha256:9f86d0…"""

    algorithm: str
    hex: str

    @classmethod
    def parse(cls, text: str) -> Digest:
        match = _DIGEST.fullmatch(text)
        if match is None or len(match[2]) != HEX_LENGTHS[match[1]]:
            raise BadReference(f"{text!r:.160} is not a digest: expected sha256: and 64 hexadecimal digits")
        return cls(match[1], match[2])

    @classmethod
    def of(cls, data: bytes) -> Digest:
        return cls("sha256", hashlib.sha256(data).hexdigest())

    def matches(self, data: bytes) -> bool:
        return hashlib.new(self.algorithm, data).hexdigest() == self.hex

    @property
    def short(self) -> str:
        return self.hex[:12]

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.hex}"


@dataclass(frozen=True, slots=True)
class Reference:
    """Registry, repository, and a tag or a digest or both. `str` gives the canonical spelling."""

    registry: str
    """Host with an optional port, such as docker.io or localhost:5000."""
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference as Docker does: docker.io, library/ and latest may be left out."""
        if not text or len(text) > MAX_REFERENCE:
            raise _bad(text, f"expected 1 to {MAX_REFERENCE} characters")
        if "://" in text:
            raise _bad(text, "leave out the scheme, as in localhost:5000/name:tag")
        rest, at, digest_text = text.partition("@")
        try:
            digest = Digest.parse(digest_text) if at else None
        except BadReference as error:
            raise _bad(text, str(error)) from None
        first, slash, after = rest.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
            registry, rest = _registry(text, first), after
        else:
            registry = DOCKER_HUB
        repository, colon, tag = rest.partition(":")
        if colon and not _TAG.fullmatch(tag):
            raise _bad(text, "a tag is 1 to 128 letters, digits, dots, hyphens and underscores")
        if registry == DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        if len(registry) + 1 + len(repository) > MAX_NAME:
            raise _bad(text, f"the name is longer than {MAX_NAME} characters")
        if not all(_PART.fullmatch(part) for part in repository.split("/")):
            raise _bad(text, "a name is lowercase letters and digits, separated by single . _ - and /")
        return cls(registry, repository, tag if colon else None if digest else "latest", digest)

    @property
    def name(self) -> str:
        return f"{self.registry}/{self.repository}"

    @property
    def familiar(self) -> str:
        """The short spelling that people type."""
        text = str(self)
        return text.removeprefix(f"{DOCKER_HUB}/library/").removeprefix(f"{DOCKER_HUB}/")

    @property
    def target(self) -> str:
        """What to ask the registry for: the digest if there is one, else the tag."""
        return str(self.digest) if self.digest else self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"


def _registry(text: str, host: str) -> str:
    checked = checked_host(host)
    if checked is None:
        raise _bad(text, "a registry is a host name or address with an optional port")
    return DOCKER_HUB if checked in HUB_NAMES else checked


def checked_host(text: str) -> str | None:
    """`host` or `host:port` in lower case; None if it is neither."""
    if text.startswith("["):
        inner, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        try:
            host = f"[{ipaddress.IPv6Address(inner)}]"
        except ValueError:
            return None
        port = port[1:] if port else None
    else:
        name, colon, port = text.partition(":")
        host, port = name.lower(), port if colon else None
        if len(host) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in host.split(".")):
            return None
    if port is None:
        return host
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        return None
    return f"{host}:{int(port)}"


@dataclass(frozen=True, slots=True)
class Platform:
    """Operating system, architecture and variant, such as linux/arm64/v8."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Platform:
        words = text.split("/")
        if not 2 <= len(words) <= 3 or not all(_WORD.fullmatch(word) for word in words):
            raise BadReference(f"{text!r:.80} is not a platform: expected one such as linux/amd64 or linux/arm/v7")
        return cls(words[0], words[1], words[2] if len(words) == 3 else "")

    @classmethod
    def of_host(cls) -> Platform:
        machine = platform.machine().lower()
        return cls("linux", *MACHINES.get(machine, (machine, "")))

    def __str__(self) -> str:
        return "/".join(word for word in (self.os, self.architecture, self.variant) if word)


def _bad(text: str, why: str) -> BadReference:
    return BadReference(f"{text!r:.160} is not the name of an image: {why}")
