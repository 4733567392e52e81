"""Refuses query parameters that a path does not know: a misspelled filter must not answer as if there were none.

The paths of the older contract are left out: their clients may send parameters of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from harena.api.http.errors import ApiError

_known: dict[Callable[..., Any], tuple[str, ...]] = {}
"""Names of the query parameters, by the function that answers."""


async def _only_known(request: Request) -> None:
    query = request.scope.get("query_string", b"")
    if not query:
        return
    known = _names(request.scope["route"])
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ApiError(422, "unknown_parameter", f"no query parameter {name!r:.80} here: {takes}", hint="see /docs")


def _names(route: APIRoute) -> tuple[str, ...]:
    if route.endpoint not in _known:
        _known[route.endpoint] = tuple(dict.fromkeys(_of(route.dependant)))
    return _known[route.endpoint]


def _of(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _of(inner)


ONLY_KNOWN = Depends(_only_known)
