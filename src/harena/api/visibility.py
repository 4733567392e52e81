"""Who learns of an environment. Every route that names or lists something of an environment asks here.

Guarantees: whoever is not a guest of a private environment gets the answers that they would get if it did not exist:
it is not found and in no list, and neither is anything in it. Hosts see everything.
"""

from __future__ import annotations

from collections.abc import Collection

from harena.api.auth import Principal
from harena.api.context import Api
from harena.api.http.errors import ApiError
from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.models import Access, NotFound, Scope


def hidden(api: Api, who: Principal) -> frozenset[str]:
    """Ids of the private environments that the caller is no guest of."""
    return frozenset() if who.can(Scope.HOST) else api.store.guests.hidden_from(who.names)


def environment(api: Api, who: Principal, env_id: str) -> EnvironmentRecord:
    """By id or name. Raises NotFound also for one that the caller may not know of."""
    return api.queries.environment(env_id, hidden=hidden(api, who))


def check(api: Api, who: Principal, env_id: str, missing: str) -> None:
    """Raises NotFound with the words for a thing that does not exist, if it is in a hidden environment."""
    if env_id in hidden(api, who):
        raise NotFound(missing)


def check_entry(api: Api, names: Collection[str], env: EnvironmentRecord, *, is_host: bool) -> None:
    """Raises ApiError when none of the names may submit there."""
    if env.access is Access.PUBLIC or is_host or api.store.guests.is_guest(env.env_id, names):
        return
    raise ApiError(
        403 if names else 401,
        "not_invited",
        f"only those whom the host has invited submit to {env.env_id}",
        hint="ask the host to invite you, and send your key",
    )


def shared(env: EnvironmentRecord) -> bool:
    """Whether what is made of it may be kept in a cache that every reader is answered from."""
    return env.access is not Access.PRIVATE
