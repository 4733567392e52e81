"""Parser of JSON from a box or a node, which is hostile: what it may take is bounded before any value is created."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from harena.errors import WireError

MAX_ITEMS = 1_000_000
"""Maximum number of items of a JSON value, including nested ones and keys: a few bytes of JSON take a hundred in
memory."""
MAX_ANSWER_ITEMS = 2_500_000
"""The same for an answer of a server; the longest lists 200,000 files."""
MAX_DEPTH = 200
"""Most levels of one JSON value: what takes it apart later may do so by recursion."""


class ValueTooLarge(WireError):
    """JSON with more items or levels than the host accepts."""


def parse_json(data: bytes, max_items: int = MAX_ITEMS) -> Any:
    """Strict JSON: no NaN, no infinities, no repeated keys, no numbers of unbounded length; items and levels are
    bounded before any value is created."""
    _bound(data, max_items)
    try:
        return json.loads(data, parse_constant=_refuse, parse_int=_int, parse_float=_float, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the box sent JSON that is refused: {type(error).__name__}: {str(error)[:200]}") from None


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def _items(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b",") + text.count(b":")


def _bound(text: bytes, max_items: int) -> None:
    """Check the number of items and levels without creating values. Strings are skipped only if there seem to be
    many."""
    if _items(text) < max_items and text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    text = _STRING.sub(b"", text)
    if _items(text) >= max_items:
        raise ValueTooLarge(f"the box sent JSON of more than {max_items} items")
    brackets = text.translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets, before = brackets.replace(b"[]", b""), len(brackets)  # takes the innermost level away
        if len(brackets) in {0, before}:
            return  # nothing is left, or no JSON: the parser will say so
    raise ValueTooLarge(f"the box sent JSON nested more than {MAX_DEPTH} deep")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _int(digits: str) -> int:
    if len(digits) > 4000:
        raise ValueError("a number of more than 4000 digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number too large for a float")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is given twice")
    return value
