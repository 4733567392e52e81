"""Transactions over a database that a URL names. The only module that knows which database it is.

Guarantees: one writer at a time, readers never wait for it; what one `begin()` block writes is there as a whole or not
at all, whenever the process dies, and numbers that the database counts out become visible in their order; the schema is
brought up to date on opening, and a database of a newer Harena is refused. On SQLite a loss of power may take the last
moments with it unless `synchronous="full"`; a killed process loses nothing. PostgreSQL is chosen by its URL and gives
the same; only `single()` lets its writers work side by side. Threads may share one; a process opens its own. Who asked
with `on_commit` is told what a transaction of this process has changed, after it is there for all to see.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite

from harena.arena.db import integrity, migrations
from harena.arena.db.models import ReadOnly, StorageFull, StoreError
from harena.arena.db.server.locks import WRITER, Leadership
from harena.arena.db.server.presence import ANYTHING, CHANNEL, Presence, new_token
from harena.errors import BackendUnavailable, SpecError

BUSY_S = 30.0
"""How long a write waits for another process's. A transaction of ours takes milliseconds at most."""
CONNECT_S = 10
IDLE_S = 1.0
JOIN_S = 60.0
"""How long a process waits for another one that is just starting on the same database."""
LEAD_S = 5.0
"""How long `hold` waits: a server needs a moment to see that a process was killed."""
PRAGMAS = (
    f"PRAGMA busy_timeout={int(BUSY_S * 1000)}",
    "PRAGMA journal_mode=WAL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-32768",  # 32 MiB
    "PRAGMA mmap_size=268435456",
    "PRAGMA journal_size_limit=67108864",
)
_log = logging.getLogger("harena.arena")
_TURN = sa.select(sa.func.pg_advisory_xact_lock(WRITER))
_NOTIFY = sa.select(sa.func.pg_notify(CHANNEL, sa.bindparam("words")))

Changes = frozenset[str]
"""What a transaction has noted: "events", and "jobs:KIND" for each kind of job that was added, ended or given back."""


class DatabaseInUse(SpecError):
    """Another process does what only one may do on this database: stop it, or choose another database."""


