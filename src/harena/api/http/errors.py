"""One shape for every refusal: {"code", "detail", "hint", "request_id"}. Promises: every error of Harena has a status
and a code; what the platform failed at is logged in full and told in one sentence, without internals.

ApiError                 raised by the routes; carries status, code and hint
└── everything else      is looked up in `KNOWN`, by its class and then by its parents
"""

from __future__ import annotations

import http
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from harena import errors as base
from harena import schema, trace
from harena.arena.db import files, models
from harena.arena.db.integrity import FULL
from harena.arena.submissions import intake
from harena.arena.work import orders
from harena.match import registry
from harena.match.replay import format as replay_format

LOG = logging.getLogger("harena.api")
MAX_DETAIL = 600
"""A detail may quote what a client sent."""


class ApiError(HTTPException):
    """A refusal in the one shape. An HTTPException, because FastAPI lets these through while it reads a body."""

    def __init__(
        self, status: int, code: str, detail: str, *, hint: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, headers)
        self.code = code
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    status: int
    code: str
    hint: str = ""
    headers: Mapping[str, str] | None = None
    told: bool = True
    """Whether the error's own words are for the client."""


INTERNAL = ErrorAnswer(500, "internal", "tell the host, with the request id", told=False)
KNOWN: dict[type[Exception], ErrorAnswer] = {
    models.NotFound: ErrorAnswer(404, "not_found", "check the id, or look at the lists under /v1"),
    models.Conflict: ErrorAnswer(409, "conflict", "read it again, then decide"),
    models.IllegalTransition: ErrorAnswer(409, "illegal_state", "read its state again"),
    models.QuotaExceeded: ErrorAnswer(429, "quota_exceeded", "GET /v1/me shows what is left", {"Retry-After": "60"}),
    models.ScopeMissing: ErrorAnswer(403, "scope_missing", "ask the host for a key that has it"),
    models.KeyRefused: ErrorAnswer(401, "key_refused", "ask the host for a key", {"WWW-Authenticate": "Bearer"}),
    models.LeaseLost: ErrorAnswer(409, "conflict", "read it again, then decide"),
    models.Busy: ErrorAnswer(503, "busy", "try again in a minute", {"Retry-After": "60"}),
    models.StorageFull: ErrorAnswer(507, "storage_full", "tell the host, and try again later", {"Retry-After": "300"}),
    models.ReadOnly: ErrorAnswer(503, "read_only", "tell the host, and try again later", {"Retry-After": "60"}),
    files.FilesUnavailable: ErrorAnswer(503, "unavailable", "try again in a few seconds", {"Retry-After": "5"}),
    models.StoreError: ErrorAnswer(503, "unavailable", "try again in a few seconds", {"Retry-After": "5"}, told=False),
    orders.BadWorkerAnswer: ErrorAnswer(422, "bad_answer", "update the worker: it must be of the server's version"),
    intake.IntakeError: ErrorAnswer(422, "upload_refused", "change what the sentence names and send it again"),
    files.FileMissing: ErrorAnswer(404, "not_found", "it is no longer kept"),
    files.FileTooLarge: ErrorAnswer(413, "too_large", "send less"),
    files.FileDamaged: INTERNAL,
    registry.UnknownGame: ErrorAnswer(422, "unknown_environment", "`harena envs` lists what is installed"),
    replay_format.ReplayError: INTERNAL,
    base.SpecError: ErrorAnswer(422, "invalid", "see /docs for what is accepted"),
    base.IsolationUnavailable: ErrorAnswer(503, "unavailable", "the host runs `harena doctor`", told=False),
    base.BackendUnavailable: ErrorAnswer(503, "unavailable", "tell the host", told=False),
    base.BoxError: ErrorAnswer(503, "unavailable", "try again in a few seconds", {"Retry-After": "5"}, told=False),
    base.WireError: INTERNAL,
    base.BoxFileError: INTERNAL,
    base.HarenaError: INTERNAL,
}
"""A subclass answers as its nearest parent here."""

FAILED = "something went wrong here; it has been logged"
_DETAILS = {404: "there is nothing at this address", 405: "this address does not take that method"}
_HINTS = {
    401: "send a key: Authorization: Bearer hrn_…",
    404: "see /docs for the paths there are",
    405: "see /docs for the methods of this path",
}


def not_found(what: str) -> ApiError:
    return ApiError(404, "not_found", what, hint="check the id, or look at the lists under /v1")


def answer_of(error: BaseException) -> ErrorAnswer:
    for parent in type(error).__mro__:
        if parent in KNOWN:
            return KNOWN[parent]
    return INTERNAL


def body(code: str, detail: str, hint: str, request_id: str) -> bytes:
    place = trace.current()
    return msgspec.json.encode(
        schema.Problem(
            code=code,
            detail=_clean(detail),
            hint=_clean(hint),
            request_id=request_id,
            trace_id=place.trace_id if place else "",
        )
    )


def response(error: Exception, request_id: str) -> Response:
    """Build the response for any exception. Errors that the client did not cause are logged here."""
    if isinstance(error, RequestValidationError):
        hint = "see /docs for what is accepted"
        return _response(422, body("invalid", _sentence(error.errors()), hint, request_id))
    if isinstance(error, ApiError):
        return _response(error.status_code, body(error.code, error.detail, error.hint, request_id), error.headers)
    if isinstance(error, HTTPException):
        status = http.HTTPStatus(error.status_code)
        code = status.phrase.lower().replace(" ", "_").replace("-", "_").replace("'", "")
        return _response(
            status,
            body(code, _DETAILS.get(status, str(error.detail)), _HINTS.get(status, ""), request_id),
            error.headers,
        )
    if isinstance(error, OSError) and error.errno in FULL:
        error = models.StorageFull("no space is left on the server's disk")
    answer = answer_of(error)
    detail = str(error)
    if isinstance(error, models.StorageFull | models.ReadOnly | files.FilesUnavailable):
        LOG.error("request %s failed: %s", request_id, detail)
    elif not answer.told:
        # The trace of a database that is away tells its host nothing.
        shown = None if isinstance(error, models.StoreError) else error
        LOG.error("request %s failed: %s", request_id, detail, exc_info=shown)
        detail = FAILED
    return _response(answer.status, body(answer.code, detail, answer.hint, request_id), answer.headers)


def _response(status: int, content: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, dict(headers or {}), "application/json")


def _sentence(found: Sequence[Any]) -> str:
    """The first of what a request's schema refused. What was sent is not repeated."""
    first = cast("dict[str, Any]", found[0]) if found else {}
    where = ".".join(str(part) for part in first.get("loc", ()))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{where}: {first.get('msg', 'not valid')}{more}"


def _clean(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_DETAIL else text[: MAX_DETAIL - 1] + "…"


def install(app: FastAPI, *, missing_page: Callable[[Request], Response | None] = lambda _: None) -> None:
    """The middleware answers for what no handler below knows. `missing_page` may answer a 404 with a page."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 404:
            page = missing_page(request)
            if page is not None:
                return page
        return response(error, request_id(request))

    for kind in (HTTPException, RequestValidationError, base.HarenaError):
        app.add_exception_handler(kind, handle)


def request_id(request: Request) -> str:
    return request.scope.get("state", {}).get("request_id", "")
