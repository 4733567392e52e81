"""Environment variables of the Docker backend, and the only module of it that reads them. docs/backends.md has the
table that `table` makes.
"""

from __future__ import annotations

import os

from harena.errors import SpecError

VARIABLES = {
    "DOCKER_HOST": "The daemon's socket, `unix://PATH` (`unix:///var/run/docker.sock`)",
    "HARENA_DOCKER_RUNTIME": "What runs containers: `runc`, `crun`, `runsc`, … (the daemon's choice)",
    "HARENA_DOCKER_CPUS": "Processors that one container may use at once, such as `1.5` (all of the caller's)",
}
"""What each one does, and in brackets what holds without it."""


def docker_host() -> str:
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def runtime() -> str:
    return os.environ.get("HARENA_DOCKER_RUNTIME", "")


def cpus() -> float:
    text = os.environ.get("HARENA_DOCKER_CPUS")
    if not text:
        return float(len(os.sched_getaffinity(0)))
    try:
        wanted = float(text)
    except ValueError:
        wanted = 0.0
    if not 0.01 <= wanted <= 65536:
        raise SpecError(f"HARENA_DOCKER_CPUS={text}: give a number of processors, such as 1.5")
    return wanted


def table() -> str:
    """Return the table of variables in Markdown, for the docs."""
    lines = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return "\n".join(["| variable | what it does (without it) |", "|---|---|", *lines])
