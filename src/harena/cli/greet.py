"""What `harena` prints without arguments: the four doors, and which of them open on this machine."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from harena.errors import HarenaError, IsolationUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    name: str
    does: str
    first: str
    """The command to try first."""
    needs: tuple[str, ...] = ()
    """Packages, as they are imported."""
    extra: str = ""
    """The extra that installs them."""


DOORS = (
    Door(name="run", does="untrusted code in boxes", first="harena run -c 'print(6 * 7)'"),
    Door(
        name="match",
        does="agents against each other",
        first="harena match connect_four a.py b.py --watch",
        needs=("numpy", "msgspec", "zstandard", "packaging", "harena.match"),
        extra="match",
    ),
    Door(
        name="rank",
        does="an arena with boards and a page",
        first="harena up",
        needs=("fastapi", "sqlalchemy", "uvicorn", "gymnasium", "grpc", "harena.api", "harena.arena"),
        extra="arena",
    ),
    Door(
        name="train",
        does="a model by self-play",
        first="harena azr train --profile laptop --iterations 5 --out run",
        needs=("torch", "safetensors", "yaml", "harena.azr"),
        extra="azr",
    ),
)


def greeting() -> dict[str, Any]:
    """Name each door with what it needs, and say whether this machine can make boxes."""
    from harena import __version__

    doors = [
        {
            "name": door.name,
            "does": door.does,
            "first": door.first,
            "install": "" if _is_there(door) else _install(door),
        }
        for door in DOORS
    ]
    return {"version": __version__, "boxes": _boxes(), "doors": doors}


def _boxes() -> dict[str, Any]:
    """Make a box: what a host allows is known only then."""
    from harena.sandbox import backend
    from harena.sandbox.box import Sandbox

    try:
        with Sandbox():
            found = backend.load("local").capabilities()
    except IsolationUnavailable as error:
        return {"work": False, "missing": error.missing, "fix": error.fix}
    except HarenaError as error:
        return {"work": False, "missing": str(error), "fix": "harena doctor"}
    return {"work": True, "isolation": found.isolation, "launcher": found.launcher}


def text(found: dict[str, Any]) -> str:
    boxes = found["boxes"]
    lines = [f"Harena {found['version']} runs, matches, ranks and trains agents that you do not trust.", ""]
    for door in found["doors"]:
        lines.append(f"  {door['name']:<6} {door['does']:<32} {door['install'] or door['first']}")
    lines.append("")
    if boxes["work"]:
        lines.append(f"Boxes work on this machine ({boxes['isolation']} isolation, {boxes['launcher']} launcher).")
        lines.append("`harena doctor` attacks one to be sure; `harena --help` lists every command.")
    else:
        lines.append(f"No box can be made on this machine: {boxes['missing']}")
        lines.append(f"Fix: {boxes['fix']}")
    return "\n".join(lines)


def _is_there(door: Door) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in door.needs)


def _install(door: Door) -> str:
    return f"pip install 'harena[{door.extra}]'"
