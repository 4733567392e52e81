"""Ledger of usage by day, owner, run and agent: in memory, and with a path in an SQLite file.

Guarantees: charges are on file within FLUSH_S, and when the ledger is closed; a killed process loses at most those of
the last FLUSH_S. While the file cannot be written, charges are kept in memory, and count for usage and budgets. Labels
that clients choose take a bounded number of rows. Thread-safe.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from harena.errors import BudgetExceeded, SpecError
from harena.ledger.budget import NAMES, Counts, OwnerBudget, check_label, first_day, today

FLUSH_S = 1.0
MAX_GROUPS = 1000
"""Pairs of run and agent of one owner and day; the usage of more is added up as OTHER."""
OTHER = "(other)"
VERSION = 1
LATENCIES = 512
"""Latest executions of an owner whose times are kept for percentiles."""
GROUPS = ("day", "owner", "run", "agent")

log = logging.getLogger("harena.ledger")

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, owner TEXT NOT NULL, run TEXT NOT NULL, agent TEXT NOT NULL,
    {", ".join(f"{name} {'REAL' if name.endswith('_s') else 'INTEGER'} NOT NULL DEFAULT 0" for name in NAMES)},
    PRIMARY KEY (day, owner, run, agent)
) WITHOUT ROWID
"""
UNWRITTEN = "CREATE TEMP TABLE unwritten AS SELECT * FROM usage LIMIT 0"
"""Charges that are not on file, for queries. It is in memory."""
COLUMNS = f"(day, owner, run, agent, {', '.join(NAMES)}) VALUES ({', '.join('?' * (4 + len(NAMES)))})"
UPSERT = (
    f"INSERT INTO usage {COLUMNS} "
    f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in NAMES)}"
)

Key = tuple[str, str, str, str]


@dataclass(slots=True)
class _Stats:
    """What one owner's executions were like since the ledger was opened."""

    verdicts: dict[str, int] = field(default_factory=dict[str, int])
    latencies: deque[float] = field(default_factory=lambda: deque[float](maxlen=LATENCIES))


class Account:
    """Charges one owner, run and agent."""

    def __init__(self, ledger: Ledger, owner: str, run: str, agent: str) -> None:
        self._ledger = ledger
        self.owner, self.run, self.agent = owner, run, agent

    def check(self) -> None:
        """Raise BudgetExceeded if the owner has used up its budget."""
        self._ledger.check(self.owner)

    def charge(self, counts: Counts, *, run: str = "", verdicts: tuple[str, ...] = (), latency_s: float = 0.0) -> None:
        """`run` counts where the account has none."""
        self._ledger.charge(self.owner, self.run or run, self.agent, counts, verdicts, latency_s)


