"""Garbage collection of files, and the thread that runs it.

Guarantees: a file that a row refers to stays readable, whatever uploads at the same time. A file that no row refers to
is first retired: set aside, but still read. Only a day later it is deleted, if there is still no reference; otherwise
it is taken back. So an upload has a day between storing a file, or finding it stored, and writing the row. The
collector may die at any point, and several may run at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from harena.arena.db.database import log_failure
from harena.arena.db.files import KeptFile, ObjectStore
from harena.arena.db.retention import Forgotten, short
from harena.arena.db.store import Store
from harena.arena.storage.rules import RetentionRules

GRACE_S = 86400.0
"""A file is younger than this: its row may be about to be written. As long again until it is deleted. Longer than
clocks of different machines may disagree."""
FIRST_S = 600.0
EVERY_S = 6 * 3600.0
DAY_S = 86400.0
_log = logging.getLogger("harena.arena.storage")


@dataclass(slots=True, kw_only=True)
class Collected:
    forgotten: Forgotten
    kept: int = 0
    kept_bytes: int = 0
    retired: int = 0
    retired_bytes: int = 0
    """Set aside now, to be deleted a day later."""
    restored: int = 0
    purged: int = 0
    purged_bytes: int = 0


def collect(
    store: Store, files: ObjectStore, rules: RetentionRules, *, dry_run: bool = False, grace_s: float = GRACE_S
) -> Collected:
    """Forget what the rules let go, then retire and delete files without references. `dry_run` changes nothing: what
    the rules would forget is then not counted either."""
    before = None if rules.keep_days is None else store.clock() - rules.keep_days * DAY_S
    forgotten = Forgotten()
    if not dry_run:
        forgotten = store.retention.forget(before=before, keep_matches=rules.keep_matches)
    done = Collected(forgotten=forgotten)
    now = time.time()
    # Listed before references are read: a file that comes later is not in the lists.
    kept = list(files.kept())
    retired = [one for one in files.retired() if one.changed_at < now - grace_s]
    needed = store.retention.references()
    for one in retired:
        _end(files, one, done, needed=short(one.digest) in needed, dry_run=dry_run)
    for one in kept:
        if short(one.digest) in needed or one.changed_at >= now - grace_s:
            done.kept += 1
            done.kept_bytes += one.size_bytes
            continue
        done.retired += 1
        done.retired_bytes += one.size_bytes
        if not dry_run:
            files.retire(one.digest)
    return done


def _end(files: ObjectStore, one: KeptFile, done: Collected, *, needed: bool, dry_run: bool) -> None:
    if needed:
        done.restored += 1
    else:
        done.purged += 1
        done.purged_bytes += one.size_bytes
    if not dry_run:
        (files.restore if needed else files.purge)(one.digest)


class Janitor:
    """Collects every few hours in the process that leads."""

    def __init__(
        self,
        store: Store,
        files: ObjectStore,
        rules: RetentionRules,
        *,
        leads: Callable[[], bool],
        first_s: float = FIRST_S,
    ) -> None:
        self._store = store
        self._files = files
        self._rules = rules
        self._leads = leads
        self._first_s = first_s
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="harena-janitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        wait_s = self._first_s
        while not self._ending.wait(wait_s):
            wait_s = EVERY_S
            try:
                if self._leads():
                    done = collect(self._store, self._files, self._rules)
                    _log.info(
                        "files: %d kept, %d retired, %d deleted; replays and logs of %d matches and %d submissions "
                        "forgotten",
                        done.kept,
                        done.retired,
                        done.purged,
                        done.forgotten.matches,
                        done.forgotten.submissions,
                    )
            except Exception as error:
                log_failure(_log, "files could not be collected; will try again", error)
