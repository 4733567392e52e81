"""Config of environments from other libraries. It may come from a stranger, so it is restricted to numbers and switches
of the environment's own factory, with the type of their defaults. Texts are refused because they can name files,
modules or windows to open; if you need one, write a "module:factory" of a few lines.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from harena.errors import SpecError
from harena.match import registry

LARGEST = 10_000
"""Maximum of any number, because larger sizes and counts could exhaust the machine."""


def numbers(factory: Callable[..., Any]) -> dict[str, bool | int | float]:
    """Options of a factory whose default is a number or a switch."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}
    return {name: p.default for name, p in parameters.items() if isinstance(p.default, bool | int | float)}


def checked(
    game_id: str, config: Mapping[str, Any], allowed: Mapping[str, bool | int | float]
) -> dict[str, bool | int | float]:
    config = registry.checked_config(game_id, config, allowed)
    return {key: _alike(game_id, key, value, allowed[key]) for key, value in config.items()}


def _alike(game_id: str, key: str, value: Any, default: bool | int | float) -> bool | int | float:
    wanted = (
        "true or false" if isinstance(default, bool) else "a whole number" if isinstance(default, int) else "a number"
    )
    kinds: Any = bool if isinstance(default, bool) else int if isinstance(default, int) else (int, float)
    fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)
    if not fits or not math.isfinite(value) or abs(value) > LARGEST:
        raise SpecError(f"{game_id}: config {key}={value!r:.40} must be {wanted}, at most {LARGEST}")
    return value
