"""Journals and accounts of sessions: where they are kept, and who may read them.

Guarantees: the journals of an owner are in a folder of their own, and are found by its owner alone; nothing is created
or run for an owner whose budget is used up.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harena.errors import SpecError
from harena.journal import JournalFolder
from harena.ledger.budget import check_label
from harena.sandbox.border.accounting import AccountObserver
from harena.sandbox.border.observed import Observer
from harena.sandbox.box import Sandbox
from harena.sessions.errors import NotFound

if TYPE_CHECKING:
    from harena.ledger.ledger import Ledger

MAX_OWNER_BYTES = 10 << 30
SESSION_ID = re.compile(r"[0-9a-f]{24}")


class Records:
    def __init__(
        self,
        ledger: Ledger | None = None,
        *,
        journals: str | os.PathLike[str] | None = None,
        key: bytes | None = None,
        max_bytes: int = MAX_OWNER_BYTES,
    ) -> None:
        """`journals`: a folder for the journals of all sessions, with one folder for each owner, which holds at most
        `max_bytes`. `key`: signs them."""
        self.ledger = ledger
        self._journals = None if journals is None else Path(journals)
        self._key, self._max_bytes = key, max_bytes
        self._folders: dict[str, JournalFolder] = {}
        self._lock = threading.Lock()

    def check(self, owner: str, run: str = "", agent: str = "") -> None:
        """Raise BudgetExceeded or SpecError before anything is created."""
        check_label("run", run)
        check_label("agent", agent)
        if self.ledger is not None:
            self.ledger.check(owner)

    def attach(self, box: Sandbox, owner: str, session_id: str, run: str = "", agent: str = "") -> None:
        """Account for a box from now on, and record it."""
        if self.ledger is not None:
            box.observe(AccountObserver(self.ledger.account(owner, run=run, agent=agent)))
        if self._journals is not None:
            labels = {"owner": owner, "session": session_id, "run": run, "agent": agent}
            given = {name: value for name, value in labels.items() if value}
            box.record(self._folder(owner).create(session_id, **given))

    def account_for(self, owner: str, run: str = "", agent: str = "") -> Callable[[], Observer] | None:
        """What makes the observers of boxes that are used for something without a session; None: nobody accounts."""
        if self.ledger is None:
            return None
        account = self.ledger.account(owner, run=run, agent=agent)
        return lambda: AccountObserver(account)

    def labels(self, box: Sandbox) -> tuple[str, str]:
        """The run and the agent that a box is charged to."""
        accounts = [one.account for one in box.observers if isinstance(one, AccountObserver)]
        return (accounts[0].run, accounts[0].agent) if accounts else ("", "")

    def journal(self, owner: str, session_id: str) -> Path:
        """The journal of a session of this owner, which may have ended."""
        if self._journals is None:
            raise SpecError("the server keeps no journals (--journal FOLDER)")
        if SESSION_ID.fullmatch(session_id):
            path = self._folder(owner).path(session_id)
            if path.is_file():
                return path
        raise NotFound(f"no session {session_id[:80]!r} with a journal, or it is not yours")

    def problems(self) -> dict[str, str]:
        """What cannot be written at present, and why. It names neither owners nor files."""
        with self._lock:
            folders = list(self._folders.values())
        journals = next((folder.failure for folder in folders if folder.failure), "")
        usage = "" if self.ledger is None else self.ledger.failure
        return {what: why for what, why in (("journals", journals), ("usage", usage)) if why}

    def _folder(self, owner: str) -> JournalFolder:
        assert self._journals is not None
        with self._lock:
            found = self._folders.get(owner)
            if found is None:
                folder = self._journals / f"owner-{owner}"  # a name such as .. stays inside
                found = self._folders[owner] = JournalFolder(folder, key=self._key, max_bytes=self._max_bytes)
            return found
