"""Which agents of a ladder may play, by the rules of its environment. Does not decide whom to bench:
`pairing.bench_rule` does, or a host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harena.arena.db.ladder.roster import RosterAgent
from harena.arena.db.models import QuotaExceeded
from harena.arena.db.store import Store


def playing(agents: Sequence[RosterAgent], per_owner: int) -> list[RosterAgent]:
    """The latest agents of each owner, as many as may play; 0: all. The others keep their place on the board."""
    if not per_owner:
        return list(agents)
    left: Counter[str] = Counter()
    chosen: set[str] = set()
    for agent in sorted(agents, key=lambda one: (one.created_at, one.submission_id), reverse=True):
        if left[agent.owner_id] < per_owner:
            left[agent.owner_id] += 1
            chosen.add(agent.submission_id)
    return [agent for agent in agents if agent.submission_id in chosen]


def check_room(store: Store, owner: str, env_id: str, algorithm: str, per_owner: int) -> None:
    """Raises QuotaExceeded where one more agent would be more than an owner may have on the ladder. A new version of
    one that is there takes its place. Counts those that are still to enter."""
    season, who = store.seasons.live(env_id), store.owners.find(owner)
    if not per_owner or season is None or who is None:
        return
    known = store.roster.algorithms(who.id, season.id)
    if algorithm not in known and len(known) >= per_owner:
        raise QuotaExceeded(
            f"{per_owner} agents of one owner may play in {env_id}: send a new version of one (the same algorithm), "
            "or delete one first"
        )
