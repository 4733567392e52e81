"""The web page and its files. Promises: only files of the package's own folder are served, by a plain name; each with
its type, an ETag and a policy that lets no other site's script, style or frame in.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources

from fastapi import APIRouter, Request
from starlette.responses import Response

from harena.api.http.errors import not_found
from harena.api.http.middleware import PAGE_CSP

router = APIRouter(include_in_schema=False)

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
    "webmanifest": "application/manifest+json",
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\.([a-z0-9]+)", re.ASCII)
MAX_NAME = 100
PAGES = (
    "/",
    "/env/{rest:path}",
    "/agent",
    "/submission/{rest:path}",
    "/match/{rest:path}",
    "/tournament/{rest:path}",
    "/submit",
    "/mine",
    "/search",
    "/login",
    "/admin",
    "/seasons/{rest:path}",
)


DATA = ("/v1/", "/api/", "/static/", "/submissions/", "/leaderboard/")
"""Addresses whose errors are JSON for everybody."""


@dataclass(frozen=True, slots=True)
class Asset:
    data: bytes
    media_type: str
    etag: str


def asset(name: str) -> Asset:
    """A file of the folder `web`, by its name: what has a slash, or begins with a dot, is none."""
    known = NAME.fullmatch(name) if len(name) <= MAX_NAME else None
    media_type = TYPES.get(known[2]) if known else None
    file = resources.files("harena.api").joinpath("web", name) if known else None
    if file is None or media_type is None or not file.is_file():
        raise not_found("no such file")
    data = file.read_bytes()
    return Asset(data, media_type, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def _answer(request: Request, name: str, status: int = 200) -> Response:
    found = asset(name)
    headers = {"ETag": found.etag, "Cache-Control": "no-cache", "Content-Security-Policy": PAGE_CSP}
    if status == 200 and found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.data, status, headers, found.media_type)


@router.api_route("/static/{name:path}", methods=["GET", "HEAD"])
def static(request: Request, name: str) -> Response:
    return _answer(request, name)


@router.api_route("/docs", methods=["GET", "HEAD"])
def docs(request: Request) -> Response:
    return _answer(request, "docs.html")


@router.api_route("/favicon.ico", methods=["GET", "HEAD"])
def favicon(request: Request) -> Response:
    return _answer(request, "favicon.svg")


def page(request: Request) -> Response:
    """The same for every address: what it shows, its script asks /v1 for."""
    return _answer(request, "index.html")


def missing(request: Request) -> Response | None:
    """The page that says that there is none, for a browser that follows a link to an unknown address. Programs, and
    the page itself when it calls the API, get the error as JSON."""
    browser = request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")
    if not browser or request.url.path.startswith(DATA):
        return None
    return _answer(request, "index.html", 404)


for path in PAGES:
    router.add_api_route(path, page, methods=["GET", "HEAD"])
