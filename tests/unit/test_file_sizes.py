"""A file has at most 500 lines, or its header says in one sentence why it is one file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import harena

SOURCE = Path(harena.__file__).parent
MOST = 500
KINDS = {".py", ".c", ".h", ".js", ".css", ".html", ".sh", ".sql"}
REASON = re.compile(r"\bOne file(, however long)?: \S+( \S+){3,}\.")
LONG = [
    path
    for path in sorted(SOURCE.rglob("*"))
    if path.suffix in KINDS and path.is_file() and len(path.read_bytes().splitlines()) > MOST
]


def header(path: Path) -> str:
    """The docstring of a module, or the comment that a file of another language begins with."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        words = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"\s*(?:/\*(.*?)\*/|<!--(.*?)-->)", text, re.DOTALL)
        words = "" if comment is None else next(filter(None, comment.groups()), "")
    return " ".join(words.replace(" * ", " ").split())


@pytest.mark.parametrize("path", LONG, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_long_file_says_why_it_is_one_file(path: Path) -> None:
    assert REASON.search(header(path)), (
        f"{path.relative_to(SOURCE)} has more than {MOST} lines: split it, or write 'One file: …' into its header"
    )


def test_a_header_without_a_reason_is_noticed(tmp_path: Path) -> None:
    for name, text in {
        "a.py": '"""Does it all."""\n# One file: below the header it counts for nothing.',
        "b.c": "int x;",
    }.items():
        (tmp_path / name).write_text(text)
        assert not REASON.search(header(tmp_path / name))
    (tmp_path / "c.c").write_text("/* Walks.\n *\n * One file, however long: its steps\n * are one list. */\nint x;")
    assert REASON.search(header(tmp_path / "c.c"))
