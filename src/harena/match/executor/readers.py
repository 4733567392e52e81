"""Readers of the executor's settings: a value as YAML gave it, and its dotted key, to what the executor uses. Each one
raises ConfigError with the key, the value and what is expected.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from harena.errors import SpecError
from harena.match.agent import image

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

Reader = Callable[[Any, str], Any]


class ConfigError(SpecError):
    """A setting is invalid. The message names the key, the value and what is expected."""


def refused(key: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{key}: expected {wanted}, found {reprlib.repr(value)}")


def text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.strip() or any(ord(char) < 32 for char in value):
        raise refused(key, value, "a text")
    return value


def flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise refused(key, value, "true or false")
    return value


def whole(low: int, high: int) -> Reader:
    def read(value: Any, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refused(key, value, f"a whole number from {low} to {high}")
        return value

    return read


def number(low: float, high: float, unit: str) -> Reader:
    def read(value: Any, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise refused(key, value, f"{unit} from {low:g} to {high:g}")
        return float(value)

    return read


def memory(value: Any, key: str) -> int:
    """Megabytes, from "512m", "1g", "1Gi" or plain bytes, as container tools write it."""
    match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(i?b?)", str(value).strip().lower())
    if isinstance(value, bool | float) or match is None:
        raise refused(key, value, 'a size as "512m" or "1g"')
    size = int(match[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[match[2]]
    if not 16 << 20 <= size <= 1 << 40:
        raise refused(key, value, "a size from 16m to 1024g")
    return math.ceil(size / (1 << 20))


def one_of(*known: str) -> Reader:
    def read(value: Any, key: str) -> str:
        if value not in known:
            raise refused(key, value, f"one of {', '.join(known)}")
        return str(value)

    return read


def label(value: Any, key: str) -> str:
    """A name as Kubernetes writes namespaces."""
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
        raise refused(key, value, 'a name of small letters, digits and "-"')
    return value


def mapping(value: Any, key: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise refused(key, value, "a mapping of texts")
    items = cast("dict[Any, Any]", value).items()
    return {text(name, key): text(item, f"{key}.{name}") for name, item in items}


def extensions(value: Any, key: str) -> tuple[str, ...]:
    """File name endings, written with or without the dot."""
    return tuple(f".{item.removeprefix('.').lower()}" for item in texts(value, key))


def level(value: Any, key: str) -> str:
    name = str(value).upper()
    if name not in LOG_LEVELS:
        raise refused(key, value, f"one of {', '.join(LOG_LEVELS)}")
    return name


def texts(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise refused(key, value, "a list of texts")
    return tuple(text(item, f"{key}[{at}]") for at, item in enumerate(cast("list[Any]", value)))


def hosts(value: Any, key: str) -> tuple[str, ...]:
    return tuple(host(item, f"{key}[{at}]") for at, item in enumerate(texts(value, key)))


def host(name: str, key: str) -> str:
    if not re.fullmatch(r"(\*\.)?[\w.-]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?", name):
        raise refused(key, name, 'a host as "example.org", "example.org:8443" or "*.example.org"')
    return name.lower()


def images(value: Any, key: str) -> tuple[str, ...]:
    for at, item in enumerate(texts(value, key)):
        try:
            image.checked_pattern(item)
        except SpecError as error:
            raise ConfigError(f"{key}[{at}]: {error}") from None
    return texts(value, key)


def url(*schemes: str) -> Reader:
    def read(value: Any, key: str) -> str:
        address = text(value, key)
        if not address.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise refused(key, value, f"a URL that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return address.rstrip("/")

    return read


def path(value: Any, key: str) -> Path:
    return Path(text(value, key)).expanduser()
