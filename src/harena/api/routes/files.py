"""Downloads by signed links, which `format=link` of a replay redirects to."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from harena.api.answers import replays
from harena.api.answers.openapi import answers
from harena.api.context import ApiOf

router = APIRouter(prefix="/v1", tags=["files"])


@router.get(
    "/files/{digest}",
    responses=answers(text="The file.", media=["application/octet-stream"]),
    summary="A file by a signed link; ask for one with `format=link` of a replay",
)
def download(
    api: ApiOf,
    digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")],
    name: Annotated[str, Query(max_length=200)],
    until: Annotated[int, Query(ge=0, le=1 << 40)],
    signature: Annotated[str, Query(max_length=64)],
) -> Response:
    api.links.check(digest, name, until, signature)
    headers = {"Cache-Control": "private, max-age=300"}
    return replays.attachment(api.arena.files.get(digest), "application/octet-stream", name, headers)
