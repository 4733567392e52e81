"""Checks of an existing SQLite database before it is opened, and words for what can go wrong with its file.

Guarantees: a file that is no database, is cut short or damaged, or lacks a table or column of its schema is refused in
one sentence, before anything is written to it. Does not repair: a backup does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Generator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc

from harena.arena.db import models
from harena.arena.db.models import StorageFull, StoreError

HEADER = 100
MAGIC = b"SQLite format 3\0"
CHECKED_BYTES = 256 << 20
"""A larger file is not read through on opening: that would take seconds."""
FULL = (errno.ENOSPC, errno.EDQUOT)
RESTORE = "restore it from a backup (`harena restore`)"


def check_file(path: Path) -> None:
    """Raises StoreError. A file that is not there, or empty, is about to be made."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            header = file.read(HEADER)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"the database {path} cannot be read: {error.strerror}") from None
    if not size:
        return
    if len(header) < HEADER or not header.startswith(MAGIC):
        raise StoreError(f"{path} is not an SQLite database: {RESTORE}, or choose another folder")
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(header[28:32], "big")
    if header[24:28] == header[92:96] and size < page * pages:
        raise StoreError(f"the database {path} is cut short, {size} of {page * pages} bytes are left: {RESTORE}")
    if size <= CHECKED_BYTES:
        _check_pages(path)


def _check_pages(path: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError:
        return  # locked, or its folder cannot be written: opening it says so
    except sqlite3.DatabaseError as error:
        raise StoreError(f"the database {path} is damaged ({error}): {RESTORE}") from None
    if found != "ok":
        raise StoreError(f"the database {path} is damaged ({str(found).splitlines()[-1]:.200}): {RESTORE}")


def check_schema(connection: sa.Connection) -> None:
    """Check that a database has every table and column of its schema version. Raises StoreError."""
    inspector = sa.inspect(connection)
    there = set(inspector.get_table_names())
    for table in models.metadata.sorted_tables:
        if table.name not in there:
            raise StoreError(f"the database lacks the table {table.name}, so it was changed by hand: {RESTORE}")
        columns = {column["name"] for column in inspector.get_columns(table.name)}
        missing = [column.name for column in table.columns if column.name not in columns]
        if missing:
            raise StoreError(
                f"the table {table.name} lacks the column {missing[0]}, so the database was changed by hand: {RESTORE}"
            )


@contextlib.contextmanager
def in_our_words() -> Generator[None]:
    """What SQLite says of a full or failing disk is no bug of ours, and may be over the next time."""
    try:
        yield
    except (sqlite3.DatabaseError, exc.DatabaseError) as error:
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        name = getattr(cause, "sqlite_errorname", "") or ""
        if name == "SQLITE_FULL":
            raise StorageFull("the disk of the database is full") from error
        if name.startswith(("SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_BUSY")):
            raise StoreError(f"the database cannot be used now: {cause}") from error
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise StoreError(f"the database is damaged ({cause}): {RESTORE}") from error
        raise


@contextlib.contextmanager
def writing(what: str) -> Generator[None]:
    """An OSError for want of space is a StorageFull."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StorageFull(f"no space is left for {what}") from error
        raise


def writable(folder: Path) -> str:
    """Why nothing can be written to the folder; empty: it can."""
    name = folder / f".probe-{os.getpid()}"
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b"\0" * 4096)
        finally:
            os.close(handle)
            os.unlink(name)
    except OSError as error:
        return f"nothing can be written to the data folder: {error.strerror}"
    return ""
