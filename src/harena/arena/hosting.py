"""Environments that a host adds, from the API or the command line. Guarantees: an environment is added with its first
season, or not at all; code to import ("module:factory") is added only where the operator of the process has trusted it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.models import Access, EnvironmentKind, NotFound
from harena.arena.db.store import Store
from harena.arena.settings import EnvironmentSettings
from harena.errors import HarenaError, SpecError
from harena.match import registry

FIRST_SEASON = "season 1"
_log = logging.getLogger("harena.arena")


def put_environment(
    store: Store,
    env_id: str,
    *,
    kind: EnvironmentKind | None = None,
    settings: Mapping[str, Any] | None = None,
    enabled: bool = True,
    access: Access | None = None,
    start_season: Callable[[str, str], object],
) -> EnvironmentRecord:
    """Adds or changes one; starts its first season. What is not given stays as it is; a new one is a ladder when its
    game has several seats. Raises UnknownGame, SpecError."""
    full = _full_id(env_id, kind)
    with store.begin():
        before = _found(store, full)
        if settings is None:
            settings = before.settings if before else {}
        EnvironmentSettings.parse(settings).check_texts()
        chosen = kind or (before.kind if before else None) or _kind_of(full)
        _check_kind(full, chosen)
        made = store.environments.put(full, chosen, settings=dict(settings), enabled=enabled, access=access)
        if not store.seasons.all(full):
            start_season(full, FIRST_SEASON)
    return made


def trust_stored(store: Store) -> None:
    """Lets the games be imported that the operator has added by `harena envs add`: the API adds no such id that is not
    trusted already. Before processes that play are started."""
    for environment in store.environments.all(enabled_only=False):
        if ":" not in environment.env_id:
            continue
        registry.trust(environment.env_id)
        try:
            registry.make(environment.env_id)
        except HarenaError as error:
            _log.warning("nobody can play %s now: %s", environment.env_id, error)


def _found(store: Store, env_id: str) -> EnvironmentRecord | None:
    with contextlib.suppress(NotFound):
        return store.environments.get(env_id)
    return None


def _full_id(env_id: str, kind: EnvironmentKind | None) -> str:
    try:
        return registry.resolve(env_id)
    except registry.UnknownGame:
        if kind is not EnvironmentKind.SCRIPT_ONLY or ":" in env_id:
            raise
        return env_id  # a script makes it of its own packages


def _kind_of(env_id: str) -> EnvironmentKind:
    return EnvironmentKind.LADDER if registry.make(env_id).seats > 1 else EnvironmentKind.VERIFIED


def _check_kind(env_id: str, kind: EnvironmentKind) -> None:
    if kind is EnvironmentKind.SCRIPT_ONLY:
        return
    seats = registry.make(env_id).seats
    if (seats > 1) is not (kind is EnvironmentKind.LADDER):
        fit = EnvironmentKind.LADDER if seats > 1 else EnvironmentKind.VERIFIED
        raise SpecError(f"{env_id} has {seats} seat{'s' if seats > 1 else ''}: it can be {fit} or script-only")
