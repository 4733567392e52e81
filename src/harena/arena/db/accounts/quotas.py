"""What owners have used of their quotas. Guarantees: a charge is given back at most once."""

from __future__ import annotations

import sqlalchemy as sa

from harena.arena.db.accounts.owners import OwnerRecord, OwnerRepository
from harena.arena.db.database import Database
from harena.arena.db.models import ACTIVE, QuotaExceeded, charges, members, submissions
from harena.arena.db.records import DefaultQuota

DAY_S = 86400


class QuotaRepository:
    def __init__(self, database: Database, owners: OwnerRepository) -> None:
        self._database = database
        self._owners = owners

    def used(self, owner: str) -> tuple[int, int]:
        """Submissions today, and at this moment."""
        found = self._owners.find(owner)
        return (0, 0) if found is None else self._used(found.id)

    def check(self, owner: str, quota: DefaultQuota) -> None:
        """Raise QuotaExceeded where adding a submission would, before any work is done."""
        found = self._owners.find(owner)
        if found is not None:
            self.check_owner(found, quota)

    def refund(self, submission_id: str) -> bool:
        """Whether its last charge was given back now: only the first call does."""
        last = sa.select(sa.func.max(charges.c.id)).where(charges.c.submission_id == submission_id)
        charged = (charges.c.id == last.scalar_subquery()) & charges.c.refunded_at.is_(None)
        with self._database.begin() as connection:
            return (
                connection.execute(charges.update().where(charged).values(refunded_at=self._database.clock())).rowcount
                == 1
            )

    def check_owner(self, owner: OwnerRecord, default: DefaultQuota) -> None:
        """Raises QuotaExceeded. `default` counts where the owner has no numbers of their own."""
        per_day = default.per_day if owner.per_day is None else owner.per_day
        at_once = default.at_once if owner.at_once is None else owner.at_once
        today, active = self._used(owner.id)
        if per_day is not None and today >= per_day:
            raise QuotaExceeded(f"{per_day} submissions a day are used up: the next day starts at 00:00 UTC")
        if at_once is not None and active >= at_once:
            raise QuotaExceeded(f"{at_once} submissions at once are under way: wait for one to end, or cancel it")

    def charge(self, submission_id: str, owner_id: str, sender_id: str | None = None) -> None:
        """Count one evaluation against the owner's day, and that of the member who sent it for a team."""
        row = {"submission_id": submission_id, "owner_id": owner_id, "sender_id": sender_id}
        day = int(self._database.clock()) // DAY_S
        with self._database.begin() as connection:
            connection.execute(charges.insert().values(row | {"day": day}))

    # ---- parts ----

    def _used(self, owner_id: str) -> tuple[int, int]:
        count = sa.select(sa.func.count().label("n"))
        day = int(self._database.clock()) // DAY_S
        today = _counts(charges, owner_id) & (charges.c.day == day) & charges.c.refunded_at.is_(None)
        active = _counts(submissions, owner_id) & submissions.c.state.in_(sorted(ACTIVE))
        per_day, at_once = (
            self._database.row(count.select_from(charges).where(today)),
            self._database.row(count.select_from(submissions).where(active)),
        )
        return per_day["n"] if per_day else 0, at_once["n"] if at_once else 0


def _counts(table: sa.Table, owner_id: str) -> sa.ColumnElement[bool]:
    """What the owner sent and, of a team, what its members have sent for whomever: so nobody gets more by being in
    another team."""
    own = members.c.joined_at.is_not(None)
    team = sa.select(members.c.owner_id).where(members.c.team_id == owner_id, own)
    return sa.or_(
        table.c.owner_id == owner_id,
        table.c.sender_id == owner_id,
        table.c.owner_id.in_(team),
        table.c.sender_id.in_(team),
    )
