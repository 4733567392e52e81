"""Where the arena is, and who asks: argument, environment variable, default, in this order.

Guarantees: the name by which an arena knows a client without a key is made by chance, kept for this user alone
($HARENA_CONFIG or ~/.config/harena, mode 0600) and different for each arena: what one server is told is of no use at
another. A key is only ever sent to the origin it was given for.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import uuid
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from harena.errors import SpecError

DEFAULT_URL = "http://127.0.0.1:8000"
_KEY = re.compile(r"[!-~]{1,512}", re.ASCII)
_CLIENT_ID = re.compile(r"[A-Za-z0-9-]{8,64}", re.ASCII)
_SECRET = re.compile(r"[0-9a-f]{64}", re.ASCII)


def arena_url(given: str | None = None) -> str:
    """Return the arena's URL without a slash at the end."""
    text = (given or os.environ.get("HARENA_URL") or DEFAULT_URL).strip()
    if "://" not in text:
        text = f"http://{text}"
    parts = _split(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise SpecError(f"{text!r} is not the URL of an arena: give one such as {DEFAULT_URL}")
    if parts.username is not None or parts.password is not None:
        raise SpecError("a URL must not have a name or password in it: give a key, with --key or HARENA_KEY")
    return text.rstrip("/")


def origin(url: str) -> str:
    """Scheme, host and port: what a key belongs to."""
    parts = _split(url)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}:{port}"


def is_loopback(url: str) -> bool:
    host = _split(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def api_key(given: str | None = None) -> str | None:
    key = (given or os.environ.get("HARENA_KEY") or "").strip()
    if key and not _KEY.fullmatch(key):
        raise SpecError("a key is one word of letters, digits and signs, such as hrn_…")
    return key or None


def checked_client_id(given: str) -> str:
    if not _CLIENT_ID.fullmatch(given):
        raise SpecError("a client_id is 8 to 64 letters, digits and hyphens: a UUID, for example")
    return given


def folder() -> Path:
    if named := os.environ.get("HARENA_CONFIG"):
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "harena"
    except RuntimeError:
        raise SpecError("this user has no home folder: set HARENA_CONFIG to a folder of yours") from None


def client_id(url: str, *, make: bool) -> str | None:
    """This user's name at this arena; None where there is none yet and none is to be made."""
    path = folder() / "client_id"
    secret = _read(path) or (_made(path) if make else None)
    if secret is None:
        return None
    # One arena, however its own machine is called.
    place = origin(url).replace("//localhost:", "//127.0.0.1:")
    return str(uuid.UUID(bytes=hmac.digest(bytes.fromhex(secret), place.encode(), hashlib.sha256)[:16], version=4))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise SpecError(f"{url!r} is not a URL: {error}") from None
    return parts


def _read(path: Path) -> str | None:
    try:
        with open(
            os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="ascii", errors="replace"
        ) as file:
            text = file.read(100).strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}; remove it, or set HARENA_CONFIG") from None
    if not _SECRET.fullmatch(text):
        raise SpecError(f"{path} is not what harena wrote there; remove it, and a new one is made")
    return text


def _made(path: Path) -> str:
    """Whoever comes first makes it; all others read that."""
    draft = path.with_name(f".client_id.{secrets.token_hex(8)}")
    secret = secrets.token_hex(32)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{secret}\n")
        os.link(draft, path)  # unlike a rename, this leaves the file of another process alone
    except FileExistsError:
        return _read(path) or secret
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written, and without a key it is what makes a submission yours: {error.strerror}; "
            "set HARENA_CONFIG to a folder that can be written, or use a key"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return secret
