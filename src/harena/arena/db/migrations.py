"""Steps between versions of the schema, forward and back, on every database that the arena supports.

Guarantees: a step and the note of its version are one transaction, so an interrupted migration leaves the version that
was there; a database of a newer Harena is refused. A step back loses what only the newer version can keep, and nothing
else. docs/adr/0024 says why these are our own steps.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from harena.arena.db import integrity, models
from harena.arena.db.models import StoreError
from harena.errors import SpecError

Change = Callable[[sa.Connection], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    up: Change
    down: Change | None = None
    """None: there is no way back from this version."""


def _add_columns(connection: sa.Connection, columns: Sequence[sa.Column[object]]) -> None:
    for column in columns:
        words = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {words}")


def _drop_columns(connection: sa.Connection, table: str, names: Sequence[str]) -> None:
    for name in names:
        connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {name}")


def _second_secrets(connection: sa.Connection) -> None:
    """Version 2: draws, practices and finals. A season that runs gets a second secret for its finals."""
    seasons, standings = models.seasons, models.standings
    _add_columns(connection, [seasons.c.final_secret, standings.c.final])
    for table in (models.draws, models.practices, models.finalists):
        table.create(connection)
    running = sa.select(seasons.c.id).where(seasons.c.ended_at.is_(None))
    for season_id in connection.execute(running).scalars().all():
        of = seasons.update().where(seasons.c.id == season_id)
        connection.execute(of.values(final_secret=secrets.token_bytes(32)))


def _fair_turns(connection: sa.Connection) -> None:
    """Version 3: jobs have shares and take turns. Those that wait keep their order, before all that come after them."""
    jobs = models.jobs
    _add_columns(connection, [jobs.c.share, jobs.c.part, jobs.c.turn, jobs.c.cost_s, jobs.c.yielded])
    connection.exec_driver_sql("DROP INDEX jobs_in_order")
    for index in jobs.indexes:
        if index.name in ("jobs_in_order", "jobs_of_share"):
            index.create(connection)


_PLACES = ("place", "env_id", "deaths")


def _jobs_of_many_processes(connection: sa.Connection) -> None:
    """Version 4: jobs know which environment they need, which process they are for, and how often they lost theirs."""
    _add_columns(connection, [models.jobs.c[name] for name in _PLACES])


def _jobs_of_one_process(connection: sa.Connection) -> None:
    _drop_columns(connection, "jobs", _PLACES)


def _teams_and_guests(connection: sa.Connection) -> None:
    """Version 5: environments that are not public, their guests, and teams."""
    added = (models.environments.c.access, models.submissions.c.sender_id, models.charges.c.sender_id)
    _add_columns(connection, added)
    for table in (models.guests, models.members):
        table.create(connection)


def _no_teams_and_guests(connection: sa.Connection) -> None:
    """Refused while an environment is private: the older version would show it to everybody."""
    environments = models.environments
    private = sa.select(environments.c.env_id).where(environments.c.access == models.Access.PRIVATE)
    found = connection.execute(private.limit(1)).scalar()
    if found is not None:
        raise SpecError(f"{found} is private, and schema 4 would show it to everybody: make it public first")
    for table in (models.guests, models.members):
        table.drop(connection)
    for table, name in (("environments", "access"), ("submissions", "sender_id"), ("charges", "sender_id")):
        _drop_columns(connection, table, [name])


_NOTICES = (models.hooks, models.deliveries, models.ranks, models.rank_changes, models.notice_cursor)


def _notices(connection: sa.Connection) -> None:
    """Version 6: webhooks and mail for results and changes of rank."""
    for table in _NOTICES:
        table.create(connection)


def _no_notices(connection: sa.Connection) -> None:
    for table in reversed(_NOTICES):
        table.drop(connection)


def _traced_jobs(connection: sa.Connection) -> None:
    """Version 7: jobs know the request that they follow from."""
    _add_columns(connection, [models.jobs.c.trace])


def _untraced_jobs(connection: sa.Connection) -> None:
    _drop_columns(connection, "jobs", ["trace"])


def _names_by_bytes(connection: sa.Connection) -> None:
    """Version 8: PostgreSQL finds owners by the beginning of their names, whatever its language."""
    if connection.dialect.name == "postgresql":
        models.owners_by_bytes.create(connection)


def _no_names_by_bytes(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":
        models.owners_by_bytes.drop(connection)


STEPS: dict[int, Migration] = {
    2: Migration(up=_second_secrets),
    3: Migration(up=_fair_turns),
    4: Migration(up=_jobs_of_many_processes, down=_jobs_of_one_process),
    5: Migration(up=_teams_and_guests, down=_no_teams_and_guests),
    6: Migration(up=_notices, down=_no_notices),
    7: Migration(up=_traced_jobs, down=_untraced_jobs),
    8: Migration(up=_names_by_bytes, down=_no_names_by_bytes),
}
"""By the version that a step leads to; each starts from the one before. A new database is made as `models` says."""


def migrate(connection: sa.Connection, now: float, *, to: int | None = None) -> int:
    """Bring the schema to version `to` (the newest), inside a transaction. Returns the version found. Only an explicit
    `to` goes back."""
    _check_encoding(connection)
    table = models.schema_version
    if not sa.inspect(connection).has_table(table.name):
        if to not in (None, models.SCHEMA_VERSION):
            raise SpecError("the database is empty: there is nothing to migrate")
        models.metadata.create_all(connection)
        connection.execute(table.insert().values(version=models.SCHEMA_VERSION, applied_at=now))
        return models.SCHEMA_VERSION
    found = connection.scalar(sa.select(sa.func.max(table.c.version))) or 0
    if found > models.SCHEMA_VERSION:
        raise StoreError(f"the database has schema {found}, this Harena knows {models.SCHEMA_VERSION}: update Harena")
    if found == models.SCHEMA_VERSION:
        integrity.check_schema(connection)
    target = models.SCHEMA_VERSION if to is None else to
    if not 1 <= target <= models.SCHEMA_VERSION:
        raise SpecError(f"no schema {target}: this Harena knows 1 to {models.SCHEMA_VERSION}")
    for version in range(found + 1, target + 1):
        STEPS[version].up(connection)
        connection.execute(table.insert().values(version=version, applied_at=now))
    for version in range(found, target, -1):
        down = STEPS[version].down
        if down is None:
            raise SpecError(f"there is no way back from schema {version}: restore a backup")
        down(connection)
        connection.execute(table.delete().where(table.c.version == version))
        if not connection.scalar(sa.select(sa.func.count()).select_from(table)):
            connection.execute(table.insert().values(version=version - 1, applied_at=now))
    return found


def _check_encoding(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
        if encoding != "UTF8":
            raise SpecError(f"the database's encoding is {encoding}: make one with `createdb --encoding UTF8`")
