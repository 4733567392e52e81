"""OpenAPI models of the answers in `harena.schema`, made from its classes: types, docstrings and fields."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import functools
import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema, create_model

from harena import schema

_TIME = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


def answers(
    kind: Any = None, *, status: int = 200, text: str = "What was asked for.", media: Iterable[str] = ()
) -> dict[int | str, dict[str, Any]]:
    """What FastAPI documents a route with: its answer, a class of the schema or other media, and the one shape of
    refusals."""
    good: dict[str, Any] = {"description": text}
    if kind is not None:
        good["model"] = _as_model(kind)
    content: dict[str, Any] = {kind: {"schema": _media_schema(kind)} for kind in media}
    if content:
        good["content"] = content
    problem = {"model": model(schema.Problem), "description": "Refused: the detail says why, the hint what to do."}
    return {status: good, "4XX": problem}


def _media_schema(media: str) -> dict[str, Any]:
    """So that generated clients know what to do with it."""
    if media == "application/json":
        return {}
    return {"type": "string"} if media.startswith("text/") else {"type": "string", "format": "binary"}


@functools.cache
def listed(kind: type[Any], name: str) -> type[BaseModel]:
    """An object with one list, under this name."""
    fields: dict[str, Any] = {name: (list[model(kind)], ...)}
    return create_model(f"{kind.__name__}List", **fields)


@functools.cache
def model(kind: type[Any]) -> type[BaseModel]:
    """Every field is required: defaults are for clients. Only those that may be left out are not."""
    hints, docs = typing.get_type_hints(kind), _docstrings()
    fields: dict[str, Any] = {}
    for part in dataclasses.fields(kind):
        found = _as_model(hints[part.name])
        lines = (docs.get(f"{base.__name__}.{part.name}") for base in kind.__mro__)
        more: dict[str, Any] = {"description": next(filter(None, lines), None)}
        if schema.is_optional(part):
            found = typing.get_args(found)[0]
            more["default_factory"] = lambda: None
        fields[part.name] = (found, Field(**more))
    return create_model(kind.__name__, __doc__=docs.get(kind.__name__), **fields)


def _as_model(hint: Any) -> Any:
    """The same type, as it is in JSON."""
    parts = tuple(map(_as_model, typing.get_args(hint)))
    if isinstance(hint, types.UnionType):
        return functools.reduce(lambda one, other: one | other, parts)
    if typing.get_origin(hint) in (tuple, list):
        return list[parts[0]]
    if typing.get_origin(hint) is Mapping:
        return dict[parts[0], parts[1]]
    if hint is datetime.datetime:
        return _TIME
    return model(hint) if dataclasses.is_dataclass(hint) else hint


@functools.cache
def _docstrings() -> dict[str, str]:
    """Read the docstrings of the schema's classes and fields. The string below a field describes that field."""
    found: dict[str, str] = {}
    for kind in ast.parse(inspect.getsource(schema)).body:
        if isinstance(kind, ast.ClassDef):
            found[kind.name] = ast.get_docstring(kind) or ""
            for field, below in zip(kind.body, kind.body[1:], strict=False):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[f"{kind.name}.{name}"] = text
                    case _:
                        pass
    return {name: text for name, text in found.items() if text}
