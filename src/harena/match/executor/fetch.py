"""Fetches an agent from its code_url. Guarantees: only from hosts that the config allows, never more than the cap,
never past the deadline, and never from an address of this machine or its network that the operator has not named.

A client chooses the URL, so a stranger could try to make the server contact hosts that only the server can reach. Every
hop is checked by name, then resolved, then all its addresses are checked, and the connection goes to a checked address:
a name that resolves differently the second time gains nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import http.client
import ipaddress
import os
import re
import socket
import ssl
import stat
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harena.errors import HarenaError
from harena.match import variables
from harena.match.executor import config

CHUNK = 1 << 16
MAX_URL = 2048
MAX_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
PORTS = {"https": 443, "http": 80}
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")

Resolver = Callable[[str, int], list[str]]


class FetchRefused(HarenaError):
    """The URL is malformed or not allowed here; names the setting that would allow it. Nothing was sent."""


class FetchFailed(HarenaError):
    """The URL is allowed, but could not be fetched: not found, too large, too slow, connection lost."""


@dataclass(frozen=True, slots=True)
class _Target:
    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        """The URL without the query, which may contain a signature."""
        return f"{self.scheme}://{self.netloc}{self.path.partition('?')[0]}"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def system_resolver(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Fetcher:
    def __init__(
        self,
        settings: config.Fetch,
        *,
        resolve: Resolver = system_resolver,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._resolve = resolve
        self._environ = environ
        self._tls = ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)

    def _variable(self, name: str) -> str | None:
        return variables.text(name, self._environ)

    def check(self, url: str) -> None:
        """Raise FetchRefused for URLs that `fetch` would refuse before it sends anything."""
        scheme = self._scheme(url)
        if scheme == "file":
            self._file_parts(url)
        elif scheme == "s3":
            self._s3_target(url)
        else:
            self._web_target(url)

    def fetch(self, url: str, *, cancelled: Callable[[], bool] = lambda: False) -> bytes:
        scheme = self._scheme(url)
        if scheme == "file":
            return self._read_file(url)
        if scheme == "s3":
            target = self._s3_target(url)
            return self._get(target, cancelled, private=True, headers=self._s3_headers(target))
        return self._get(self._web_target(url), cancelled)

    def _scheme(self, url: str) -> str:
        if len(url) > MAX_URL:
            raise FetchRefused(f"a URL of {len(url)} characters; at most {MAX_URL}")
        if _is_path(url):
            return "file"
        if not url.isascii() or any(ord(char) <= 32 or char in '\\"<>^`{|}\x7f' for char in url):
            raise FetchRefused("a URL with spaces or other characters that must be percent-encoded")
        scheme = url.partition(":")[0].lower()
        if scheme not in ("https", "http", "s3", "file"):
            raise FetchRefused(f"cannot fetch {scheme[:20]!r}: use https, s3 or file")
        return scheme

    # ---- https, http ----

    def _web_target(self, url: str) -> _Target:
        target = parse(url)
        settings = self._settings
        if target.scheme == "http" and not settings.allow_http:
            raise FetchRefused("http is not allowed: use https, or set fetch.allow_http in the executor's config")
        if not settings.allow_hosts:
            raise FetchRefused("fetching is off: list the hosts in fetch.allow_hosts of the executor's config")
        if not _listed(target, settings.allow_hosts):
            raise FetchRefused(f"{target.netloc} is not in fetch.allow_hosts of the executor's config")
        return target

    def _get(
        self,
        target: _Target,
        cancelled: Callable[[], bool],
        *,
        private: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        ends_at = time.monotonic() + self._settings.timeout_sec
        for _ in range(MAX_REDIRECTS + 1):
            addresses = self._addresses(target, private or _listed(target, self._settings.private_hosts))
            with self._answer(target, addresses, headers or {}, ends_at) as answer:
                if answer.status not in REDIRECTS:
                    return self._body(target, answer, ends_at, cancelled)
                location = answer.getheader("Location", "")
            if headers is not None:
                raise FetchFailed(f"{target} redirects, which is not followed for s3: check fetch.s3.endpoint")
            target = self._redirected(target, location)
        raise FetchFailed(f"more than {MAX_REDIRECTS} redirects, the last to {target}")

    def _redirected(self, target: _Target, location: str) -> _Target:
        joined = urllib.parse.urljoin(f"{target.scheme}://{target.netloc}{target.path}", location)
        try:
            if self._scheme(joined) not in PORTS:
                raise FetchRefused("only https is followed")
            following = self._web_target(joined)
        except FetchRefused as error:
            raise FetchRefused(f"{target} redirects: {error}") from None
        if target.scheme == "https" and following.scheme == "http":
            raise FetchRefused(f"{target} redirects from https to http")
        return following

    def _addresses(self, target: _Target, private: bool) -> list[str]:
        """Resolve and check a host; it is refused if any of its addresses is."""
        try:
            found = self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise FetchFailed(f"{target.host} cannot be resolved: {error}") from None
        if not found:
            raise FetchFailed(f"{target.host} has no address")
        for address in found:
            if not private and not is_public(address):
                raise FetchRefused(
                    f"{target.host} has the address {address}, which is not public: "
                    "name the host in fetch.private_hosts of the executor's config if that is meant"
                )
        return found

    @contextlib.contextmanager
    def _answer(
        self, target: _Target, addresses: list[str], headers: Mapping[str, str], ends_at: float
    ) -> Generator[http.client.HTTPResponse]:
        connection = _PinnedConnection(target, addresses, self._tls if target.scheme == "https" else None, ends_at)
        # A server that sends a byte now and then keeps resetting the socket's own timeout, but not this deadline.
        alarm = threading.Timer(_left_s(ends_at), connection.abort)
        alarm.daemon = True
        alarm.start()
        try:
            connection.request("GET", target.path, headers={"Accept-Encoding": "identity", **headers})
            with connection.getresponse() as answer:
                yield answer
        except (OSError, http.client.HTTPException, ValueError) as error:
            if time.monotonic() >= ends_at - 0.01:
                raise self._too_slow(target) from None
            raise FetchFailed(f"{target}: {error or type(error).__name__}") from None
        finally:
            alarm.cancel()
            connection.close()

    def _too_slow(self, target: _Target) -> FetchFailed:
        return FetchFailed(f"{target} took longer than {self._settings.timeout_sec:g} s (fetch.timeout_sec)")

    def _too_large(self, what: object) -> FetchFailed:
        return FetchFailed(f"{what} is larger than {self._settings.max_mb} MB (fetch.max_mb)")

    def _body(
        self,
        target: _Target,
        answer: http.client.HTTPResponse,
        ends_at: float,
        cancelled: Callable[[], bool],
    ) -> bytes:
        if answer.status != 200:
            raise FetchFailed(f"{target} answered {answer.status} {answer.reason[:80]}")
        if answer.getheader("Content-Encoding", "identity").lower() != "identity":
            raise FetchFailed(f"{target} sent a compressed answer that was not asked for")
        cap = self._settings.max_mb << 20
        declared = answer.getheader("Content-Length", "").strip()
        if declared and not (declared.isascii() and declared.isdigit() and len(declared) < 19):
            raise FetchFailed(f"{target} sent a Content-Length that is no number")
        if declared and int(declared) > cap:
            raise self._too_large(target)
        data = bytearray()
        while chunk := answer.read1(CHUNK):
            data += chunk
            if len(data) > cap:
                raise self._too_large(target)
            if cancelled():
                raise FetchFailed(f"{target}: cancelled")
            if time.monotonic() > ends_at:
                raise self._too_slow(target)
        if time.monotonic() > ends_at:  # the alarm ends a body without a length as if it were complete
            raise self._too_slow(target)
        if declared and len(data) != int(declared):
            raise FetchFailed(f"{target} was cut off: {len(data)} of {declared} bytes came")
        return bytes(data)

    # ---- s3 ----

    def _s3_target(self, url: str) -> _Target:
        s3 = self._settings.s3
        bucket, _, key = url.partition("://")[2].partition("/")
        if not s3.endpoint:
            raise FetchRefused("s3 is off: set fetch.s3.endpoint and fetch.s3.buckets in the executor's config")
        if bucket not in s3.buckets:
            raise FetchRefused(f"the bucket {bucket!r} is not in fetch.s3.buckets of the executor's config")
        key = urllib.parse.unquote(key)
        if not key or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
            raise FetchRefused("expected s3://bucket/key")
        endpoint = parse(s3.endpoint)
        path = f"{endpoint.path.rstrip('/')}/{bucket}/{urllib.parse.quote(key)}"
        return _Target(endpoint.scheme, endpoint.host, endpoint.port, path)

    def _s3_headers(self, target: _Target) -> dict[str, str]:
        """Headers signed with credentials from the environment; anonymous without them."""
        identity, secret = self._variable("AWS_ACCESS_KEY_ID"), self._variable("AWS_SECRET_ACCESS_KEY")
        if not identity or not secret:
            return {}
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {"host": target.netloc, "x-amz-content-sha256": hashlib.sha256(b"").hexdigest(), "x-amz-date": now}
        if token := self._variable("AWS_SESSION_TOKEN"):
            headers["x-amz-security-token"] = token
        return {**headers, "authorization": sign(headers, target.path, identity, secret, self._settings.s3.region)}

    # ---- file ----

    def _file_parts(self, url: str) -> tuple[Path, tuple[str, ...]]:
        """The allowed folder, and the path below it with all links resolved."""
        folder = self._settings.file_folder
        if folder is None:
            raise FetchRefused(
                "files of this machine are not allowed: name their folder with --files, or as fetch.file_folder in the "
                "executor's config"
            )
        path = os.path.join(folder, url) if _is_path(url) else _path_of(url)
        outside = FetchRefused(f"files are allowed below {folder} only (--files, fetch.file_folder)")
        try:
            root = Path(os.path.realpath(folder, strict=True))
            below = Path(os.path.realpath(path)).relative_to(root).parts
        except OSError as error:
            raise FetchRefused(f"fetch.file_folder {folder}: {error.strerror}") from None
        except ValueError:  # outside of the folder, or a name with a NUL
            raise outside from None
        if not below:
            raise outside
        return root, below

    def _read_file(self, url: str) -> bytes:
        root, (*folders, name) = self._file_parts(url)
        opened = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        cap = self._settings.max_mb << 20
        with contextlib.ExitStack() as stack:
            # Step by step and without following links: the folder may change after the check.
            try:
                at = os.open(root, opened | os.O_DIRECTORY)
                stack.callback(os.close, at)
                for folder in folders:
                    at = os.open(folder, opened | os.O_DIRECTORY, dir_fd=at)
                    stack.callback(os.close, at)
                file = stack.enter_context(open(os.open(name, opened, dir_fd=at), "rb"))
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise FetchFailed(f"{name} is not a file: give a .py file or a zip")
                data = file.read(cap + 1)
            except OSError as error:
                raise FetchFailed(f"{name} cannot be read: {error.strerror}") from None
        if len(data) > cap:
            raise self._too_large(name)
        return data


def _is_path(url: str) -> bool:
    """Whether it is a plain path, absolute or below the allowed folder, and no URL."""
    return not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url)


def _path_of(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    path = urllib.parse.unquote(parts.path)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path.startswith("/"):
        raise FetchRefused("expected file:///path/to/agent")
    return path


class _PinnedConnection(http.client.HTTPConnection):
    """Connects to checked addresses; the name is used for the Host header and the certificate."""

    def __init__(self, target: _Target, addresses: list[str], tls: ssl.SSLContext | None, ends_at: float) -> None:
        super().__init__(target.host, target.port, timeout=_left_s(ends_at))
        self._addresses = addresses
        self._tls = tls
        self._ends_at = ends_at
        self._talking: Any = None

    def connect(self) -> None:
        self.sock: Any = self._open()
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
        self._talking = self.sock  # http.client forgets its own once the answer has begun
        if time.monotonic() >= self._ends_at:  # the alarm may have rung while there was nothing to shut down
            raise TimeoutError

    def _open(self) -> socket.socket:
        *others, last = self._addresses
        for address in others:
            with contextlib.suppress(OSError):
                return socket.create_connection((address, self.port), _left_s(self._ends_at))
        return socket.create_connection((last, self.port), _left_s(self._ends_at))

    def abort(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._talking.shutdown(socket.SHUT_RDWR)


def _left_s(ends_at: float) -> float:
    return max(ends_at - time.monotonic(), 0.001)


def parse(url: str) -> _Target:
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise FetchRefused(f"not a URL: {error}") from None
    if not host or parts.scheme not in PORTS:
        raise FetchRefused("not a URL: expected https://host/path")
    if parts.username is not None or parts.password is not None:
        raise FetchRefused("a URL with a user name in it: use a presigned URL instead")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Target(parts.scheme, host, PORTS[parts.scheme] if port is None else port, path)


def _listed(target: _Target, hosts: tuple[str, ...]) -> bool:
    """Whether a host is listed. An entry without a port means the default port of the scheme."""
    for entry in hosts:
        bracketed = entry.startswith("[")
        name, _, port = entry[1:].partition("]") if bracketed else entry.partition(":")
        port = port.lstrip(":")
        if target.port != (int(port) if port else PORTS[target.scheme]):
            continue
        if target.host == name or (name.startswith("*.") and target.host.endswith(name[1:])):
            return True
    return False


def is_public(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return found.is_global and not found.is_multicast
    inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
    if found in NAT64:
        inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return is_public(str(inner)) if inner else found.is_global and found in GLOBAL_UNICAST


def sign(headers: Mapping[str, str], path: str, identity: str, secret: str, region: str) -> str:
    """AWS Signature Version 4 of a GET without a query: the Authorization header. `path` is percent-encoded already."""
    now, names = headers["x-amz-date"], ";".join(sorted(headers))
    canonical = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    request = "\n".join(["GET", path, "", canonical, names, headers["x-amz-content-sha256"]])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={identity}/{scope}, SignedHeaders={names}, Signature={signature}"
