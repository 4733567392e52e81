"""Observer that writes a journal, and what `Sandbox(journal=…)` accepts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harena.errors import BoxError, SpecError, Unsupported
from harena.journal import Journal
from harena.sandbox.spec import Limits, Result, Spec


class JournalObserver:
    def __init__(self, journal: Journal, box_id: str, spec: Spec, limits: Limits) -> None:
        self.journal = journal
        self._spec, self._limits = spec, limits
        journal.open(box_id, dataclasses.asdict(spec), dataclasses.asdict(limits), journal.origin)

    def begin(
        self,
        verb: str,
        plain: Mapping[str, Any],
        data: Mapping[str, Any],
        values: Mapping[str, Any],
        limits: Limits | None,
    ) -> int:
        if limits is not None:
            values = {**values, "limits": dataclasses.asdict(limits)}
        return self.journal.act(verb, dict(plain), data, values)

    def piece(self, of: int, stream: str, data: bytes) -> None:
        self.journal.piece(of, stream, data)

    def end(self, of: int, results: Sequence[Result], answer: Any = None, data: bytes | None = None) -> None:
        self.journal.end(of, [_fields(result) for result in results], answer, data)

    def fail(self, of: int, error: BaseException) -> None:
        mistake = isinstance(error, SpecError | Unsupported | TypeError | KeyboardInterrupt)
        retry = error.retry.value if isinstance(error, BoxError) else "unknown"
        self.journal.fail(of, "caller" if mistake else "platform", type(error).__name__, str(error), retry)

    def fork(self, box_id: str) -> JournalObserver:
        return JournalObserver(self.journal.fork(box_id), box_id, self._spec, self._limits)

    def close(self) -> None:
        self.journal.close()


def open_journal(given: str | os.PathLike[str] | Journal, box_id: str) -> Journal:
    """The journal that a caller named: one that exists, a new file, or a new file of a folder."""
    if isinstance(given, Journal):
        return given
    path = Path(given)
    return Journal(path / f"{box_id}.jsonl" if path.is_dir() else path)


def _fields(result: Result) -> dict[str, Any]:
    found = {name: getattr(result, name) for name in ("exit_code", "signal", "detail", "started", "isolation", "ids")}
    return {
        "verdict": result.verdict.value,
        **found,
        "usage": dataclasses.asdict(result.usage),
        "stdout": result.stdout,
        "stderr": result.stderr,
        "value": result.value,
        "network": None if result.network is None else dataclasses.asdict(result.network),
    }
