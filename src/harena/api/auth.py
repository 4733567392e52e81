"""Who is asking. A key in a header, else a session cookie that stands for a key, else nobody, perhaps with a client id.

Promises: a cookie holds no token, is signed, ends, and dies with its key; what changes something and comes with a
cookie must also show the session's CSRF token; a key that is refused is never treated as if it had not been sent. Who
sent a submission without a key owns it by showing the same client id.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPBearer
from starlette.responses import Response

from harena.access import bearer_token
from harena.api.context import Api, get_api
from harena.api.http.errors import ApiError
from harena.api.http.middleware import SAFE
from harena.arena.db.accounts.keys import KeyRecord
from harena.arena.db.models import MAX_NAME, KeyRefused, NotFound, Scope, ScopeMissing, has_mark, marked, unseen
from harena.arena.db.records import SubmissionRecord

COOKIE = "harena_session"
SESSION_S = 12 * 3600.0
CSRF_HEADER = "x-csrf-token"
CLIENT_HEADER = "x-client-id"
ANONYMOUS = "anonymous"
MAX_COOKIE = 400

# For the OpenAPI document; `principal` reads the headers itself.
SCHEMES = (
    Depends(HTTPBearer(auto_error=False, description="An API key: hrn_…")),
    Depends(APIKeyHeader(name="X-API-Key", auto_error=False)),
    Depends(APIKeyCookie(name=COOKIE, auto_error=False)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    key: KeyRecord | None = None
    client_id: str | None = None
    teams: frozenset[str] = frozenset()
    """Teams that the key's owner is a member of."""
    csrf: str | None = None
    """Token that the page sends back with its requests; set only for sessions with a cookie."""

    @property
    def owner(self) -> str | None:
        return self.key.owner if self.key else None

    @property
    def names(self) -> frozenset[str]:
        """Owners that it may act for: itself and its teams."""
        return frozenset() if self.key is None else self.teams | {self.key.owner}

    def can(self, scope: Scope) -> bool:
        return self.key is not None and self.key.allows(scope)

    def owns(self, submission: SubmissionRecord) -> bool:
        if submission.anonymous:
            known, shown = submission.client_id, self.client_id
            return bool(known and shown) and hmac.compare_digest((known or "").encode(), (shown or "").encode())
        return submission.owner in self.names

    def sees(self, submission: SubmissionRecord) -> bool:
        """Code, logs and reasons: its owner's, and the host's who has to help."""
        return self.can(Scope.HOST) or self.owns(submission)


class Sessions:
    def __init__(self, secret_key: bytes, clock: Callable[[], float]) -> None:
        self._sign = hmac.digest(secret_key, b"harena session", "sha256")
        self._csrf = hmac.digest(secret_key, b"harena csrf", "sha256")
        self._clock = clock

    def cookie(self, key: KeyRecord) -> str:
        """The value: key id, end, something random, and their signature."""
        ends = int(min(self._clock() + SESSION_S, key.expires_at or float("inf")))
        text = f"{key.id}.{ends}.{secrets.token_hex(8)}"
        return f"{text}.{self._mac(self._sign, text)}"

    def key_id(self, cookie: str) -> str | None:
        """Return the key id in a cookie that we created and that has not expired."""
        text, _, mac = cookie.rpartition(".")
        if len(cookie) > MAX_COOKIE or not hmac.compare_digest(mac.encode(), self._mac(self._sign, text).encode()):
            return None
        key_id, ends, _ = text.split(".")
        return key_id if self._clock() < int(ends) else None

    def csrf(self, cookie: str) -> str:
        return self._mac(self._csrf, cookie)

    @staticmethod
    def _mac(key: bytes, text: str) -> str:
        digest = hmac.digest(key, text.encode("utf-8", "replace"), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def principal(request: Request, api: Annotated[Api, Depends(get_api)]) -> Principal:
    found = _from_header(request, api) or _from_cookie(request, api) or Principal(client_id=_client_id(request))
    request.scope["state"]["owner"] = found.owner
    return found


def _from_header(request: Request, api: Api) -> Principal | None:
    token = request.headers.get("x-api-key")
    authorization = request.headers.get("authorization")
    if authorization is not None:
        token = bearer_token(authorization)
        if token is None:
            raise _unauthorized("the Authorization header is of the form: Bearer hrn_…")
    if token is None:
        return None
    key = authenticate(api, token.strip())
    return Principal(key=key, teams=frozenset(api.store.teams.of(key.owner)), client_id=_client_id(request))


def authenticate(api: Api, token: str) -> KeyRecord:
    """Live, whatever its scopes: the routes ask for those."""
    for scope in Scope:
        with contextlib.suppress(ScopeMissing):
            return api.store.keys.authenticate(token, scope)
    raise KeyRefused("the API key is unknown, expired or revoked")  # one without any scope


def _from_cookie(request: Request, api: Api) -> Principal | None:
    cookie = request.cookies.get(COOKIE)
    if not cookie:
        return None
    key = _live_key(api, cookie)
    unsafe, shown = request.method not in SAFE, request.headers.get(CSRF_HEADER)
    if key is None:
        if unsafe and shown is not None:
            raise _unauthorized("the session is over", hint="log in again")
        return None
    csrf = api.sessions.csrf(cookie)
    if unsafe and not hmac.compare_digest(csrf.encode(), (shown or "").encode("utf-8", "replace")):
        raise ApiError(
            403,
            "csrf",
            "the request lacks the session's CSRF token",
            hint="send the value of `csrf` of GET /v1/me as X-CSRF-Token, or use a key in a header",
        )
    teams = frozenset(api.store.teams.of(key.owner))
    return Principal(key=key, teams=teams, csrf=csrf, client_id=_client_id(request))


def _live_key(api: Api, cookie: str) -> KeyRecord | None:
    key_id = api.sessions.key_id(cookie)
    if key_id is None:
        return None
    try:
        key = api.store.keys.get(key_id)
    except NotFound:
        return None
    ended = key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= api.store.clock())
    return None if ended else key


