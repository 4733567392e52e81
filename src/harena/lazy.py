"""Packages whose names are loaded on first use, and packages that a release ships in wheels of their own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

EXTRAS = {"harena.api": "arena", "harena.arena": "arena", "harena.azr": "azr", "harena.match": "match"}
"""The extra that installs each package of ours that is not in the wheel `harena`: deploy/release/packages.py."""


def missing_part(error: ModuleNotFoundError) -> str | None:
    """Say in one sentence which wheel of ours is missing; None if another package is."""
    extra = EXTRAS.get(".".join((error.name or "").split(".")[:2]))
    return extra and f"this needs harena-{extra}: pip install 'harena[{extra}]'"


def load_on_use(
    namespace: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package whose names are loaded on first use, from modules by name."""
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(homes[name])
        except ModuleNotFoundError as error:
            if (sentence := missing_part(error)) is None:
                raise
            raise ModuleNotFoundError(sentence, name=error.name) from None
        value = namespace[name] = getattr(module, name)
        return value

    return load, lambda: sorted({*namespace, *namespace["__all__"]})
