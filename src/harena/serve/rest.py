"""REST of sessions and warm pools. What it does is in `harena.sessions`; the paths are in `routes`.

Every request has an owner, the name of its token, and reaches only what belongs to that owner.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from harena import __version__
from harena.errors import HarenaError, SpecError
from harena.serve.routes import batches, files, models, pools, records, sessions
from harena.serve.routes.context import Context, answer, failure

DESCRIPTION = "Boxes for code that nobody trusts: warm pools, sessions, files. Requests carry `Authorization: Bearer`."
LINE_MODELS = (models.OperationEvent, models.BatchEvent, records.TrajectoryStep)
"""Models of the lines of a stream, which FastAPI does not find by itself."""
REF = "#/components/schemas/{model}"


def create_rest(context: Context) -> FastAPI:
    app = FastAPI(title="Harena boxes", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None)
    app.state.context = context
    for subject in (pools, sessions, files, batches, records):
        app.include_router(subject.router)
    app.add_exception_handler(HarenaError, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _broken)
    _complete(app)
    return app


def _complete(app: FastAPI) -> None:
    """Add to the OpenAPI document what FastAPI does not know: lines of streams, and the token."""
    document = app.openapi()
    schemas: dict[str, Any] = document["components"]["schemas"]
    for model in LINE_MODELS:
        schema = model.model_json_schema(ref_template=REF, mode="serialization")
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]


async def _failed(request: Request, error: Exception) -> Response:
    return failure(error)


async def _broken(request: Request, error: Exception) -> Response:
    """A mistake of ours, which is logged. Its text could name files of the server."""
    return answer({"error": {"kind": "BoxError", "text": "the server failed", "retry": "unknown"}}, 500)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: Any = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return failure(SpecError(f"{where[:200]}: {first['msg'][:200]}"))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "NotFound" if error.status_code == 404 else "SpecError"
    return answer({"error": {"kind": kind, "text": str(error.detail), "retry": "never"}}, error.status_code)
