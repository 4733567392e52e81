"""Multipart uploads, read with caps. Promises: hostile names are only carried, never used as paths; a form that is cut
short, has too many parts or too large fields is refused in words, and leaves nothing behind: parts wait in unnamed
temporary files that are gone when they are closed.
"""

from __future__ import annotations

import contextlib
import copy
import json
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from harena.api.http.errors import ApiError
from harena.arena.db.models import MAX_NAME
from harena.arena.submissions.intake import Upload
from harena.images.reference import MAX_REFERENCE

MAX_FILES = 1000
MAX_FIELDS = 50
MAX_FIELD_BYTES = 4096
FILE_FIELDS = ("file", "files", "agent_file")
KINDS = ("agent", "script")
JSON_FIELDS = frozenset({"user_id", "algorithm", "env_id", "agent_file", "code", "client_id", "kind"})
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
                        "docker_image": {
                            "type": "string",
                            "maxLength": MAX_REFERENCE,
                            "description": "Or the name of an image, where the host allows its repository.",
                        },
                        "main_file": {**_TEXT, "description": "Which of several files is started."},
                        "env_id": {**_TEXT, "default": DEFAULT_ENV},
                        "algorithm": {**_TEXT, "default": DEFAULT_ALGORITHM},
                        "user_id": {**_TEXT, "default": "anonymous", "description": "With a key: the key's owner."},
                        "client_id": {**_TEXT, "description": "Without a key: who shows it owns the submission."},
                        "kind": {
                            "type": "string",
                            "enum": list(KINDS),
                            "description": "Whether it runs as an agent or as a script. Without it, the code decides.",
                        },
                    },
                }
            }
        },
    }
}
"""Describes the upload in the OpenAPI document."""


def _contract_body() -> dict[str, Any]:
    """The contract's: a client id is the id of the submission, and code may come as JSON."""
    form = copy.deepcopy(BODY)
    content = form["requestBody"]["content"]
    client_id = {
        "type": "string",
        "format": "uuid",
        "description": "Becomes the id of the submission. With or without hyphens.",
    }
    fields = content["multipart/form-data"]["schema"]["properties"]
    fields["client_id"] = client_id
    fields["agent_file"] = {**fields["file"], "description": "The older name of `file`."}
    shared = {name: fields[name] for name in ("user_id", "algorithm", "env_id", "client_id", "kind")}
    content["application/json"] = {
        "schema": {
            "type": "object",
            "required": ["code"],
            "additionalProperties": False,
            "properties": {
                **shared,
                "agent_file": {**_TEXT, "description": "Name of the file, such as dqn.py."},
                "code": {"type": "string", "description": "The Python source."},
            },
        }
    }
    return form


CONTRACT_BODY = _contract_body()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadForm:
    parts: tuple[UploadFile, ...]
    env_id: str
    algorithm: str
    main_file: str
    user_id: str
    client_id: str | None
    docker_image: str = ""
    kind: str = ""
    code: Upload | None = None
    """What came as JSON, in place of parts."""

    def uploads(self) -> list[Upload]:
        """Reads all of it into memory: for a thread."""
        if self.code is not None:
            return [self.code]
        return [Upload(name=part.filename or "", data=part.file.read()) for part in self.parts]


class _Parser(MultiPartParser):
    """Knows whether the form came to its end: the parser itself takes what there is for all there was."""

    complete = False

    def on_end(self) -> None:
        self.complete = True


@contextlib.asynccontextmanager
async def form(request: Request, *, contract: bool = False) -> AsyncGenerator[UploadForm]:
    """The upload, for as long as the block lasts. `contract`: code may come as JSON, too."""
    if contract and request.headers.get("content-type", "").lower().startswith("application/json"):
        yield _json_form(await request.body())
        return
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
    image = texts.get("docker_image", "").strip()
    if not parts and not image:
        raise _bad("it has no file", hint="curl -F file=@agent.py …")
    if parts and image:
        raise _bad("it has files and a docker_image: send one of them")
    if len(image) > MAX_REFERENCE:
        raise _bad(f"docker_image is longer than {MAX_REFERENCE} characters")
    return UploadForm(parts=tuple(parts), main_file=_name(texts, "main_file"), docker_image=image, **_described(texts))


def _json_form(body: bytes) -> UploadForm:
    try:
        given: object = json.loads(body)
    except (ValueError, RecursionError):
        raise _bad("the body is not JSON") from None
    if not isinstance(given, dict):
        raise _bad("the body is not a JSON object")
    fields = cast("dict[str, object]", given)
    unknown = sorted(fields.keys() - JSON_FIELDS)
    if unknown:
        raise _bad(f"unknown field {unknown[0][:40]!r}; known are {', '.join(sorted(JSON_FIELDS))}")
    texts: dict[str, str] = {}
    for name, value in fields.items():
        if value is not None and not isinstance(value, str):
            raise _bad(f"{name} is not a text")
        texts[name] = value or ""
    code = texts.pop("code", "")
    if not code:
        raise _bad("it has no code", hint='send the source as "code", or a file as multipart/form-data')
    name = _name(texts, "agent_file") or "agent.py"
    source = Upload(name=name, data=code.encode("utf-8", "replace"))
    return UploadForm(parts=(), main_file="", code=source, **_described(texts))


def _described(texts: dict[str, str]) -> dict[str, Any]:
    """Fields that a form and JSON have in common."""
    kind = texts.get("kind", "").strip()
    if kind not in ("", *KINDS):
        raise _bad(f"kind is {' or '.join(KINDS)}, not {kind[:40]!r}")
    return {
        "env_id": _name(texts, "env_id") or DEFAULT_ENV,
        "algorithm": _name(texts, "algorithm") or DEFAULT_ALGORITHM,
        "user_id": _name(texts, "user_id").strip(),
        "client_id": _name(texts, "client_id") or None,
        "kind": kind,
    }


def _name(texts: dict[str, str], field: str) -> str:
    if len(texts.get(field, "")) > MAX_NAME:
        raise _bad(f"{field} is longer than {MAX_NAME} characters")
    return texts.get(field, "")


def contract_id(client_id: str) -> str:
    """The id of the submission that a client of the contract names: a UUID, as 32 hexadecimal digits."""
    digits = client_id.replace("-", "").lower()
    try:
        parsed = uuid.UUID(digits) if len(digits) == 32 else None
    except ValueError:
        parsed = None
    if parsed is None or client_id.lower() not in (parsed.hex, str(parsed)):
        raise ApiError(
            400, "bad_client_id", "client_id is not a UUID", hint="send a new one, such as uuid.uuid4(), or none"
        )
    return parsed.hex


def _bad(why: str, *, hint: str = "see /docs for the fields of an upload") -> ApiError:
    return ApiError(422, "upload_refused", f"the upload cannot be read: {why}", hint=hint)
