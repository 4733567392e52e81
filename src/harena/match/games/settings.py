"""Checks of what a game's config may hold. Raises SpecError: the config came from a user or a client."""

from __future__ import annotations

from harena.errors import SpecError


def whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SpecError(f"config {name}={value!r:.40}: must be a whole number from {low} to {high}")
    return value
