"""Tokens of clients. The file has one line for each client: its name and its token. Only digests stay in memory."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets

from harena.errors import SpecError

MIN_TOKEN = 20
"""Characters; a generated token has 43."""
MAX_FILE = 1 << 20
RUN, READ = "run", "read"
"""Scopes of a token: everything, or only requests that change nothing."""


class Tokens:
    def __init__(self, tokens: dict[str, str], readers: frozenset[str] = frozenset()) -> None:
        """`tokens`: the token of each name. Without any, everybody is let in: for a Unix socket with its own rights.
        `readers`: names that may look and change nothing."""
        self._readers = readers
        self._digests = {name: _digest(token.encode()) for name, token in tokens.items()}

    @classmethod
    def read(cls, path: str) -> Tokens:
        """Read the file, and create it with one token if it does not exist."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return cls({"client": _create(path)})
        except OSError as error:
            raise SpecError(f"{path}: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            if _exposed(os.fstat(descriptor)):
                raise SpecError(f"{path}: other users may read or change it; run chmod 600 on it")
            text = file.read(MAX_FILE).decode("utf-8", "replace")
        tokens: dict[str, str] = {}
        readers: set[str] = set()
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            scope = words.pop() if len(words) == 3 else RUN
            if scope not in (RUN, READ):
                raise SpecError(f"{path}, line {number}: a scope is {RUN} or {READ}")
            if len(words) != 2 or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", words[0]) or words[0] in tokens:
                raise SpecError(f"{path}, line {number}: give a new NAME of letters, digits, . _ - and a TOKEN")
            if len(words[1]) < MIN_TOKEN or not words[1].isascii():
                raise SpecError(f"{path}, line {number}: a token has at least {MIN_TOKEN} ASCII characters")
            tokens[words[0]] = words[1]
            if scope == READ:
                readers.add(words[0])
        if not tokens:
            raise SpecError(f"{path}: has no token")
        return cls(tokens, frozenset(readers))

    @property
    def needed(self) -> bool:
        return bool(self._digests)

    @property
    def owners(self) -> int:
        """How many owners there are."""
        return max(1, len(self._digests))

    def may_run(self, owner: str) -> bool:
        """False for a token that may only read."""
        return owner not in self._readers

    def owner(self, header: bytes | None) -> str | None:
        """Return whose token an Authorization header has; None if nobody's. Takes the same time for every token."""
        if not self._digests:
            return "local"
        scheme, _, token = (header or b"").partition(b" ")
        given = _digest(token.strip())
        found: str | None = None
        for name, digest in self._digests.items():
            if hmac.compare_digest(digest, given):
                found = name
        return found if scheme.lower() == b"bearer" else None


def _exposed(found: os.stat_result) -> bool:
    """Whether others may read or change the file. Root may give one to a server's group: Kubernetes does so with the
    files of a Secret."""
    lent = found.st_uid == 0 and os.geteuid() != 0
    return bool(found.st_mode & (0o037 if lent else 0o077))


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _create(path: str) -> str:
    token = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SpecError(f"{path}: cannot be created: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(f"client {token}\n")
    return token
