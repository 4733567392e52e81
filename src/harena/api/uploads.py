"""Multipart uploads, read with caps. Promises: hostile names are only carried, never used as paths; a form that is cut
short, has too many parts or too large fields is refused in words, and leaves nothing behind: parts wait in unnamed
temporary files that are gone when they are closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from harena.api.errors import ApiError
from harena.arena.db.models import MAX_NAME
from harena.arena.submissions.intake import Upload

MAX_FILES = 1000
MAX_FIELDS = 50
MAX_FIELD_BYTES = 4096
FILE_FIELDS = ("file", "files")
DEFAULT_ENV = "CartPole-v1"
DEFAULT_ALGORITHM = "Custom"

_TEXT = {"type": "string", "maxLength": MAX_NAME}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary", "description": "A .py file or a zip."},
                        "files": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "maxItems": MAX_FILES,
                            "description": "Or several files.",
                        },
                        "main_file": {**_TEXT, "description": "Which of several files is started."},
                        "env_id": {**_TEXT, "default": DEFAULT_ENV},
                        "algorithm": {**_TEXT, "default": DEFAULT_ALGORITHM},
                        "user_id": {**_TEXT, "default": "anonymous", "description": "With a key: the key's owner."},
                        "client_id": {**_TEXT, "description": "Without a key: who shows it owns the submission."},
                    },
                }
            }
        },
    }
}
"""For the OpenAPI document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadForm:
    parts: tuple[UploadFile, ...]
    env_id: str
    algorithm: str
    main_file: str
    user_id: str
    client_id: str | None

    def uploads(self) -> list[Upload]:
        """Reads all of it into memory: for a thread."""
        return [Upload(name=part.filename or "", data=part.file.read()) for part in self.parts]


class _Parser(MultiPartParser):
    """Knows whether the form came to its end: the parser itself takes what there is for all there was."""

    complete = False

    def on_end(self) -> None:
        self.complete = True


@contextlib.asynccontextmanager
async def form(request: Request) -> AsyncGenerator[UploadForm]:
    """The upload, for as long as the block lasts."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(
            415, "not_multipart", "an upload is sent as multipart/form-data", hint="curl -F file=@agent.py …"
        )
    parser = _Parser(
        request.headers, request.stream(), max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
    )
    try:
        data = await parser.parse()
    except MultiPartException as error:
        raise _bad(error.message) from None
    except (UnicodeError, ValueError) as error:  # a charset that is none
        raise _bad("it cannot be read as text") from error
    try:
        if not parser.complete:
            raise _bad("it ends before its last boundary")
        yield _form(data)
    finally:
        for part in parser.items:
            if isinstance(part[1], UploadFile):
                await part[1].close()
        _close_rest(parser)


def _close_rest(parser: MultiPartParser) -> None:
    """Parts that had begun when the form was cut short."""
    for file in cast("list[Any]", parser._files_to_close_on_error):  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        file.close()


def _form(data: FormData) -> UploadForm:
    parts: list[UploadFile] = []
    texts: dict[str, str] = {}
    for name, value in data.multi_items():
        if isinstance(value, str):
            texts[name] = value
        elif name not in FILE_FIELDS:
            raise _bad(f"a file came as {name[:40]!r}: files are called `file` or `files`")
        elif value.filename or value.size:
            parts.append(value)
    if not parts:
        raise _bad("it has no file", hint="curl -F file=@agent.py …")
    for name in ("env_id", "algorithm", "main_file", "user_id", "client_id"):
        if len(texts.get(name, "")) > MAX_NAME:
            raise _bad(f"{name} is longer than {MAX_NAME} characters")
    return UploadForm(
        parts=tuple(parts),
        env_id=texts.get("env_id") or DEFAULT_ENV,
        algorithm=texts.get("algorithm") or DEFAULT_ALGORITHM,
        main_file=texts.get("main_file", ""),
        user_id=texts.get("user_id", "").strip(),
        client_id=texts.get("client_id") or None,
    )


def _bad(why: str, *, hint: str = "see /docs for the fields of an upload") -> ApiError:
    return ApiError(422, "upload_refused", f"the upload cannot be read: {why}", hint=hint)
