"""Which packages agents find in their boxes. numpy always; more by the operator's word in HARENA_AGENT_PACKAGES, a list
of installed distributions with commas ("torch,scipy"), which are then warm: imported before an agent asks."""

from __future__ import annotations

import importlib.util
import os

VARIABLE = "HARENA_AGENT_PACKAGES"


def for_agents() -> tuple[str, ...]:
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    return tuple(dict.fromkeys(["numpy", *filter(None, named)]))


def warm(packages: tuple[str, ...]) -> tuple[str, ...]:
    """The modules of the same name; a distribution whose module is called otherwise is there, but not warm."""
    modules = [name.replace("-", "_") for name in packages]
    return tuple(name for name in modules if name.isidentifier() and importlib.util.find_spec(name) is not None)
