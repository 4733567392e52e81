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
from harena.arena.db.models import ReadOnly, StorageFull, StoreError

HEADER = 100
MAGIC = b"SQLite format 3\0"
CHECKED_BYTES = 256 << 20
"""A larger file is not read through on opening: that would take seconds."""
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
NO_CHANGES = "the database is read-only, so nothing can be stored; what is there can be read"
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
def in_our_words(folder: Path) -> Generator[None]:
    """What SQLite says of a full, failing or read-only disk is no bug of ours, and may be over the next time. `folder`
    is that of the database."""
    try:
        yield
    except (sqlite3.DatabaseError, exc.DatabaseError) as error:
        cause, name = _cause(error)
        if name == "SQLITE_FULL":
            raise StorageFull("the disk of the database is full") from error
        if says_read_only(error):
            raise ReadOnly(NO_CHANGES) from error
        if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_BUSY")):
            # SQLite does not tell why a write failed.
            if not name.startswith("SQLITE_BUSY") and _refusal(folder) in UNWRITABLE:
                raise ReadOnly(NO_CHANGES) from error
            raise StoreError(f"the database cannot be used now: {cause}") from error
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise StoreError(f"the database is damaged ({cause}): {RESTORE}") from error
        raise


def says_read_only(error: BaseException) -> bool:
    return _cause(error)[1].startswith(("SQLITE_READONLY", "SQLITE_PERM"))


def _cause(error: BaseException) -> tuple[BaseException | None, str]:
    """What SQLite said, and its name for it."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    return cause, getattr(cause, "sqlite_errorname", "") or ""


@contextlib.contextmanager
def writing(what: str) -> Generator[None]:
    """An OSError for want of space is a StorageFull, one of a folder that takes no files a ReadOnly."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StorageFull(f"no space is left for {what}") from error
        if error.errno in UNWRITABLE:
            raise ReadOnly(f"{what} cannot be written: {error.strerror}") from error
        raise


def writable(folder: Path) -> str:
    """Why nothing can be written to the folder; empty: it can."""
    refusal = _refusal(folder)
    return f"nothing can be written to the data folder: {os.strerror(refusal)}" if refusal else ""


def unwritable(database: Path) -> str:
    """Why nothing can be written to the database file; empty: it can. Does not open it: to close it would end the locks
    that SQLite holds in this process."""
    files = [database, *(Path(f"{database}{ending}") for ending in ("-wal", "-shm"))]
    locked = any(path.exists() and not os.access(path, os.W_OK, effective_ids=True) for path in files)
    return NO_CHANGES if locked or _refusal(database.parent) in UNWRITABLE else ""


def _refusal(folder: Path) -> int:
    """Number of the error that a file in the folder cannot be written with; 0: it can."""
    name = folder / f".probe-{os.getpid()}"
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b"\0" * 4096)
        finally:
            os.close(handle)
            os.unlink(name)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
