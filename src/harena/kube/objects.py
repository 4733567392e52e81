"""Objects of the API as they come: parts that may be missing, or be something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

Object = dict[str, Any]


def part(found: Mapping[str, Any], name: str) -> Object:
    """Return an object within another; an empty one if there is none."""
    inner = found.get(name)
    return cast("Object", inner) if isinstance(inner, dict) else {}


def items(found: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list within an object; an empty one if there is none."""
    inner = found.get(name)
    return cast("list[Any]", inner) if isinstance(inner, list) else []
