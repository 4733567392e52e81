"""A process's place at a PostgreSQL server: it is counted among those that serve the database, and hears at once what
the others commit.

Guarantees: the first process of all is told that it is alone, and the next ones wait until it has settled in; commits
of other processes reach `heard` in their order, and after a break in the connection `heard` is told that anything may
have changed. Notices say that there is something to read, never what: the tables are the truth.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from harena.arena.db.server.locks import SERVING, own_connection

CHANNEL = "harena"
ANYTHING = "*"
"""Stands for all that could have changed."""
AGAIN_S = 0.5
_log = logging.getLogger("harena.arena")


class Presence:
    def __init__(self, engine: sa.Engine, token: str, heard: Callable[[frozenset[str]], object]) -> None:
        self._engine = engine
        self._token = token
        self._heard = heard
        self._connection: Any = None
        self._thread: threading.Thread | None = None
        self._ending = False
        self._wake, self._woken = os.pipe()

    def join(self, wait_s: float) -> bool | None:
        """Whether no other process serves the database; None: one is starting, and did not settle in in time. When
        alone, others wait until `settle`."""
        connection = own_connection(self._engine)
        try:
            alone = _one(connection, "SELECT pg_try_advisory_lock(%s::bigint)")
            end = time.monotonic() + wait_s
            while not alone and not _one(connection, "SELECT pg_try_advisory_lock_shared(%s::bigint)"):
                if time.monotonic() >= end:
                    connection.close()
                    return None
                time.sleep(0.05)
                alone = _one(connection, "SELECT pg_try_advisory_lock(%s::bigint)")
            connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return alone

    def settle(self) -> None:
        """Let others in, and begin to listen."""
        _one(self._connection, "SELECT pg_advisory_lock_shared(%s::bigint) IS NULL")
        while _one(self._connection, "SELECT pg_advisory_unlock(%s::bigint)", quiet=True):
            pass
        self._thread = threading.Thread(target=self._run, name="harena-presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Idempotent."""
        if self._ending:
            return
        self._ending = True
        os.write(self._woken, b"x")
        if self._thread is not None:
            self._thread.join()
        self._drop()
        os.close(self._wake)
        os.close(self._woken)

    def _run(self) -> None:
        while not self._ending:
            try:
                if self._connection is None:
                    self._return()
                self._listen()
            except Exception as error:
                if not self._ending:
                    _log.warning("the database's notices are lost for now: %s", str(error).partition("\n")[0])
                self._drop()
                select.select([self._wake], [], [], AGAIN_S)

    def _return(self) -> None:
        connection = own_connection(self._engine)
        try:
            connection.execute(f"LISTEN {CHANNEL}")
            connection.execute("SELECT pg_try_advisory_lock_shared(%s::bigint)", [SERVING])
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._heard(frozenset({ANYTHING}))

    def _listen(self) -> None:
        connection = self._connection
        while not self._ending:
            for notice in connection.notifies(timeout=0):
                sender, _, changes = notice.payload.partition(" ")
                if sender != self._token:
                    self._heard(frozenset(changes.split("\n")))
            select.select([connection.fileno(), self._wake], [], [])

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


def new_token() -> str:
    return secrets.token_hex(8)


def _one(connection: Any, query: str, *, quiet: bool = False) -> bool:
    cursor = connection.cursor()
    if quiet:  # the server warns of a lock that is not held, as is meant
        connection.execute("SET client_min_messages = error")
    return bool(cursor.execute(query, [SERVING]).fetchone()[0])