class Ledger:
    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, budgets: Mapping[str, OwnerBudget] | None = None
    ) -> None:
        """`path`: a file that may exist already. `budgets`: by owner; "*" for those without one of their own."""
        self._budgets = dict(budgets or {})
        self._lock = threading.RLock()
        self._pending: dict[Key, Counts] = {}
        self._groups: dict[tuple[str, str], set[tuple[str, str]]] = {}
        self._stats: dict[str, _Stats] = {}
        self._spent: dict[str, tuple[str, Counts]] = {}
        self._closed = threading.Event()
        self._writer: threading.Thread | None = None
        self.failure = ""
        """Why the file cannot be written; empty if it can."""
        self._db = _connect(path)

    @classmethod
    def open_to_read(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open the file of a ledger that another process may be writing."""
        ledger = cls()
        ledger._db.close()
        ledger._db = _connect_to_read(path)
        return ledger

    def account(self, owner: str, *, run: str = "", agent: str = "") -> Account:
        return Account(self, owner, check_label("run", run), check_label("agent", agent))

    # ---- charges and budgets ----

    def charge(
        self, owner: str, run: str, agent: str, counts: Counts, verdicts: tuple[str, ...], latency_s: float
    ) -> None:
        day = today()
        with self._lock:
            run, agent = self._group(day, owner, run, agent)
            self._pending.setdefault((day, owner, run, agent), Counts()).add(counts)
            if owner in self._spent:
                self._spent[owner][1].add(counts)
            if verdicts:
                stats = self._stats.setdefault(owner, _Stats())
                stats.latencies.append(latency_s)
                for verdict in verdicts:
                    stats.verdicts[verdict] = stats.verdicts.get(verdict, 0) + 1
            if self._writer is None and not self._closed.is_set():
                self._writer = threading.Thread(target=self._write, name="harena-ledger", daemon=True)
                self._writer.start()

    def _group(self, day: str, owner: str, run: str, agent: str) -> tuple[str, str]:
        """The labels to charge: OTHER once a client has used too many."""
        known = self._groups.get((day, owner))
        if known is None:
            rows = self._db.execute("SELECT run, agent FROM usage WHERE day = ? AND owner = ?", (day, owner))
            self._groups = {key: groups for key, groups in self._groups.items() if key[0] == day}  # not of other days
            known = self._groups[(day, owner)] = set(rows)
        if (run, agent) not in known and len(known) >= MAX_GROUPS:
            return OTHER, OTHER
        known.add((run, agent))
        return run, agent

    def budget(self, owner: str) -> OwnerBudget | None:
        return self._budgets.get(owner) or self._budgets.get("*")

    def check(self, owner: str) -> None:
        """Raise BudgetExceeded if the owner has used up its budget. What runs already is not ended."""
        budget = self.budget(owner)
        if budget is None:
            return
        with self._lock:
            spent = budget.spent(self._used(owner, budget))
        if spent:
            when = {"day": "; it begins anew tomorrow (UTC)", "month": "; it begins anew next month (UTC)"}
            raise BudgetExceeded(f"the budget of {owner} is used up: {spent}{when.get(budget.per, '')}")

    def _used(self, owner: str, budget: OwnerBudget) -> Counts:
        since = first_day(budget.per)
        if self._spent.get(owner, ("?",))[0] != since:
            used = Counts()
            for row in self.usage(owner=owner, since=since, by=()):
                used.add(Counts(**{name: row[name] for name in NAMES}))
            self._spent[owner] = since, used
        return self._spent[owner][1]

    # ---- reading ----

    def usage(
        self, *, owner: str | None = None, since: str = "", by: tuple[str, ...] = GROUPS, limit: int = 100_000
    ) -> list[dict[str, Any]]:
        """Return what was used, added up by day, owner, run or agent; of one owner, or of all."""
        if not set(by) <= set(GROUPS):
            raise SpecError(f"by: {', '.join(GROUPS)}")
        chosen = "".join(f"{name}, " for name in by)
        sums = ", ".join(f"SUM({name}) AS {name}" for name in NAMES)
        query = f"SELECT {chosen}{sums} FROM {{}} WHERE day >= ?1 AND (?2 IS NULL OR owner = ?2)"
        if by:
            query += f" GROUP BY {', '.join(by)} ORDER BY {', '.join(by)} LIMIT {int(limit)}"
        with self._lock:
            self.flush()
            cursor = self._db.execute(query.format(self._table()), (since, owner))
            names = [one[0] for one in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        return [row for row in rows if row["executions"] is not None]

    def stats(self, owner: str) -> dict[str, Any]:
        """Verdicts, and percentiles of the latest executions, since the ledger was opened."""
        with self._lock:
            stats = self._stats.get(owner, _Stats())
            verdicts, latencies = dict(sorted(stats.verdicts.items())), sorted(stats.latencies)
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        found = {name: _percentile(latencies, share) for name, share in shares.items()} if latencies else {}
        return {"verdicts": verdicts, "latency_ms": {name: round(value * 1000, 3) for name, value in found.items()}}

    # ---- the file ----

    def flush(self) -> None:
        with self._lock:
            if not self._pending:
                return
            try:
                with self._db:
                    self._db.executemany(UPSERT, self._rows())
            except sqlite3.Error as error:
                if not self.failure:
                    log.error("the ledger cannot be written, and keeps its charges in memory: %s", error)
                self.failure = str(error)
                return
            if self.failure:
                log.warning("the ledger can be written again, and no charge was lost")
            self.failure = ""
            self._pending.clear()

    def _rows(self) -> list[tuple[str | float, ...]]:
        return [(*key, *(getattr(counts, name) for name in NAMES)) for key, counts in self._pending.items()]

    def _table(self) -> str:
        """What to query: the file, and charges that could not be written to it."""
        if not self._pending:
            return "usage"
        with self._db:
            self._db.execute("DELETE FROM unwritten")
            self._db.executemany(f"INSERT INTO unwritten {COLUMNS}", self._rows())
        return "(SELECT * FROM usage UNION ALL SELECT * FROM unwritten)"

    def _write(self) -> None:
        while not self._closed.wait(FLUSH_S):
            self.flush()

    def close(self) -> None:
        """Write everything. Idempotent."""
        self._closed.set()
        with self._lock:
            self.flush()
            if self._pending:
                log.error("charges are lost, because the ledger cannot be written: %s", self._rows())
        if self._writer is not None:
            self._writer.join()
        self._db.close()


def _connect(path: str | os.PathLike[str] | None) -> sqlite3.Connection:
    try:
        if path is not None:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(":memory:" if path is None else os.fspath(path), check_same_thread=False, timeout=30)
        if path is not None:
            db.execute("PRAGMA journal_mode = WAL")
        [version] = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise SpecError(f"{path}: a ledger of another version ({version}); this one reads {VERSION}")
        with db:
            db.execute(SCHEMA)
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute(UNWRITTEN)
        return db
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except sqlite3.OperationalError as error:
        raise SpecError(f"{path}: the ledger cannot be opened: {error}") from None
    except sqlite3.Error as error:
        raise SpecError(f"{path}: not a ledger: {error}") from None


def _connect_to_read(path: str | os.PathLike[str]) -> sqlite3.Connection:
    if not os.path.isfile(path):
        raise SpecError(f"{path}: not a file")
    try:
        db = sqlite3.connect(f"file:{quote(os.fspath(path))}?mode=ro", uri=True, timeout=30)
        [version] = db.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        raise SpecError(f"{path}: not a ledger: {error}") from None
    if version != VERSION:
        raise SpecError(f"{path}: not a ledger, or one of another version")
    return db


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
