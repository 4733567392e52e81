"""A class name means one thing in the whole package, so that a reader who sees only the name knows what it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import harena

SOURCE = Path(harena.__file__).parent
MOST = 5

SHARED = {
    "Agent": "the agent contract asks every agent for a class of this name",
    "Box": "the verbs of a backend, and Gymnasium's word for a space",
    "Conflict": "sent by name in answers of `harena serve`; the arena's is an error of its store",
    "HarenaEnvironment": "each framework's configuration names the class of its own adapter",
    "NotFound": "sent by name in answers of `harena serve`; the arena's is an error of its store",
}
"""Names that several modules define, with the reason."""


def places_of_names() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return places


def test_class_names_are_defined_once() -> None:
    places = {name: found for name, found in places_of_names().items() if len(found) > 1}
    assert {name: found for name, found in places.items() if name not in SHARED} == {}
    assert places.keys() == SHARED.keys(), "a name in SHARED is defined once now: take it off the list"
    assert len(SHARED) <= MOST
