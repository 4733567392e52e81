"""Teams: owners that other owners act for. What a member sends for a team belongs to the team, so its quota, its
finalists and its rows on boards are shared by all members.

Guarantees: a team has a name that no other owner has, and a captain for as long as it has members; nobody is a member
without having accepted. A submission counts against the quota of its team and of the member who sent it, so that new
teams give nobody more quota.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from harena.arena.db.accounts.owners import OwnerRepository
from harena.arena.db.database import Database
from harena.arena.db.models import Conflict, NotFound, has_mark, members, owners
from harena.errors import SpecError

MAX_MEMBERS = 20
"""Invited people count, too."""
MAX_TEAMS = 10
"""Teams that an owner may be in at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRecord:
    team: str
    owner: str
    captain: bool
    created_at: float
    joined_at: float | None
    """None: invited, and has not answered yet."""


class TeamRepository:
    def __init__(self, database: Database, owners: OwnerRepository) -> None:
        self._database = database
        self._owners = owners

    # ---- reading ----

    def of(self, owner: str) -> list[str]:
        """Names of the teams that the owner is a member of."""
        return [one.team for one in self.memberships(owner) if one.joined_at is not None]

    def memberships(self, owner: str) -> list[MembershipRecord]:
        """Teams of the owner, and invitations."""
        return self._where(_MEMBER.c.name == owner)

    def members(self, team: str) -> list[MembershipRecord]:
        """Those who were invited are among them. Raises NotFound when there is no such team."""
        found = self._where(_TEAM.c.name == team)
        if not found:
            raise NotFound(f"no team {team!r:.80}")
        return found

    def circles(self) -> dict[str, str]:
        """Members and teams by name, each with a name that all who are connected by teams share."""
        circle: dict[str, str] = {}

        def root(name: str) -> str:
            while (above := circle.setdefault(name, name)) != name:
                name = above
            return name

        for one in self._where(members.c.joined_at.is_not(None)):
            circle[root(one.owner)] = root(one.team)
        return {name: root(name) for name in circle}

    def exists(self, name: str) -> bool:
        return bool(self._where(_TEAM.c.name == name))

    # ---- writing ----

    def create(self, team: str, captain: str) -> MembershipRecord:
        """Raises Conflict when an owner has that name."""
        if has_mark(team) or team != team.strip():
            raise SpecError("a team's name has no spaces around it and no mark such as #0123abcd at its end")
        with self._database.begin():
            if self._owners.find(team) is not None:
                raise Conflict(f"the name {team!r:.80} is taken: choose another one")
            self._check_teams(captain)
            self._owners.ensure(team)
            self._add(team, captain, captain=True, joined=True)
        return self._membership(team, captain)

    def invite(self, team: str, owner: str, *, by: str) -> MembershipRecord:
        """Idempotent. Raises Conflict when the team is full or `owner` is a team."""
        with self._database.begin():
            self._check_captain(team, by)
            known = self.members(team)
            if not any(one.owner == owner for one in known):
                if len(known) >= MAX_MEMBERS:
                    raise Conflict(f"the team has {MAX_MEMBERS} members and invitations: remove one first")
                if has_mark(owner) or self.exists(owner) or self._owners.find(owner) is None:
                    raise NotFound(f"nobody here is called {owner!r:.80}: people need a key to join a team")
                self._add(team, owner, captain=False, joined=False)
        return self._membership(team, owner)

    def join(self, team: str, owner: str) -> MembershipRecord:
        """Accept an invitation. Idempotent."""
        with self._database.begin() as connection:
            found = self._membership(team, owner)
            if found.joined_at is None:
                self._check_teams(owner)
                here = self._row(team, owner)
                connection.execute(members.update().where(here).values(joined_at=self._database.clock()))
        return self._membership(team, owner)

    def remove(self, team: str, owner: str, *, by: str) -> None:
        """Leave, decline, or remove somebody as captain. The longest member follows a captain who leaves."""
        with self._database.begin() as connection:
            found = self._membership(team, owner)
            if owner != by:
                self._check_captain(team, by)
            connection.execute(members.delete().where(self._row(team, owner)))
            if not found.captain:
                return
            rest = sorted((one for one in self._where(_TEAM.c.name == team) if one.joined_at), key=_since)
            if rest:
                connection.execute(members.update().where(self._row(team, rest[0].owner)).values(captain=True))

    # ---- parts ----

    def _where(self, which: sa.ColumnElement[bool]) -> list[MembershipRecord]:
        rows = self._database.rows(_MEMBERS.where(which).order_by(_TEAM.c.name, members.c.created_at, _MEMBER.c.name))
        return [MembershipRecord(**row) for row in rows]

    def _membership(self, team: str, owner: str) -> MembershipRecord:
        found = self._where((_TEAM.c.name == team) & (_MEMBER.c.name == owner))
        if not found:
            raise NotFound(f"no team {team!r:.80} has invited you")
        return found[0]

    def _check_captain(self, team: str, by: str) -> None:
        if not self._membership(team, by).captain:
            raise Conflict(f"only the captain of {team!r:.80} may do this")

    def _check_teams(self, owner: str) -> None:
        if len(self.of(owner)) >= MAX_TEAMS:
            raise Conflict(f"you are in {MAX_TEAMS} teams: leave one first")

    def _row(self, team: str, owner: str) -> sa.ColumnElement[bool]:
        team_id, owner_id = self._owners.ensure(team).id, self._owners.ensure(owner).id
        return (members.c.team_id == team_id) & (members.c.owner_id == owner_id)

    def _add(self, team: str, owner: str, *, captain: bool, joined: bool) -> None:
        now = self._database.clock()
        row = {"team_id": self._owners.ensure(team).id, "owner_id": self._owners.ensure(owner).id, "captain": captain}
        with self._database.begin() as connection:
            connection.execute(members.insert().values(row | {"created_at": now, "joined_at": now if joined else None}))


def _since(member: MembershipRecord) -> tuple[float, str]:
    return member.joined_at or 0.0, member.owner


_TEAM, _MEMBER = owners.alias("team"), owners.alias("member")
_MEMBERS = (
    sa.select(
        _TEAM.c.name.label("team"),
        _MEMBER.c.name.label("owner"),
        members.c.captain,
        members.c.created_at,
        members.c.joined_at,
    )
    .join(_TEAM, _TEAM.c.id == members.c.team_id)
    .join(_MEMBER, _MEMBER.c.id == members.c.owner_id)
)
