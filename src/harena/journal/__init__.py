"""Append-only, hash-chained record of what crosses the border of a box: one file for each box.

`Journal` writes it (`Sandbox(journal=PATH)`), `verify` checks it, `steps` reads it as a trajectory.
Does not know boxes: `harena.sandbox.border` hands over what crosses, and replays it. docs/journal.md has the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harena.lazy import load_on_use as _load_on_use

__all__ = ["Journal", "JournalFolder", "JournalVerification", "labelled", "steps", "verify"]

if TYPE_CHECKING:
    from harena.journal.reader import JournalVerification as JournalVerification
    from harena.journal.reader import verify as verify
    from harena.journal.trajectory import steps as steps
    from harena.journal.writer import Journal as Journal
    from harena.journal.writer import JournalFolder as JournalFolder
    from harena.journal.writer import labelled as labelled

__getattr__, __dir__ = _load_on_use(
    globals(),
    {
        "harena.journal.reader": "JournalVerification verify",
        "harena.journal.trajectory": "steps",
        "harena.journal.writer": "Journal JournalFolder labelled",
    },
)
