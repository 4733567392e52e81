"""Replays, logs and code as answers. What a stranger wrote is text or a download, never a page of ours: only the
viewer's page is HTML, and its policy lets nothing run but the viewer's own scripts."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from harena.api.answers.links import Links
from harena.arena.db.files import ObjectStore
from harena.match.replay import viewer
from harena.match.replay.replay import Replay

Format = Literal["json", "html", "compact", "link"]
KEEP_BYTES = 64 << 20
MEDIA = ("application/json", "text/html", "application/octet-stream")


class Replays:
    """Cache of rendered replays. A replay never changes, but the game is re-run to show it: the latest are kept."""

    def __init__(self, files: ObjectStore, links: Links) -> None:
        self._files = files
        self._links = links
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def answer(self, request: Request, digest: str, format: Format, name: str) -> Response:
        if format == "link":
            return RedirectResponse(self._links.make(digest, f"{name}.replay"), 307, {"Cache-Control": "no-store"})
        etag = f'"{digest[:32]}-{format}"'
        headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
        if etag in request.headers.get("if-none-match", ""):
            # A browser takes over the headers of a 304: without these the kept page could no longer be framed.
            return Response(status_code=304, headers={**headers, **(_framed() if format == "html" else {})})
        if format == "compact":
            return attachment(self._files.get(digest), "application/octet-stream", f"{name}.replay", headers)
        data = self._rendered(digest, format)
        return page(data, headers) if format == "html" else Response(data, 200, headers, "application/json")

    def _rendered(self, digest: str, format: Format) -> bytes:
        with self._lock:
            kept = self._kept.get((digest, format))
            if kept is not None:
                self._kept.move_to_end((digest, format))
                return kept
        replay = Replay.load(self._files.get(digest))
        made = viewer.html(replay).encode() if format == "html" else msgspec.json.encode(replay.to_json())
        with self._lock:
            if (digest, format) not in self._kept and len(made) <= KEEP_BYTES // 4:
                self._kept[digest, format] = made
                self._size += len(made)
            while self._size > KEEP_BYTES:
                self._size -= len(self._kept.popitem(last=False)[1])
        return made


def page(html: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(html, 200, {**_framed(), **(headers or {})}, "text/html; charset=utf-8")


def _framed() -> dict[str, str]:
    """Our own page may show it in a frame."""
    policy = f"{viewer.policy()}; frame-ancestors 'self'"
    return {"Content-Security-Policy": policy, "X-Frame-Options": "SAMEORIGIN"}


def embeddable(answer: Response) -> Response:
    """The same page, for frames of other sites too. It has nothing to click on but the viewer's own controls."""
    answer.headers["Content-Security-Policy"] = f"{viewer.policy()}; frame-ancestors *"
    del answer.headers["X-Frame-Options"]
    return answer


def text(content: str) -> Response:
    return Response(content.encode("utf-8", "replace"), 200, {"Cache-Control": "no-store"}, "text/plain; charset=utf-8")


def attachment(data: bytes, media_type: str, name: str, headers: dict[str, str] | None = None) -> Response:
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    disposition = {"Content-Disposition": f'attachment; filename="{safe}"', **(headers or {})}
    return Response(data, 200, disposition, media_type)
