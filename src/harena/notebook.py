"""Values as HTML for notebooks. Guarantees: nothing that a stranger wrote becomes markup, invisible characters cannot
reorder a line, and a value has a bounded size however large the text in it is.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from harena.terminal import COLOUR, safe, safe_lines

MAX_CELL = 200
MAX_ROWS = 1000
MAX_TEXT = 20_000


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with a caption. Long cells are cut; rows beyond MAX_ROWS are left out, and the caption says so."""
    left_out = len(rows) - MAX_ROWS
    more = f" ({left_out} more rows are not shown)" if left_out > 0 else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows[:MAX_ROWS])
    return f"<table><caption>{_text(title)}{more}</caption><tr>{_cells('th', head)}</tr>{body}</table>"


def preformatted(text: str) -> str:
    """Lines of text as they are, without colours."""
    shown = safe_lines(COLOUR.sub("", text[:MAX_TEXT]))
    return f"<pre>{html.escape(shown)}{'…' if len(text) > MAX_TEXT else ''}</pre>"


def _cells(tag: str, values: Sequence[object]) -> str:
    return "".join(f"<{tag}>{_text(_short(value))}</{tag}>" for value in values)


def _short(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e9 else f"{value:.3g}"


def _text(text: str) -> str:
    return html.escape(safe(_cut(text)))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"
