"""Values as text: reading what a model or a box wrote, and comparing. Promises: nothing is evaluated; whatever the
text, the answer is a value or LiteralError, in bounded time and memory.

A literal is None, a bool, an int, a finite float, a text, bytes, or a list, tuple, set or dict of literals. (Complex
numbers are none: they do not all come back from their own text.) Two are the same when they have the same type all the
way down and are equal: 1, True and 1.0 are three values, 0.0 and -0.0 are two, floats must agree to the last bit, the
order of a dict or set does not count. NaN and the infinities have no literal, so no task and no answer holds one.
"""

from __future__ import annotations

import ast
import contextlib
import math
import struct
import threading
import warnings
from collections.abc import Generator
from typing import Any, TypeAlias, cast

from harena.errors import HarenaError

Value: TypeAlias = Any
"""A value as above; Python has no better type for it."""

MAX_CHARS = 10_000
MAX_DEPTH = 32
MAX_BITS = 4096
"""Largest size of an int: far below where Python refuses to print one."""

_quiet = threading.Lock()
_SCALARS = frozenset({int, float, str, bytes, bool, type(None)})


class LiteralError(HarenaError, ValueError):
    """A text is no literal, or one beyond the caps."""


def parse(source: str, *, mode: str = "exec", max_chars: int = MAX_CHARS) -> ast.AST:
    """`ast.parse` for text that nobody trusts: LiteralError for whatever it cannot do, and no warnings."""
    if len(source) > max_chars:
        raise LiteralError(f"{len(source)} characters are more than {max_chars}")
    try:
        source.encode()  # lone surrogates are no text: nobody could write them to a file
        with _quiet, warnings.catch_warnings():  # as `quiet` does, which costs more
            warnings.simplefilter("ignore")
            return ast.parse(source, mode=mode)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError) as error:
        raise LiteralError(f"does not parse: {type(error).__name__}") from None


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """No warnings while text is parsed, of escapes like "\\d" and the like; for one thread at a time."""
    with _quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read(text: str, *, max_chars: int = MAX_CHARS) -> Value:
    """The value of a literal."""
    tree = cast("ast.Expression", parse(text.strip(), mode="eval", max_chars=max_chars))
    return _value(tree.body, MAX_DEPTH)


def read_arguments(text: str, *, max_chars: int = MAX_CHARS) -> tuple[Value, ...]:
    """The values of an argument list such as `[1, 2], 'a'`; only positions, no names and no stars."""
    text = text.strip()
    if text.endswith("\\"):
        raise LiteralError("it goes on into nothing")
    call = cast("ast.Expression", parse(f"f({text}\n)", mode="eval", max_chars=max_chars + 4)).body
    # Whatever closes our bracket early makes something else than one call of f.
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.keywords or call.end_lineno == 1:
        raise LiteralError("not an argument list of plain values")
    return tuple(_value(node, MAX_DEPTH) for node in call.args)


def show(value: Value) -> str:
    """The literal of a value: `repr` with sets in an order of their own, not the hash seed's."""
    return _show(value, MAX_DEPTH)


def show_arguments(values: tuple[Value, ...]) -> str:
    return ", ".join(map(show, values))


def same(left: Value, right: Value) -> bool:
    """Typed equality, as the module says."""
    if type(left) is not type(right):
        return False
    kind = cast("type[Any]", type(left))
    if kind is float:
        return struct.pack("<d", left) == struct.pack("<d", right)
    if kind in (list, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if kind is set:
        return show(left) == show(right)
    if kind is dict:
        return _same_dicts(left, right)
    return bool(left == right)


def holds_set(value: Value) -> bool:
    """Whether a set is anywhere in it."""
    match value:
        case set():
            return True
        case list() | tuple():
            return any(map(holds_set, cast("list[Any]", value)))
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return any(holds_set(key) or holds_set(item) for key, item in pairs)
        case _:
            return False


def _same_dicts(left: dict[Value, Value], right: dict[Value, Value]) -> bool:
    if len(left) != len(right):
        return False
    by_key = {show(key): value for key, value in right.items()}
    return all((name := show(key)) in by_key and same(value, by_key[name]) for key, value in left.items())


def _value(node: ast.expr, depth: int) -> Value:
    if depth < 0:
        raise LiteralError(f"nested deeper than {MAX_DEPTH}")
    match node:
        case ast.Constant():
            return _scalar(node.value)
        case ast.List():
            return [_value(item, depth - 1) for item in node.elts]
        case ast.Tuple():
            return tuple(_value(item, depth - 1) for item in node.elts)
        case ast.Set():
            return _hashable(lambda: {_value(item, depth - 1) for item in node.elts})
        case ast.Dict():
            if any(key is None for key in node.keys):
                raise LiteralError("a dict with ** is no literal")
            keys = cast("list[ast.expr]", node.keys)
            return _hashable(
                lambda: {
                    _value(key, depth - 1): _value(item, depth - 1) for key, item in zip(keys, node.values, strict=True)
                }
            )
        case ast.Call(func=ast.Name(id="set"), args=[], keywords=[]):
            return set[Any]()  # the one empty set has no other literal
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            value = _number(operand, depth)
            return -value if isinstance(node.op, ast.USub) else +value
        case _:
            raise LiteralError(f"{type(node).__name__} is no literal")


def _number(node: ast.expr, depth: int) -> Value:
    value = _value(node, depth - 1)
    if type(value) not in (int, float):
        raise LiteralError("a sign before something that is no number")
    return value


def _scalar(value: Value) -> Value:
    if type(value) not in _SCALARS:
        raise LiteralError(f"{type(value).__name__} is no literal")
    if type(value) is int and value.bit_length() > MAX_BITS:
        raise LiteralError(f"an int of more than {MAX_BITS} bits")
    if type(value) is float and not math.isfinite(value):
        raise LiteralError("a float that is not finite")
    return value


def _hashable(make: Any) -> Value:
    try:
        return make()
    except TypeError:
        raise LiteralError("a list, set or dict cannot be in a set or be a key") from None


def _show(value: Value, depth: int) -> str:
    if depth < 0:
        raise LiteralError(f"nested deeper than {MAX_DEPTH}")
    kind = cast("type[Any]", type(value))
    if kind in _SCALARS:
        return repr(_scalar(value))
    if kind is list:
        return f"[{', '.join(_show(item, depth - 1) for item in value)}]"
    if kind is tuple:
        inside = ", ".join(_show(item, depth - 1) for item in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if kind is dict:
        return f"{{{', '.join(f'{_show(key, depth - 1)}: {_show(item, depth - 1)}' for key, item in value.items())}}}"
    if kind is set:
        return f"{{{', '.join(sorted(_show(item, depth - 1) for item in value))}}}" if value else "set()"
    raise LiteralError(f"{kind.__name__} is no literal")
