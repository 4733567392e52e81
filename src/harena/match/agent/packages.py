"""Packages in the boxes of agents: always numpy, and those that the operator lists in HARENA_AGENT_PACKAGES, separated
by commas ("torch,scipy"). These are warm: imported before an agent needs them."""

from __future__ import annotations

import importlib.util
import os

VARIABLE = "HARENA_AGENT_PACKAGES"


def for_agents() -> tuple[str, ...]:
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    return tuple(dict.fromkeys(["numpy", *filter(None, named)]))


def warm(packages: tuple[str, ...]) -> tuple[str, ...]:
    """Modules with the name of their package. A package whose module has another name is available, but not warm."""
    modules = [name.replace("-", "_") for name in packages]
    return tuple(name for name in modules if name.isidentifier() and importlib.util.find_spec(name) is not None)
