"""JSON of a server we do not trust into the dataclasses of `harena.schema`. Guarantees: what comes out has the
declared types and finite numbers, or BadAnswer says which field has not; no list or text is longer than the caps below.
Fields that are not declared are dropped, so that a newer arena can say more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from harena.client.errors import BadAnswer

T = TypeVar("T")

MAX_TEXT = 1 << 20
MAX_ITEMS = 200_000
MAX_NUMBER = 1 << 63


def parse(data: bytes | str) -> Any:
    """JSON as the standard has it: no NaN."""
    try:
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"an answer that is no JSON: {str(error)[:200]}") from None


def shape(kind: type[T], data: Any, where: str = "") -> T:
    """A dataclass out of an object. Fields it does not know are dropped."""
    where = where or kind.__name__.lower()
    if not isinstance(data, Mapping):
        raise _wrong(where, "an object", data)
    given = cast(Mapping[str, Any], data)
    values = {name: read(given[name], f"{where}.{name}") for name, read in _readers(kind).items() if name in given}
    for part in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        if part.name not in values and part.default is part.default_factory is dataclasses.MISSING:
            raise BadAnswer(f"an answer without {where}.{part.name}")
    return kind(**values)


def listing(kind: type[T], name: str) -> Callable[[Any], list[T]]:
    """Decode an answer that has its list under a name."""

    def read(data: Any) -> list[T]:
        if not isinstance(data, Mapping):
            raise _wrong(name, "an object", data)
        return list(_tuple_of(kind)(cast(Mapping[str, Any], data).get(name, []), name))

    return read


def whole(data: Any) -> Mapping[str, Any]:
    """An object, passed on as it came."""
    return _object(data, "the answer")


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _wrong(where: str, wanted: str, found: object) -> BadAnswer:
    return BadAnswer(f"an answer where {where} is not {wanted} but {type(found).__name__}")


# ---- one reader for each type ----

Reader = Callable[[Any, str], Any]


@functools.cache
def _readers(kind: type[Any]) -> dict[str, Reader]:
    return {name: _reader(hint) for name, hint in typing.get_type_hints(kind).items()}


def _reader(hint: Any) -> Reader:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return functools.partial(
            _either, [_reader(part) for part in typing.get_args(hint) if part is not types.NoneType]
        )
    if typing.get_origin(hint) is tuple:
        return _tuple_of(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Mapping:
        return functools.partial(_object_of, _reader(typing.get_args(hint)[1]))
    if dataclasses.is_dataclass(hint):
        return functools.partial(_nested, hint)
    return _PLAIN[hint]


def _either(readers: Sequence[Reader], data: Any, where: str) -> Any:
    """None, or what one of them takes."""
    if data is None:
        return None
    for read in readers[:-1]:
        with contextlib.suppress(BadAnswer):
            return read(data, where)
    return readers[-1](data, where)


def _nested(kind: Any, data: Any, where: str) -> Any:
    return shape(kind, data, where)


def _tuple_of(kind: Any) -> Reader:
    read = _reader(kind)

    def items(data: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _wrong(where, "a list", data)
        found = cast(list[Any], data)
        if len(found) > MAX_ITEMS:
            raise BadAnswer(f"an answer where {where} has {len(found)} items; at most {MAX_ITEMS} are read")
        return tuple(read(item, f"{where}[{at}]") for at, item in enumerate(found))

    return items


def _text(data: Any, where: str) -> str:
    if not isinstance(data, str):
        raise _wrong(where, "a text", data)
    if len(data) > MAX_TEXT:
        raise BadAnswer(f"an answer where {where} has {len(data)} characters; at most {MAX_TEXT} are read")
    return data


def _truth(data: Any, where: str) -> bool:
    if not isinstance(data, bool):
        raise _wrong(where, "true or false", data)
    return data


def _integer(data: Any, where: str) -> int:
    if isinstance(data, bool) or not isinstance(data, int) or abs(data) >= MAX_NUMBER:
        raise _wrong(where, "a whole number", data)
    return data


def _number(data: Any, where: str) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float) or abs(data) >= 1e308 or not math.isfinite(data):
        raise _wrong(where, "a number", data)
    return float(data)


def _time(data: Any, where: str) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(_text(data, where))
    except ValueError:
        raise _wrong(where, "a time", data) from None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _object(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise _wrong(where, "an object", data)
    return cast(Mapping[str, Any], data)


def _object_of(read: Reader, data: Any, where: str) -> Mapping[str, Any]:
    return {name: read(value, f"{where}.{name}") for name, value in _object(data, where).items()}


def _anything(data: Any, where: str) -> Any:
    return data


_PLAIN: dict[Any, Reader] = {
    str: _text,
    bool: _truth,
    int: _integer,
    float: _number,
    datetime.datetime: _time,
    Any: _anything,
}
