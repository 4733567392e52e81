"""Packages in the boxes of agents: always numpy, and those that the operator lists in HARENA_AGENT_PACKAGES, separated
by commas ("torch,scipy"). These are warm: imported before an agent needs them. Where the operator sets
HARENA_AGENT_REQUIREMENTS=1, an agent also has what its requirements.txt names; then nothing is warm in its box."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping

from harena.match import variables
from harena.sandbox.requirements import normalized_name, parse_requirements

REQUIREMENTS = "requirements.txt"


def for_agents() -> tuple[str, ...]:
    return tuple(dict.fromkeys(["numpy", *variables.names(variables.AGENT_PACKAGES)]))


def are_installed() -> bool:
    """Whether the requirements of agents are installed."""
    return variables.text(variables.AGENT_REQUIREMENTS) == "1"


def required(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Requirements of an agent, as far as they are installed. Raises SpecError for a file that has something else."""
    if REQUIREMENTS not in files or not are_installed():
        return ()
    return parse_requirements(files[REQUIREMENTS].decode("utf-8", "replace"))


def not_met(files: Mapping[str, bytes]) -> list[str]:
    """Requirements of an agent that its box will not meet, and the version that it has instead. Raises SpecError for a
    requirements.txt that has something else."""
    from packaging.requirements import Requirement  # here, because processes that only play need it not

    have = {normalized_name(name) for name in for_agents()}
    missing: list[str] = []
    for text in parse_requirements(files[REQUIREMENTS].decode("utf-8", "replace")):
        wanted = Requirement(text)
        installed = _version(wanted.name) if wanted.name in have else ""
        if not installed:
            missing.append(text)
        elif not wanted.specifier.contains(installed, prereleases=True):
            missing.append(f"{text} (it has {installed})")
    return missing


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def warm(packages: tuple[str, ...]) -> tuple[str, ...]:
    """Modules with the name of their package. A package whose module has another name is available, but not warm."""
    modules = [name.replace("-", "_") for name in packages]
    return tuple(name for name in modules if name.isidentifier() and importlib.util.find_spec(name) is not None)
