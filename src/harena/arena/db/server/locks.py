"""Advisory locks of PostgreSQL that a process holds for as long as its connection lives.

Guarantees: one process leads at a time; when it dies, or its connection does, another can. A leader that lost its
connection learns of it at its next `lead`. What a leader writes must be safe to write twice all the same: between the
loss and that call two processes may believe that they lead.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

KEEPALIVE = "SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
"""So that the server learns within a minute of a machine that lost its power."""
WRITER, SERVING, LEADER = 0x6861_7265_6E61, 0x6861_7265_6E62, 0x6861_7265_6E63
"""Numbers of our choice ("harena" and on): whose turn it is to write, who serves the database, who makes matches."""


def own_connection(engine: sa.Engine) -> Any:
    """Open a connection of the driver outside of the pool, in autocommit mode."""
    pooled = engine.raw_connection()
    connection: Any = pooled.dbapi_connection
    pooled.detach()
    connection.autocommit = True
    connection.execute(KEEPALIVE)
    return connection


class Leadership:
    """Whether this process is the one that makes matches. On SQLite it always is: its folder is locked."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._embedded = engine.dialect.name == "sqlite"
        self._connection: Any = None
        self._leads = False
        self._lock = threading.Lock()

    def lead(self) -> bool:
        """Take or keep the lead. False while another process has it, or the server cannot be reached."""
        if self._embedded:
            return True
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = own_connection(self._engine)
                if self._leads:
                    self._connection.execute("SELECT 1")  # the lock lives as long as this connection
                else:
                    tried = self._connection.execute("SELECT pg_try_advisory_lock(%s::bigint)", [LEADER])
                    self._leads = tried.fetchone()[0]
                return self._leads
            except Exception as error:
                self._drop()
                if isinstance(error, exc.SQLAlchemyError) or type(error).__module__.startswith("psycopg"):
                    return False
                raise

    def release(self) -> None:
        """Idempotent."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection, self._leads = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
