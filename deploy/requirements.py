"""Prints requirements.txt: the packages of `harena[arena]`, which every service of deploy/ needs, from pyproject.toml.

For tools that read only such a file. `pip install 'harena[arena]'` installs the same.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

EXTRA = "arena"


def flattened(extras: dict[str, list[str]], name: str) -> list[str]:
    """Requirements of an extra, with those of the extras that it names."""
    found: list[str] = []
    for line in extras[name]:
        own = re.fullmatch(r"harena\[([\w,-]+)\]", line)
        found += [part for other in own[1].split(",") for part in flattened(extras, other)] if own else [line]
    return sorted(set(found), key=str.lower)


def text(pyproject: Path) -> str:
    extras = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    head = f"# Made by `make requirements` from the extra `{EXTRA}` of pyproject.toml."
    return "\n".join([head, *flattened(extras, EXTRA)])


if __name__ == "__main__":
    print(text(Path(__file__).parents[1] / "pyproject.toml"))
