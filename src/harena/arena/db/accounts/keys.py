"""API keys. Guarantees: a token is shown once, when it is made; the database has only its sha256."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena import access
from harena.arena.db.accounts.owners import OwnerRepository
from harena.arena.db.database import Database, columns
from harena.arena.db.models import KeyRefused, NotFound, Scope, ScopeMissing, has_mark, keys, name_text, owners
from harena.arena.db.records import page
from harena.errors import SpecError

TOKEN_PREFIX = "hrn"
MAX_TOKEN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An API key without its secret."""

    id: str
    owner_id: str
    owner: str
    scopes: frozenset[Scope]
    label: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def allows(self, scope: Scope) -> bool:
        return access.allows(self.scopes, scope, everything=Scope.ADMIN)


class KeyRepository:
    def __init__(self, database: Database, owners: OwnerRepository) -> None:
        self._database = database
        self._owners = owners

    def create(
        self, owner: str, scopes: Iterable[Scope], *, label: str = "", lifetime_s: float | None = None
    ) -> tuple[KeyRecord, str]:
        """The key and its token: the only time that the token is known."""
        if has_mark(owner):
            raise SpecError(f"{owner!r:.80} ends like the name of an owner without a key: choose another")
        now, owner_id = self._database.clock(), self._owners.ensure(owner).id
        chosen = frozenset(map(Scope, scopes))
        key_id = secrets.token_hex(8)
        token = f"{TOKEN_PREFIX}_{key_id}_{access.new_token()}"
        with self._database.begin() as connection:
            connection.execute(
                keys.insert().values(
                    id=key_id,
                    owner_id=owner_id,
                    digest=access.token_digest(token),
                    scopes=",".join(sorted(chosen)),
                    label=name_text(label, "a key's label") if label else "",
                    created_at=now,
                    expires_at=None if lifetime_s is None else now + lifetime_s,
                )
            )
            return self.get(key_id), token

    def authenticate(self, token: str, scope: Scope) -> KeyRecord:
        """The key of a token, when it is live and has the scope."""
        key_id = _key_id(token)
        row = self._database.row(_KEYS.add_columns(keys.c.digest).where(keys.c.id == key_id))
        known = {key_id: row["digest"] if row else access.token_digest("")}
        if access.find_token(token, known) is None or row is None:
            raise KeyRefused("the API key is unknown, expired or revoked")
        key, now = _key(row), self._database.clock()
        if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
            raise KeyRefused("the API key is unknown, expired or revoked")
        if not key.allows(scope):
            raise ScopeMissing(f"the API key lacks the scope {scope!r}: ask the host for one that has it")
        return key

    def rotate(self, key_id: str, *, grace_s: float = 0.0) -> tuple[KeyRecord, str]:
        """A new key in place of this one, which ends after the grace time."""
        with self._database.begin() as connection:
            old, now = self.get(key_id), self._database.clock()
            if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
                raise KeyRefused("an expired or revoked key cannot be rotated: make a new one")
            lifetime_s = None if old.expires_at is None else old.expires_at - old.created_at
            made = self.create(old.owner, old.scopes, label=old.label, lifetime_s=lifetime_s)
            end = now + grace_s if old.expires_at is None else min(now + grace_s, old.expires_at)
            connection.execute(keys.update().where(keys.c.id == key_id).values(expires_at=end))
            return made

    def revoke(self, key_id: str) -> None:
        with self._database.begin() as connection:
            live = (keys.c.id == key_id) & keys.c.revoked_at.is_(None)
            connection.execute(keys.update().where(live).values(revoked_at=self._database.clock()))

    def get(self, key_id: str) -> KeyRecord:
        row = self._database.row(_KEYS.where(keys.c.id == key_id))
        if row is None:
            raise NotFound(f"no API key {key_id!r:.60}")
        return _key(row)

    def of(self, owner: str) -> list[KeyRecord]:
        return [
            _key(row) for row in self._database.rows(_KEYS.where(owners.c.name == owner).order_by(keys.c.created_at))
        ]

    def all(self, *, limit: int = 100, offset: int = 0) -> list[KeyRecord]:
        """Everybody's, newest first."""
        query = _KEYS.order_by(keys.c.created_at.desc(), keys.c.id).limit(page(limit)).offset(offset)
        return [_key(row) for row in self._database.rows(query)]


_KEYS = sa.select(*columns(keys, KeyRecord), owners.c.name.label("owner")).join(owners)


def _key(row: sa.RowMapping) -> KeyRecord:
    fields: dict[str, Any] = {name: value for name, value in row.items() if name != "digest"}
    names: str = row["scopes"]
    fields["scopes"] = frozenset(Scope(name) for name in names.split(",") if name)
    return KeyRecord(**fields)


def _key_id(token: str) -> str:
    parts = token.split("_", 2) if len(token) <= MAX_TOKEN and token.isascii() else []
    return parts[1] if len(parts) == 3 and parts[0] == TOKEN_PREFIX else ""