class Database:
    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        synchronous: Literal["normal", "full"] = "normal",
    ) -> None:
        """`url` as SQLAlchemy reads it: "sqlite:////data/arena.db", "postgresql://…"."""
        self.clock = clock
        self.steady: Callable[[], float] = time.monotonic if clock is time.time else clock
        """Measures how long something takes: it does not jump when the machine's clock is set."""
        self.engine = _engine(url, synchronous)
        self._local = threading.local()
        self._listeners: tuple[Callable[[Changes], object], ...] = ()
        self.relay: Callable[[Changes], object] | None = None
        """Called after each commit of this process that noted a change, to tell other processes. It must be quick."""
        embedded = self.engine.dialect.name == "sqlite"
        self._writer = _OneWriter(self.engine) if embedded else _OneInTurn(self.engine)
        # A statement outside of `begin()` is on its own on both, and PostgreSQL need not be told where it ends.
        self._alone = self.engine if embedded else self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._file = Path(str(self.engine.url.database)) if embedded else None
        self._told = functools.partial(integrity.in_our_words, self._file.parent) if self._file else _in_our_words
        self._token = new_token()
        self._presence: Presence | None = None
        self._singles = None if embedded else _Singles(url)
        self.leadership = Leadership(self.engine)
        self._insert = sqlite.insert if embedded else postgresql.insert
        try:
            with self.begin() as connection:
                migrations.migrate(connection, self.clock())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._presence is not None:
            self._presence.close()
        self.leadership.release()
        self._writer.close()
        if self._singles is not None:
            self._singles.close()
        self.engine.dispose()

    def join(self) -> bool:
        """Count this process among those that serve the database, until it is closed or ends. Returns whether it is
        alone; then the others wait until it calls `settle`. Raises DatabaseInUse when another one is starting and takes
        too long. An SQLite file has no such count: whoever serves it has locked its folder."""
        if self.engine.dialect.name == "sqlite":
            return True
        with self._told():
            presence = Presence(self.engine, self._token, self.heard)
            alone = presence.join(JOIN_S)
        if alone is None:
            raise DatabaseInUse("another process is starting on this database and does not finish: look at it first")
        self._presence = presence
        return alone

    def settle(self) -> None:
        """After `join`: let other processes in, and hear of what they commit."""
        if self._presence is not None:
            with self._told():
                self._presence.settle()

    def hold(self) -> None:
        """Keep every matchmaker away until this is closed. Raises DatabaseInUse while one leads."""
        deadline = time.monotonic() + LEAD_S
        while not self.leadership.lead():
            if time.monotonic() >= deadline:
                raise DatabaseInUse("an arena makes matches on this database: stop it first")
            time.sleep(0.1)

    @contextmanager
    def begin(self) -> Generator[sa.Connection]:
        """A write transaction. Inside another one of the same thread it joins it: the outermost commits. A method of
        the store that raises one of `models`' errors or a SpecError has written nothing, so a block may go on."""
        joined = self._joined()
        if joined is not None:
            yield joined
            return
        self._local.changes = changes = set[str]()
        with self._told(), self._writer.begin() as connection:
            self._local.connection = connection
            try:
                yield connection
                if changes and self._singles is not None:
                    connection.execute(_NOTIFY, {"words": f"{self._token} " + "\n".join(changes)})
            finally:
                self._local.connection = None
        if changes:
            self.heard(frozenset(changes))
            if self.relay is not None:
                self.relay(frozenset(changes))

    @contextmanager
    def single(self) -> Generator[sa.Connection]:
        """Open a connection for one statement that checks and changes its rows by itself, as a claim does, and notes
        nothing: on PostgreSQL it does not wait for the writer. Inside `begin()` it is a part of that."""
        if self._joined() is not None or self._singles is None:
            with self.begin() as connection:
                yield connection
            return
        with self._told(), self._singles.connect() as connection:
            yield connection

    def change_one(self, statement: sa.Executable, values: dict[str, Any]) -> sa.RowMapping | dict[str, Any] | None:
        """Execute such a single statement and return its row. `statement` is a constant: on PostgreSQL it is compiled
        and prepared once and goes straight to the driver, because SQLAlchemy takes longer than the server does."""
        if self._joined() is not None or self._singles is None:
            with self.single() as connection:
                return connection.execute(statement, values).mappings().first()
        with self._told(), self._singles.connect() as connection:
            return self._singles.change_one(connection, statement, values)

    def note(self, change: str) -> None:
        """Inside `begin()`: what to tell the listeners of, once it is committed."""
        self._local.changes.add(change)

    def on_commit(self, listener: Callable[[Changes], object]) -> Callable[[], None]:
        """Has `listener` called after each commit that noted a change: of this process by the thread that committed, so
        it must be quick; of others, on PostgreSQL after `settle`, as soon as they are heard of. Returns what ends
        that."""
        self._listeners += (listener,)

        def remove() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return remove

    def heard(self, changes: Changes) -> None:
        """Tell the listeners of changes, of this process or of another one."""
        for listener in self._listeners:
            try:
                listener(changes)
            except Exception:  # what was written is written
                _log.exception("a listener for commits failed")

    @contextmanager
    def read(self) -> Generator[sa.Connection]:
        """Open a connection for queries. Inside `begin()` they see what it wrote."""
        joined = self._joined()
        if joined is not None:
            yield joined
            return
        with self._told(), self._alone.connect() as connection:
            yield connection

    def problem(self) -> str:
        """Why nothing can be written; empty: it can, as far as one can tell without writing."""
        if self._file is not None:
            return integrity.unwritable(self._file)
        with self.read() as connection:
            setting = connection.exec_driver_sql("SHOW transaction_read_only").scalar_one()
        return integrity.NO_CHANGES if setting == "on" else ""

    def insert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """An INSERT that knows ON CONFLICT."""
        return self._insert(table)

    def row(self, statement: sa.Executable, values: Mapping[str, Any] | None = None) -> sa.RowMapping | None:
        with self.read() as connection, _storable_values():
            return connection.execute(statement, values).mappings().first()

    def rows(self, statement: sa.Executable, values: Mapping[str, Any] | None = None) -> list[sa.RowMapping]:
        with self.read() as connection, _storable_values():
            return list(connection.execute(statement, values).mappings())

    def _joined(self) -> sa.Connection | None:
        return getattr(self._local, "connection", None)


