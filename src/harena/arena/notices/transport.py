"""Sends one notice, by HTTP or by mail.

Guarantees: a webhook reaches only what the host's rules allow, by the address that was checked; no redirect is
followed; a receiver has a few seconds and gets nothing of ours but the signed body. Raises Undelivered, whose text is
for the owner and names no address inside the host's network.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import re
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any
from urllib.parse import unquote, urlsplit

from harena.errors import HarenaError, SpecError
from harena.network.gateway import is_own
from harena.network.policy import Policy, parse_host
from harena.sandbox.network import Network

TIMEOUT_S = 5.0
TOTAL_S = 15.0
MAX_ANSWER = 1024
MAX_URL = 2000
PORTS = {"http": 80, "https": 443}
MAIL = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,8}", re.ASCII)


class Undelivered(HarenaError):
    """A notice did not arrive. `final`: it never will."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    scheme: str
    host: str
    port: int
    path: str


def parse_url(text: str) -> WebhookUrl:
    """Raises SpecError."""
    if len(text) > MAX_URL or not text.isascii() or not text.isprintable() or " " in text:
        raise SpecError(f"a webhook's address is a URL of at most {MAX_URL} plain characters")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise SpecError("a webhook's address is a URL, such as https://hooks.example.org/harena") from None
    if parts.scheme not in PORTS or not parts.hostname or parts.username is not None or parts.fragment:
        raise SpecError("a webhook's address is an http or https URL without a name, a password or a fragment")
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    return WebhookUrl(parts.scheme, parts.hostname, port or PORTS[parts.scheme], path)


class Webhooks:
    """Sender of webhooks within the rules of the host. No rules: none are sent."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self._policy = Policy(Network(allow=allow), is_own) if allow else None

    def check(self, text: str) -> None:
        """Raise SpecError when the host's rules do not allow the address. What a name resolves to is checked when
        something is sent."""
        url = parse_url(text)
        if self._policy is None:
            raise SpecError("this arena sends no webhooks: its host names allowed addresses in HARENA_WEBHOOKS")
        host = parse_host(url.host)
        if host is None:
            raise SpecError("a webhook's address has no valid host")
        refused = (
            self._policy.refuses_name(host, url.port)
            if isinstance(host, str)
            else self._policy.refuses_address(host, url.port)
        )
        if refused:
            raise SpecError(f"the host of this arena does not allow webhooks to {url.host}:{url.port}")

    def send(self, text: str, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            self.check(text)
        except SpecError as error:
            raise Undelivered(str(error), final=True) from None
        url = parse_url(text)
        try:
            connected = socket.create_connection((self._address(url), url.port), timeout=TIMEOUT_S)
        except OSError:
            raise Undelivered("the receiver cannot be reached") from None
        if url.scheme == "https":
            context = ssl.create_default_context()
            connected = context.wrap_socket(connected, server_hostname=url.host, do_handshake_on_connect=False)
        watchdog = threading.Timer(TOTAL_S, _abort, [connected])  # a slow receiver sends a byte at a time
        watchdog.daemon = True
        watchdog.start()
        try:
            status = self._post(connected, url, body, headers)
        except (OSError, http.client.HTTPException, ValueError):
            raise Undelivered("the receiver gave no valid answer in time") from None
        finally:
            watchdog.cancel()
            connected.close()
        if not 200 <= status < 300:
            raise Undelivered(f"the receiver answered with status {status}")

    def _address(self, url: WebhookUrl) -> str:
        """The address that is connected to, checked; a name is resolved once."""
        host = parse_host(url.host)
        if not isinstance(host, str):
            return str(host)
        assert self._policy is not None
        found = socket.getaddrinfo(host, url.port, type=socket.SOCK_STREAM)
        for *_, place in found:
            address = parse_host(str(place[0]))
            if address is None or isinstance(address, str):
                continue
            if self._policy.refuses_resolved(address, url.port) is None:
                return str(address)
        raise Undelivered("its name leads to no address that the host of this arena allows")

    @staticmethod
    def _post(connected: socket.socket, url: WebhookUrl, body: bytes, headers: Mapping[str, str]) -> int:
        if isinstance(connected, ssl.SSLSocket):
            connected.do_handshake()
        connection = http.client.HTTPConnection(url.host, url.port, timeout=TIMEOUT_S)
        connection.sock = connected
        connection.request("POST", url.path, body, {**headers, "Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read(MAX_ANSWER)
        return answer.status


def _abort(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def signature(secret: str, at: int, body: bytes) -> str:
    """What a receiver computes again: HMAC-SHA256 of "time.body" with the webhook's secret."""
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()


def signed(secret: str, event: str, number: int, body: bytes) -> dict[str, str]:
    at = int(time.time())
    return {
        "User-Agent": "harena",
        "Harena-Event": event,
        "Harena-Delivery": str(number),
        "Harena-Signature": f"t={at},v1={signature(secret, at, body)}",
    }


def encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    host: str
    port: int
    tls: bool
    """From the first byte (smtps); else by STARTTLS where the server offers it."""
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> MailServer:
        """`smtp://user:password@host:587` or `smtps://…`. Raises SpecError, which does not repeat the password."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise SpecError("HARENA_SMTP_URL is of the form smtp://user:password@host:587, or smtps://…") from None
        if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
            raise SpecError("HARENA_SMTP_URL is of the form smtp://user:password@host:587, or smtps://…")
        tls = parts.scheme == "smtps"
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(host=parts.hostname, port=port or (465 if tls else 587), tls=tls, user=user, password=password)

    def send(self, sender: str, target: str, subject: str, text: str) -> None:
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = sender, target, subject
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        try:
            with self._connected() as server:
                server.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            final = isinstance(error, smtplib.SMTPRecipientsRefused)
            raise Undelivered("the mail server did not accept it", final=final) from None

    def _connected(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if self.tls:
            server = smtplib.SMTP_SSL(self.host, self.port, timeout=TIMEOUT_S, context=context)
        else:
            server = smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S)
        try:
            server.ehlo()
            if not self.tls and server.has_extn("starttls"):
                server.starttls(context=context)
                server.ehlo()
            elif not self.tls and self.user:
                raise smtplib.SMTPException("a password is sent over TLS only")
            if self.user:
                server.login(self.user, self.password)
        except BaseException:
            server.close()
            raise
        return server


def check_mail(text: str) -> None:
    """Raises SpecError."""
    if len(text) > 254 or not MAIL.fullmatch(text):
        raise SpecError("a mail address is of the form name@example.org")
