"""The folder that boxes run: any Python from MIN_PYTHON on must read it, and a guest must not find it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from harena.backends.local import guest

FOLDER = Path(guest.__file__).parent
MODULES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py"))}
STANDARD = {"_signal", "_socket", "_thread", "builtins", "collections", "ctypes", "errno", "fcntl", "gc", "io", "json",
            "os", "random", "resource", "select", "signal", "stat", "struct", "sys", "time", "types"}  # fmt: skip
"""More of them would slow down the start of every box."""


def siblings(node: ast.AST) -> set[str]:
    """Modules of the folder that an import names."""
    if not isinstance(node, ast.ImportFrom) or not node.level:
        return set()
    return {node.module} if node.module else {alias.name for alias in node.names}


def needed(name: str) -> set[str]:
    """A module and all that it loads of the folder."""
    found, new = set[str](), {name}
    while new:
        found |= new
        new = {other for name in new for node in ast.parse(MODULES[name]).body for other in siblings(node)} - found
    return found


@pytest.mark.parametrize("name", MODULES)
def test_the_oldest_python_reads_it(name: str) -> None:
    tree = ast.parse(MODULES[name], feature_version=guest.MIN_PYTHON)
    assert not any(
        isinstance(node, ast.AnnAssign) or getattr(node, "annotation", None) or getattr(node, "returns", None)
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("name", MODULES)
def test_all_imports_of_the_folder_are_done_before_guests_run(name: str) -> None:
    """start.py hides the modules once they are loaded; an import inside a function would find a guest's file instead."""
    tree = ast.parse(MODULES[name])
    inside = {other for node in ast.walk(tree) if node not in tree.body for other in siblings(node)}
    assert not inside
    loaded = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert loaded <= STANDARD


def test_a_native_box_loads_only_its_part() -> None:
    assert needed("zygote") == {"zygote", "program", "files", "wire"}
    assert not needed("loop") & {"zygote", "program", "files"}
