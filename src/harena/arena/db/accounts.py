"""Who may do what, and where: owners, their API keys, environments and seasons.

Guarantees: a token is shown once, when it is made; the database has only its sha256. A season's secret, from which
hidden seeds are derived, is given to the platform while the season runs and to everybody after it has ended.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import columns
from harena.arena.db.models import (
    Conflict,
    EnvironmentKind,
    KeyRefused,
    NotFound,
    Scope,
    ScopeMissing,
    environments,
    has_mark,
    keys,
    name_text,
    owners,
    seasons,
)
from harena.arena.db.records import MAX_PAGE, page
from harena.arena.events.log import Events
from harena.errors import SpecError

TOKEN_PREFIX = "hrn"
MAX_TOKEN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    id: str
    name: str
    per_day: int | None
    """Submissions a day; None: the host's default."""
    at_once: int | None
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
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
        return scope in self.scopes or Scope.ADMIN in self.scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    env_id: str
    kind: EnvironmentKind
    settings: dict[str, Any]
    enabled: bool
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Season:
    """Without its secret: `season_secret` and `revealed_secret` have it."""

    id: int
    env_id: str
    name: str
    frozen: bool
    """Takes no new submissions; matches go on."""
    started_at: float
    ended_at: float | None


class Accounts(Events):
    # ---- owners ----

    def owner(self, name: str) -> Owner:
        """The owner of that name, made on first use."""
        if isinstance(name, str) and (found := self.find_owner(name)) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
            return found  # also one whose name was taken before names were checked as they are now
        name_text(name, "an owner's name")
        row = {"id": uuid.uuid4().hex, "name": name, "created_at": self.clock()}
        with self.begin() as connection:
            connection.execute(self.insert(owners).values(row).on_conflict_do_nothing(index_elements=["name"]))
            made = self.find_owner(name)
        assert made is not None
        return made

    def find_owner(self, name: str) -> Owner | None:
        row = self.row(sa.select(*columns(owners, Owner)).where(owners.c.name == name))
        return Owner(**row) if row else None

    def owners(self, *, limit: int = 100, offset: int = 0) -> list[Owner]:
        """By name."""
        query = sa.select(*columns(owners, Owner)).order_by(owners.c.name).limit(page(limit)).offset(offset)
        return [Owner(**row) for row in self.rows(query)]

    def set_quota(self, name: str, *, per_day: int | None, at_once: int | None) -> Owner:
        """For this owner alone; None: the host's default."""
        owner_id = self.owner(name).id
        with self.begin() as connection:
            connection.execute(
                owners.update().where(owners.c.id == owner_id).values(per_day=per_day, at_once=at_once)
            )  # fmt: skip
            return self.owner(name)

    # ---- keys ----

    def create_key(
        self, owner: str, scopes: Iterable[Scope], *, label: str = "", lifetime_s: float | None = None
    ) -> tuple[Key, str]:
        """The key and its token: the only time that the token is known."""
        if has_mark(owner):
            raise SpecError(f"{owner!r:.80} ends like the name of an owner without a key: choose another")
        now, owner_id = self.clock(), self.owner(owner).id
        chosen = frozenset(map(Scope, scopes))
        key_id = secrets.token_hex(8)
        token = f"{TOKEN_PREFIX}_{key_id}_{secrets.token_urlsafe(32)}"
        with self.begin() as connection:
            connection.execute(keys.insert().values(
                id=key_id, owner_id=owner_id, digest=_token_digest(token), scopes=",".join(sorted(chosen)),
                label=name_text(label, "a key's label") if label else "", created_at=now,
                expires_at=None if lifetime_s is None else now + lifetime_s,
            ))  # fmt: skip
            return self.key(key_id), token

    def authenticate(self, token: str, scope: Scope) -> Key:
        """The key of a token, when it is live and has the scope."""
        key_id = _key_id(token)
        row = self.row(_KEYS.add_columns(keys.c.digest).where(keys.c.id == key_id))
        expected = row["digest"] if row else _token_digest("")
        if not hmac.compare_digest(expected, _token_digest(token)) or row is None:
            raise KeyRefused("the API key is unknown, expired or revoked")
        key, now = _key(row), self.clock()
        if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
            raise KeyRefused("the API key is unknown, expired or revoked")
        if not key.allows(scope):
            raise ScopeMissing(f"the API key lacks the scope {scope!r}: ask the host for one that has it")
        return key

    def rotate_key(self, key_id: str, *, grace_s: float = 0.0) -> tuple[Key, str]:
        """A new key in place of this one, which ends after the grace time."""
        with self.begin() as connection:
            old, now = self.key(key_id), self.clock()
            if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
                raise KeyRefused("an expired or revoked key cannot be rotated: make a new one")
            lifetime_s = None if old.expires_at is None else old.expires_at - old.created_at
            made = self.create_key(old.owner, old.scopes, label=old.label, lifetime_s=lifetime_s)
            end = now + grace_s if old.expires_at is None else min(now + grace_s, old.expires_at)
            connection.execute(keys.update().where(keys.c.id == key_id).values(expires_at=end))
            return made

    def revoke_key(self, key_id: str) -> None:
        with self.begin() as connection:
            live = (keys.c.id == key_id) & keys.c.revoked_at.is_(None)
            connection.execute(keys.update().where(live).values(revoked_at=self.clock()))

    def key(self, key_id: str) -> Key:
        row = self.row(_KEYS.where(keys.c.id == key_id))
        if row is None:
            raise NotFound(f"no API key {key_id!r:.60}")
        return _key(row)

    def keys_of(self, owner: str) -> list[Key]:
        return [_key(row) for row in self.rows(_KEYS.where(owners.c.name == owner).order_by(keys.c.created_at))]

    def keys(self, *, limit: int = 100, offset: int = 0) -> list[Key]:
        """Everybody's, newest first."""
        query = _KEYS.order_by(keys.c.created_at.desc(), keys.c.id).limit(page(limit)).offset(offset)
        return [_key(row) for row in self.rows(query)]

    def has_key(self, owner: str) -> bool:
        """Whether the name ever had a key: from then on nobody uses it without one."""
        return self.row(sa.select(keys.c.id).join(owners).where(owners.c.name == owner).limit(1)) is not None

    # ---- environments ----

    def put_environment(
        self, env_id: str, kind: EnvironmentKind, *, settings: dict[str, Any] | None = None, enabled: bool = True
    ) -> Environment:
        """Adds it, or changes it as a whole."""
        now = self.clock()
        values = {"kind": EnvironmentKind(kind), "settings": settings or {}, "enabled": enabled, "updated_at": now}
        insert = self.insert(environments).values(
            env_id=name_text(env_id, "an environment's id"), created_at=now, **values
        )  # fmt: skip
        with self.begin() as connection:
            connection.execute(insert.on_conflict_do_update(index_elements=["env_id"], set_=values))
            return self.environment(env_id)

    def environment(self, env_id: str) -> Environment:
        row = self.row(_ENVIRONMENTS.where(environments.c.env_id == env_id))
        if row is None:
            raise NotFound(f"no environment {env_id!r:.80} here")
        return Environment(**row)

    def environments(self, *, enabled_only: bool = True) -> list[Environment]:
        query = _ENVIRONMENTS.order_by(environments.c.env_id)
        return [Environment(**row) for row in self.rows(query) if row["enabled"] or not enabled_only]

    # ---- seasons ----

    def start_season(
        self, env_id: str, name: str, *, secret: bytes | None = None, final_secret: bytes | None = None
    ) -> Season:  # fmt: skip
        """At most one runs in an environment. Give secrets only to repeat a season."""
        values = {
            "env_id": env_id, "name": name_text(name, "a season's name"), "secret": secret or secrets.token_bytes(32),
            "final_secret": final_secret or secrets.token_bytes(32),
            "frozen": False, "started_at": self.clock(),
        }  # fmt: skip
        with self.begin() as connection:
            self.environment(env_id)
            if self.live_season(env_id) is not None:
                raise Conflict(f"a season runs in {env_id} already: end it first")
            season_id = connection.execute(seasons.insert().values(values).returning(seasons.c.id)).scalar_one()
            return self.season(season_id)

    def freeze_season(self, season_id: int, *, frozen: bool = True) -> Season:
        return self._change_season(season_id, frozen=frozen)

    def end_season(self, season_id: int) -> Season:
        return self._change_season(season_id, frozen=True, ended_at=self.clock())

    def season(self, season_id: int) -> Season:
        row = self.row(_SEASONS.where(seasons.c.id == season_id))
        if row is None:
            raise NotFound(f"no season {season_id}")
        return Season(**row)

    def live_season(self, env_id: str) -> Season | None:
        row = self.row(_SEASONS.where(seasons.c.env_id == env_id, seasons.c.ended_at.is_(None)))
        return Season(**row) if row else None

    def seasons(self, env_id: str | None = None) -> list[Season]:
        """Newest first, of one environment or of all."""
        query = _SEASONS if env_id is None else _SEASONS.where(seasons.c.env_id == env_id)
        return [Season(**row) for row in self.rows(query.order_by(seasons.c.id.desc()).limit(MAX_PAGE))]

    def season_secret(self, season_id: int) -> bytes:
        """For the platform only: whoever has it knows the hidden seeds."""
        row = self.row(sa.select(seasons.c.secret).where(seasons.c.id == season_id))
        if row is None:
            raise NotFound(f"no season {season_id}")
        return row["secret"]

    def final_secret(self, season_id: int) -> bytes | None:
        """For the platform only: the finals' seeds follow from it. None: the season ended before there were finals."""
        row = self.row(sa.select(seasons.c.final_secret).where(seasons.c.id == season_id))
        if row is None:
            raise NotFound(f"no season {season_id}")
        return row["final_secret"]

    def revealed_secret(self, season_id: int) -> bytes | None:
        """For everybody: None until the season has ended."""
        return self.season_secret(season_id) if self.season(season_id).ended_at is not None else None

    def _change_season(self, season_id: int, **values: Any) -> Season:
        running = (seasons.c.id == season_id) & seasons.c.ended_at.is_(None)
        with self.begin() as connection:
            if connection.execute(seasons.update().where(running).values(values)).rowcount == 0:
                raise Conflict(f"season {self.season(season_id).name!r:.80} has ended")
            return self.season(season_id)


_KEYS = sa.select(*columns(keys, Key), owners.c.name.label("owner")).join(owners)
_ENVIRONMENTS = sa.select(*columns(environments, Environment))
_SEASONS = sa.select(*columns(seasons, Season))


def _key(row: sa.RowMapping) -> Key:
    fields: dict[str, Any] = {name: value for name, value in row.items() if name != "digest"}
    names: str = row["scopes"]
    fields["scopes"] = frozenset(Scope(name) for name in names.split(",") if name)
    return Key(**fields)


def _key_id(token: str) -> str:
    parts = token.split("_", 2) if len(token) <= MAX_TOKEN and token.isascii() else []
    return parts[1] if len(parts) == 3 and parts[0] == TOKEN_PREFIX else ""


def _token_digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