class _OneWriter:
    """SQLite has one writer at a time. Threads queue for it here, because SQLite's own way of waiting is to sleep and
    look again, and share its connection, because getting one from the pool costs more than a claim."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.turn = threading.Lock()
        self.connection: sa.Connection | None = None
        self.read_only = False
        """Whether the last connection could only read."""

    @contextmanager
    def begin(self) -> Generator[sa.Connection]:
        with self.turn:
            if self.connection is None:
                if self.read_only:
                    # Those in the pool hold files that were opened for reading.
                    self.engine.dispose()
                    self.read_only = False
                self.connection = self.engine.connect()
                self.driver: Any = self.connection.connection.dbapi_connection
            try:
                self.driver.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.commit()
                self.driver.commit()
            except BaseException as error:
                self._roll_back(error)
                raise

    def _roll_back(self, error: BaseException) -> None:
        # A disk that has become read-only would be opened for reading, so the connection is kept where it can be: it
        # writes again as soon as the disk does.
        self.read_only = integrity.says_read_only(error)
        if not self.read_only and self.connection is not None:
            with contextlib.suppress(sqlite3.Error, exc.SQLAlchemyError):
                self.connection.rollback()
                self.driver.rollback()
                return
        self._drop()

    def close(self) -> None:
        with self.turn:
            self._drop()

    def _drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class _OneInTurn:
    """PostgreSQL has many writers at a time. Here they queue, threads before they take a connection and processes by a
    lock that ends with the transaction, after it can be seen. So nobody counts on what another is about to change, no
    two wait for each other, and who has read up to an event's number has missed none below it."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.turn = threading.Lock()

    @contextmanager
    def begin(self) -> Generator[sa.Connection]:
        with self.turn, self.engine.begin() as connection:
            connection.execute(_TURN)
            yield connection

    def close(self) -> None:
        pass


class _Singles:
    """Connections for single statements. A commit there does not wait for the disk: a claim or a heartbeat that a crash
    of the server takes back is made again, and what a job decided is committed as everything else is. One that has been
    idle is asked whether it still works; asking each time would double the cost of a claim."""

    def __init__(self, url: str) -> None:
        parsed = sa.make_url(url)
        self._engine = _postgresql(parsed, isolation_level="AUTOCOMMIT", pool_pre_ping=False)
        event.listen(self._engine, "connect", _relaxed)
        self._idle: list[tuple[sa.Connection, float]] = []
        self._prepared: dict[sa.Executable, _Prepared] = {}

    def change_one(
        self, connection: sa.Connection, statement: sa.Executable, values: dict[str, Any]
    ) -> sa.RowMapping | dict[str, Any] | None:
        prepared = self._prepared.get(statement)
        if prepared is None:
            prepared = self._prepared[statement] = _Prepared(statement, self._engine.dialect)
        if not prepared.fixed:
            return connection.execute(statement, values).mappings().first()
        driver: Any = connection.connection.dbapi_connection
        dbapi: Any = self._engine.dialect.dbapi
        try:
            row = driver.execute(prepared.text, prepared.constants | values, prepare=True).fetchone()
        except (dbapi.OperationalError, dbapi.InterfaceError, dbapi.InternalError) as error:
            raise _server_error(error) or error from error
        return None if row is None else prepared.decoded(row)

    @contextmanager
    def connect(self) -> Generator[sa.Connection]:
        connection = self._usable() or self._engine.connect()
        try:
            yield connection
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        self._idle.append((connection, time.monotonic()))

    def _usable(self) -> sa.Connection | None:
        while self._idle:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since < IDLE_S:
                return connection
            try:
                connection.exec_driver_sql("SELECT 1")
                return connection
            except exc.SQLAlchemyError:
                connection.close()
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()
        self._engine.dispose()


