"""Tokens of clients. The file has one line for each client: its name and its token. Only digests stay in memory."""

from __future__ import annotations

import enum
import os
import re

from harena import access
from harena.errors import SpecError

MIN_TOKEN = 20
"""Characters; a generated token has 43."""
MAX_FILE = 1 << 20


class TokenScope(enum.StrEnum):
    READ = "read"
    """Requests that change nothing."""
    RUN = "run"
    """Implies the others."""


ALL = frozenset({TokenScope.RUN})


class Tokens:
    def __init__(self, tokens: dict[str, str], scopes: dict[str, frozenset[TokenScope]] | None = None) -> None:
        """`tokens`: the token of each name. Without any, everybody is let in: for a Unix socket with its own rights.
        `scopes`: those of names that may not do everything."""
        self._scopes = scopes or {}
        self._digests = {name: access.token_digest(token) for name, token in tokens.items()}

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
        scopes: dict[str, frozenset[TokenScope]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                held = access.parse_scopes(words.pop(), TokenScope) if len(words) == 3 else ALL
            except SpecError as error:
                raise SpecError(f"{path}, line {number}: {error}") from None
            if len(words) != 2 or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", words[0]) or words[0] in tokens:
                raise SpecError(f"{path}, line {number}: give a new NAME of letters, digits, . _ - and a TOKEN")
            if len(words[1]) < MIN_TOKEN or not words[1].isascii():
                raise SpecError(f"{path}, line {number}: a token has at least {MIN_TOKEN} ASCII characters")
            tokens[words[0]], scopes[words[0]] = words[1], held
        if not tokens:
            raise SpecError(f"{path}: has no token")
        return cls(tokens, scopes)

    @property
    def needed(self) -> bool:
        return bool(self._digests)

    @property
    def owners(self) -> int:
        """How many owners there are."""
        return max(1, len(self._digests))

    def allows(self, owner: str, scope: TokenScope) -> bool:
        return access.allows(self._scopes.get(owner, ALL), scope, everything=TokenScope.RUN)

    def owner(self, header: bytes | None) -> str | None:
        """Return whose token an Authorization header has; None if nobody's. Takes the same time for every token."""
        if not self._digests:
            return "local"
        token = access.bearer_token((header or b"").decode("latin-1"))
        return access.find_token((token or "").encode("latin-1"), self._digests)


def _exposed(found: os.stat_result) -> bool:
    """Whether others may read or change the file. Root may give one to a server's group: Kubernetes does so with the
    files of a Secret."""
    lent = found.st_uid == 0 and os.geteuid() != 0
    return bool(found.st_mode & (0o037 if lent else 0o077))


def _create(path: str) -> str:
    token = access.new_token()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SpecError(f"{path}: cannot be created: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(f"client {token}\n")
    return token
