"""Paths of files of a session."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi import Path as PathPart
from starlette.responses import Response

from harena.errors import SpecError
from harena.serve.routes import models
from harena.serve.routes.context import Context, answer, failure, path_options
from harena.sessions.errors import FileChanged, OutOfRange
from harena.sessions.transfers import DIGEST, Piece, read_file

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["files"])
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
PIECE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")
RANGE = re.compile(r"bytes=([0-9]{1,15})-([0-9]{0,15})")
UPLOAD = "^[A-Za-z0-9_-]{1,64}$"
Path = Annotated[str, Query(max_length=4000, description="Relative to the workspace, or absolute.")]
UploadId = Annotated[str, PathPart(pattern=UPLOAD)]
UploadQuery = Annotated[str | None, Query(pattern=UPLOAD, description="Chosen by the client, another for each file.")]
Sha256 = Annotated[str | None, Header(alias=DIGEST, description="Of the whole file, also with a piece.")]
ContentRange = Annotated[str | None, Header(alias="Content-Range", description="`bytes 0-4194303/9000000`: a piece.")]
Range = Annotated[str | None, Header(alias="Range", description="`bytes=N-` or `bytes=N-M`.")]
IfMatch = Annotated[str | None, Header(alias="If-Match", description="The ETag of an earlier answer.")]


@router.put(
    "/files",
    **path_options("writeFile", models.WriteAnswer, 200, 409),
    openapi_extra={"requestBody": {"content": BYTES, "required": True}},
)
async def write_file(
    request: Request,
    session_id: str,
    path: Path,
    upload: UploadQuery = None,
    sha256: Sha256 = None,
    content_range: ContentRange = None,
) -> Response:
    """Replace a file in one step. Nothing changes if the body does not have the digest of `X-Content-SHA256`. With
    `upload` and `Content-Range` the body is a piece, sent in order; the file is replaced when the last one is here. A
    piece may be sent again."""
    context = Context.of(request)
    session = context.session(request, session_id)
    content = await request.body()
    if upload is None and content_range is None:
        digest = await context.run(request, lambda: session.write(path, content, sha256))
        return answer({"sha256": digest, "received": len(content), "size": len(content)})
    found = PIECE.fullmatch(content_range or "")
    if upload is None or found is None or sha256 is None:
        raise SpecError(f"a piece needs ?upload=ID, Content-Range: bytes FIRST-LAST/SIZE, and {DIGEST}")
    first, last, size = map(int, found.groups())
    if len(content) != last - first + 1:
        raise SpecError(f"Content-Range: {content_range}, but the body has {len(content)} bytes")
    piece = Piece(path, sha256.lower(), size, first, content)
    return answer((await context.run(request, lambda: session.uploads.put(session, upload, piece))).view())


@router.get("/uploads/{upload_id}", **path_options("getUpload", models.WriteAnswer))
async def get_upload(request: Request, session_id: str, upload_id: UploadId) -> Response:
    """Return how much of an upload is here, and so where to continue."""
    return answer(Context.of(request).session(request, session_id).uploads.find(upload_id).view())


@router.delete("/uploads/{upload_id}", **path_options("deleteUpload", models.Empty))
async def delete_upload(request: Request, session_id: str, upload_id: UploadId) -> Response:
    """Forget an upload that will not be finished."""
    context = Context.of(request)
    session = context.session(request, session_id)
    await context.end(request, lambda: session.uploads.drop(session, upload_id))
    return answer({})


@router.get(
    "/files",
    **path_options("readFile", None, 200, 409, 412, 416, content=BYTES),
    openapi_extra={"responses": {"206": {"description": "The bytes that Range names.", "content": BYTES}}},
)
async def read_bytes(
    request: Request, session_id: str, path: Path, wanted: Range = None, if_match: IfMatch = None
) -> Response:
    """Return the bytes of a file, or a range of them. `X-Content-SHA256` and `ETag` are the digest of the whole."""
    context = Context.of(request)
    session = context.session(request, session_id)

    def read() -> Response:
        data = read_file(session, path)
        return _file_answer(path, data, wanted, if_match)

    return await context.run(request, read)


def _file_answer(path: str, data: bytes, wanted: str | None, if_match: str | None) -> Response:
    digest = hashlib.sha256(data).hexdigest()
    headers = {DIGEST: digest, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
    if if_match is not None and not {"*", headers["ETag"]} & {tag.strip() for tag in if_match.split(",")}:
        raise FileChanged(
            f"{path[:200]}: the file has changed; it has the SHA-256 {digest} now; read it from its start"
        )
    if wanted is None:
        return Response(data, media_type="application/octet-stream", headers=headers)
    found = RANGE.fullmatch(wanted)
    first, last = (int(found[1]), int(found[2] or len(data))) if found else (0, -1)
    if last < first or first >= len(data):
        text = f"{path[:200]}: Range {wanted[:80]!r}: give bytes=N- or bytes=N-M within its {len(data)} bytes"
        refusal = failure(OutOfRange(text))
        refusal.headers["Content-Range"] = f"bytes */{len(data)}"
        return refusal
    last = min(last, len(data) - 1)
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(data[first : last + 1], 206, headers, "application/octet-stream")
