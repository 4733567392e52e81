"""The place of the arena's files, from a URL and the environment.

    /srv/harena/files                                  a folder
    s3://bucket/prefix                                 Amazon S3
    s3://bucket/prefix?endpoint=https://minio:9000     any server that speaks S3
    SUPABASE_URL, SUPABASE_BUCKET and keys             Supabase Storage, through its S3 endpoint

Options of a URL: `endpoint`, `region`, and `public`, the address of the same server for clients, to which large
downloads are sent with a signature. Credentials come from the environment alone: a URL ends up in logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from harena.arena.db.files import FileStore, ObjectStore
from harena.arena.variables import Environ
from harena.errors import BackendUnavailable, SpecError

STORAGE = "HARENA_STORAGE_URL"
DEFAULT_REGION = "us-east-1"
OPTIONS = ("endpoint", "region", "public")
SUPABASE_PATH = "/storage/v1/s3"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9._/-]{0,200}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    name: str
    prefix: str = ""
    """Empty, or ends with a slash."""
    endpoint: str = ""
    """Empty: Amazon's, by the region."""
    public: str = ""
    """Address of the server for clients; empty: they are not sent there."""
    region: str = DEFAULT_REGION
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def open_files(location: Path | Bucket) -> ObjectStore:
    if isinstance(location, Path):
        return FileStore(location)
    try:
        from harena.arena.storage.s3 import S3Store
    except ModuleNotFoundError as error:
        raise BackendUnavailable(f"files in a bucket need the extra s3: pip install 'harena[s3]' ({error})") from None
    return S3Store(location)


def location(environ: Mapping[str, str] | None, default: Path) -> Path | Bucket:
    """Raises SpecError for what names no place, and for a bucket without credentials."""
    given = Environ(environ)
    url = given.text(STORAGE)
    if not url:
        return _supabase(given) if given.text("SUPABASE_URL") else default
    if "://" not in url:
        return Path(url).expanduser().absolute()
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return Path(unquote(parts.path)).absolute()
    if parts.scheme != "s3":
        raise SpecError(f"{STORAGE}: a folder, or s3://BUCKET/PREFIX?endpoint=https://…")
    if "@" in parts.netloc:
        raise SpecError(f"{STORAGE} must not hold credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise SpecError(f"{STORAGE}: {unknown[0]!r:.40} is no option; there are {', '.join(OPTIONS)}")
    endpoint = _address(options.get("endpoint", ""), "endpoint")
    access, secret = given.text("AWS_ACCESS_KEY_ID"), given.text("AWS_SECRET_ACCESS_KEY")
    if not access or not secret:
        raise SpecError(f"{STORAGE} names a bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    region = options.get("region") or given.text("AWS_REGION") or DEFAULT_REGION
    public = _address(options.get("public", ""), "public")
    if not public and not endpoint:
        public = f"https://s3.{region}.amazonaws.com"
    return Bucket(
        name=_bucket(parts.netloc, STORAGE),
        prefix=_prefix(parts.path),
        endpoint=endpoint,
        public=public,
        region=region,
        access_key=access,
        secret_key=secret,
        session_token=given.text("AWS_SESSION_TOKEN"),
    )


def _supabase(given: Environ) -> Bucket:
    """With S3 access keys, or with the service key as a session token. A signed URL would carry that token, which
    opens the whole project: clients are sent to Supabase only where access keys sign."""
    url = _address(given.text("SUPABASE_URL"), "SUPABASE_URL").rstrip("/")
    endpoint = url if url.endswith(SUPABASE_PATH) else url + SUPABASE_PATH
    name = _bucket(given.text("SUPABASE_BUCKET"), "SUPABASE_BUCKET")
    region = given.text("AWS_REGION") or DEFAULT_REGION
    access, secret = given.text("AWS_ACCESS_KEY_ID"), given.text("AWS_SECRET_ACCESS_KEY")
    if access and secret:
        return Bucket(
            name=name, endpoint=endpoint, public=endpoint, region=region, access_key=access, secret_key=secret
        )
    service, anonymous = given.text("SUPABASE_SERVICE_KEY"), given.text("SUPABASE_ANON_KEY")
    if not service or not anonymous:
        raise SpecError(
            "SUPABASE_URL needs SUPABASE_SERVICE_KEY and SUPABASE_ANON_KEY, "
            "or S3 access keys of the project in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    project = (urlsplit(url).hostname or "").split(".")[0]
    return Bucket(
        name=name,
        endpoint=endpoint,
        region=region,
        access_key=project,
        secret_key=anonymous,
        session_token=service,
    )


def _address(text: str, what: str) -> str:
    if not text:
        return ""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or "@" in parts.netloc:
        raise SpecError(f"{what} is an address such as https://storage.example, without credentials")
    return text


def _bucket(text: str, what: str) -> str:
    if not _BUCKET.fullmatch(text):
        raise SpecError(f"{what}: {text!r:.80} is no name of a bucket")
    return text


def _prefix(path: str) -> str:
    prefix = path.strip("/")
    if not _PREFIX.fullmatch(prefix) or ".." in prefix.split("/"):
        raise SpecError(f"{STORAGE}: the prefix has letters, digits, dots, dashes, underscores and slashes")
    return f"{prefix}/" if prefix else ""