class _Prepared:
    """A statement in the driver's words, for values that need no conversion."""

    def __init__(self, statement: Any, dialect: sa.Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        self.fixed = not compiled.post_compile_params
        """Whether its text is the same for all values; a list has as many places as it has members."""
        self.text = str(compiled)
        self.constants: dict[str, Any] = {}
        for name, value in compiled.params.items():
            kind: Any = compiled.binds[name].type
            self.constants[name] = kind.process_bind_param(value, dialect) if _is_ours(kind) else value
        columns: list[Any] = list(statement.exported_columns)
        self._dialect = dialect
        self._names: list[str] = [column.name for column in columns]
        self._ours: dict[str, Any] = {column.name: column.type for column in columns if _is_ours(column.type)}

    def decoded(self, row: Sequence[Any]) -> dict[str, Any]:
        found = dict(zip(self._names, row, strict=True))
        for name, kind in self._ours.items():
            found[name] = kind.process_result_value(found[name], self._dialect)
        return found


def _is_ours(kind: Any) -> bool:
    """Whether it converts values in Python: the driver knows all other types."""
    return isinstance(kind, sa.TypeDecorator)


def _relaxed(connection: Any, _: object) -> None:
    connection.execute("SET synchronous_commit = off")
    connection.commit()


@contextmanager
def _storable_values() -> Generator[None]:
    """A search for what cannot be in a database, such as half a surrogate pair or 10**30, is the caller's error."""
    try:
        yield
    except (UnicodeEncodeError, OverflowError, exc.DataError) as error:
        raise SpecError("a value that no database can hold") from error


@contextmanager
def _in_our_words() -> Generator[None]:
    """A server that is away, shuts down, or lets us wait too long is no bug, and may be back the next time."""
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.InternalError) as error:
        raise _server_error(error.orig) or error from error
    except exc.TimeoutError as error:
        raise StoreError("the database cannot be used now: all connections are in use") from error


def _server_error(error: BaseException | None) -> StoreError | None:
    """What an error of PostgreSQL means to us; None: it is a bug. The numbers are its error codes."""
    state: str = getattr(error, "sqlstate", None) or ""
    if state == "25006":  # also on a standby
        return ReadOnly(integrity.NO_CHANGES)
    if state == "53100":
        return StorageFull("the disk of the database is full")
    if state and state[:2] in ("25", "2D", "XX"):  # InternalError
        return None
    return StoreError(f"the database cannot be used now: {_first_line(error)}")


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0] or "the connection was lost"


def touches(changes: Changes, what: str) -> bool:
    """Whether it may have changed."""
    return what in changes or ANYTHING in changes


def log_failure(log: logging.Logger, what: str, error: Exception) -> None:
    """One line for a database that is away, which its host can mend; the traceback for what is our fault."""
    log.error("%s: %s", what, error, exc_info=not isinstance(error, StoreError))


def columns(table: sa.Table, record: type) -> list[sa.Column[Any]]:
    """Those of the table that the dataclass has fields for."""
    names = [field.name for field in dataclasses.fields(record)]
    return [table.c[name] for name in names if name in table.c]


def _engine(url: str, synchronous: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except exc.ArgumentError as error:
        raise SpecError("the database's URL is of the form sqlite:////folder/arena.db or postgresql://…") from error
    name = parsed.get_backend_name()
    if name == "postgresql":
        return _postgresql(parsed)
    if name != "sqlite":
        raise SpecError(f"no support for {name} databases: use sqlite or postgresql")
    if parsed.database in (None, "", ":memory:"):
        raise SpecError("SQLite needs a file, as in sqlite:////data/arena.db: workers share it")
    integrity.check_file(Path(str(parsed.database)))
    engine = sa.create_engine(parsed, pool_size=16, max_overflow=48, pool_timeout=BUSY_S)

    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver starts no transactions of its own
        for pragma in (*PRAGMAS, f"PRAGMA synchronous={synchronous}"):
            connection.execute(pragma).close()

    event.listen(engine, "connect", connected)
    return engine


def _postgresql(url: sa.URL, **more: Any) -> sa.Engine:
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise SpecError(f"no support for the driver of {url.drivername}: use postgresql://…")
    ours = {"connect_timeout": str(CONNECT_S), "application_name": "harena", "client_encoding": "utf8"}
    url = url.set(drivername="postgresql+psycopg")
    url = url.update_query_dict({name: value for name, value in ours.items() if name not in url.query})
    try:
        # A connection from the pool is asked first whether it still is one: the server may have been restarted.
        options: dict[str, Any] = {"pool_size": 16, "max_overflow": 32, "pool_timeout": BUSY_S, "pool_pre_ping": True}
        engine = sa.create_engine(url, **options | more)
    except ImportError as error:
        raise BackendUnavailable("a PostgreSQL database needs psycopg: pip install 'harena[postgres]'") from error

    def connected(connection: Any, _: object) -> None:
        connection.execute(f"SET lock_timeout = {int(BUSY_S * 1000)}")
        connection.commit()

    event.listen(engine, "connect", connected)
    return engine
