"""Log lines of `harena up` and `harena worker`: text for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from harena import trace
from harena.arena.variables import Environ
from harena.errors import SpecError


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """What the record carries besides its words: ids of requests, jobs, matches, and of the trace."""
    found = {name: value for name, value in vars(record).items() if name not in _USUAL}
    place = trace.current()
    return found | {"trace_id": place.trace_id} if place else found


_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime"}


class _JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        more = " ".join(f"{name}={value!r:.200}" for name, value in _extra(record).items())
        text = super().format(record)
        return f"{text} [{more}]" if more else text


def set_up_logs(*, json_logs: bool) -> None:
    # On a terminal every job and request would bury the lines that a person reads.
    level = (Environ().text("LOG_LEVEL") or ("INFO" if json_logs else "WARNING")).upper()
    if level not in logging.getLevelNamesMapping():
        raise SpecError(f"LOG_LEVEL={level}: one of DEBUG, INFO, WARNING, ERROR")
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if json_logs else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("harena")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
