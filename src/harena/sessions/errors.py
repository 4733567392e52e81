"""Errors of sessions, and how they travel."""

from __future__ import annotations

from typing import cast

from harena.errors import HarenaError, SpecError
from harena.node import messages
from harena.node.link import Message


class NotFound(HarenaError, LookupError):
    """There is no such session, pool, snapshot or operation, or it belongs to somebody else."""


class Conflict(HarenaError):
    """The operation id or the name is taken by something else."""


class FileChanged(Conflict):
    """The file is no longer the one that was asked for."""


class OutOfRange(SpecError):
    """The file does not have these bytes."""


OURS = {kind.__name__: kind for kind in (NotFound, Conflict, FileChanged, OutOfRange)}


def error_out(error: BaseException) -> Message:
    return (
        messages.error_out(error)
        if type(error) not in OURS.values()
        else {"kind": type(error).__name__, "text": str(error)}
    )


def error_in(message: object) -> Exception:
    found = cast("Message", message) if isinstance(message, dict) else {}
    kind = found.get("kind")
    if isinstance(kind, str) and kind in OURS:
        return OURS[kind](str(found.get("text", ""))[:1000])
    return messages.error_in(cast("object", message))