def _client_id(request: Request) -> str | None:
    shown = request.headers.get(CLIENT_HEADER, "").strip()
    return shown if 0 < len(shown) <= MAX_NAME else None


def _unauthorized(detail: str, *, hint: str = "send a key: Authorization: Bearer hrn_…") -> ApiError:
    return ApiError(401, "unauthorized", detail, hint=hint, headers={"WWW-Authenticate": "Bearer"})


# What a route asks for

Anyone = Annotated[Principal, Depends(principal)]


def require(found: Principal, scope: Scope) -> Principal:
    if found.key is None:
        raise _unauthorized(f"this needs a key with the scope {scope.value!r}")
    if not found.can(scope):
        raise ApiError(
            403, "scope_missing", f"the key lacks the scope {scope.value!r}", hint="ask the host for a key that has it"
        )
    return found


def reader(found: Anyone, api: Annotated[Api, Depends(get_api)]) -> Principal:
    return found if api.settings.anonymous_read else require(found, Scope.READ)


def check_scraper(api: Api, request: Request) -> None:
    """Counters tell who plays what, and how much: programs on this machine may read them, others with a key that may
    read, or with the token that the host has set for them."""
    if request.scope["state"].get("loopback") and api.settings.anonymous_read:
        return
    token, shown = api.settings.metrics_token, request.headers.get("authorization", "").encode("utf-8", "replace")
    if not (token and hmac.compare_digest(shown, f"Bearer {token}".encode())):
        require(principal(request, api), Scope.READ)


def keyed(found: Anyone) -> Principal:
    if found.key is None:
        raise _unauthorized("this needs a key")
    return found


def host(request: Request, found: Anyone) -> Principal:
    allowed = require(found, Scope.HOST)
    request.scope["state"]["host"] = f"{allowed.owner}, key {allowed.key.id if allowed.key else ''}"
    return allowed


Reader = Annotated[Principal, Depends(reader)]
Keyed = Annotated[Principal, Depends(keyed)]
Host = Annotated[Principal, Depends(host)]


# Under which name a submission is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    owner: str
    anonymous: bool
    client_id: str | None
    name: str | None = None
    """The member who sends it for a team."""


def sender(
    api: Api, found: Principal, *, user_id: str, client_id: str | None, submission_id: str, loopback: bool
) -> Sender:
    """A key decides the name. Without one: any name that no key has, where the host allows it. People who give neither
    a name nor a client id are told apart by the submission, so that they do not share one quota."""
    shown = client_id or found.client_id
    if found.key is not None:
        require(found, Scope.SUBMIT)
        if user_id in found.teams:
            return Sender(owner=user_id, anonymous=False, client_id=shown, name=found.key.owner)
        if user_id not in ("", ANONYMOUS, found.key.owner):
            raise ApiError(
                403,
                "not_you",
                f"the key is not of {user_id[:80]!r}",
                hint="leave user_id out, or name a team that you are a member of",
            )
        return Sender(owner=found.key.owner, anonymous=False, client_id=shown)
    if not api.settings.anonymous_submit or (api.loopback and not loopback):
        raise _unauthorized("submitting needs a key here", hint="ask the host for one: Authorization: Bearer hrn_…")
    owner = user_id or ANONYMOUS
    if unseen(owner) is not None or owner != owner.strip() or has_mark(owner):
        raise ApiError(
            422,
            "invalid",
            "user_id is a name in printable characters, without a mark such as #0123abcd at its end",
            hint="leave out what cannot be seen",
        )
    if looks(owner) in api.queries.keyed_looks(looks):
        raise _unauthorized(
            f"the name {owner[:80]!r} belongs to the owner of a key", hint="send the key, or another name"
        )
    mark = shown or (submission_id if owner == ANONYMOUS else "")
    return Sender(owner=marked(owner, mark) if mark else owner, anonymous=True, client_id=shown)


def looks(name: str) -> str:
    """Two names with the same looks are one to whoever reads a board."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def set_cookie(response: Response, value: str, *, secure: bool) -> None:
    response.set_cookie(
        COOKIE, value, max_age=int(SESSION_S), path="/", httponly=True, samesite="strict", secure=secure
    )


def clear_cookie(response: Response, *, secure: bool) -> None:
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=secure)


def ascii_id(value: str) -> bool:
    """Ids of ours are short and hexadecimal; what is not can be no row's."""
    return 0 < len(value) <= 32 and value.isascii() and value.isalnum()
