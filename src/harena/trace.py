"""One id for all that follows from a request: the request, its job, the match, its boxes.

Spans cost a few microseconds and go nowhere unless an exporter is installed (`harena.telemetry`); the id is in log
lines and in refusals either way. Ids travel between processes as a `traceparent` (W3C Trace Context), which may come
from anybody: what does not have its exact form is ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

Attribute = str | int | float | bool
MAX_TEXT = 200
"""Longest text of an attribute: names and reasons may come from agents."""
_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """Where a span is: the trace that it belongs to, and its own id."""

    trace_id: str
    span_id: str

    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"


@dataclass(slots=True, kw_only=True)
class Span:
    name: str
    parent: SpanPlace | None
    began_ns: int
    ended_ns: int = 0
    error: str = ""
    """Why it failed; empty: it did not."""
    attributes: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    _place: SpanPlace | None = None

    @property
    def place(self) -> SpanPlace:
        """Made when somebody asks for it: most requests end without a log line, a job or an exporter."""
        if self._place is None:
            ids = os.urandom(24).hex()
            self._place = SpanPlace(self.parent.trace_id if self.parent else ids[:32], ids[32:])
        return self._place

    def note(self, **attributes: Attribute | None) -> None:
        """Add what is not None."""
        for name, value in attributes.items():
            if value is not None:
                self.attributes[name] = value[:MAX_TEXT] if isinstance(value, str) else value


class Exporter(Protocol):
    def __call__(self, span: Span, /) -> None:
        """Takes a span that has ended. Does not block and does not raise."""
        ...


_current: ContextVar[Span | None] = ContextVar("harena_trace", default=None)
_exporter: Exporter | None = None


def export_to(exporter: Exporter | None) -> None:
    global _exporter
    _exporter = exporter


def current() -> SpanPlace | None:
    """Where this thread or task is now."""
    span = _current.get()
    return span.place if span is not None else None


def traceparent() -> str:
    """How others continue this trace; empty outside of any."""
    place = current()
    return place.traceparent() if place is not None else ""


def parse(traceparent: str) -> SpanPlace | None:
    found = _PARENT.fullmatch(traceparent)
    return SpanPlace(found[1], found[2]) if found else None


@contextlib.contextmanager
def span(name: str, *, parent: SpanPlace | None = None, **attributes: Attribute | None) -> Generator[Span]:
    """Everything in the block belongs to a new span, below `parent` or else below the current one; without either a new
    trace begins."""
    made = Span(name=name, parent=parent or current(), began_ns=time.time_ns())
    made.note(**attributes)
    token = _current.set(made)
    try:
        yield made
    except BaseException as error:
        made.error = made.error or type(error).__name__
        raise
    finally:
        _current.reset(token)
        _end(made, time.time_ns())


def record(
    name: str, *, parent: SpanPlace, began_ns: int, ended_ns: int, error: str = "", **attributes: Attribute | None
) -> SpanPlace:
    """Report what has happened already, elsewhere."""
    made = Span(name=name, parent=parent, began_ns=began_ns)
    made.error = error[:MAX_TEXT]
    made.note(**attributes)
    _end(made, ended_ns)
    return made.place


def _end(span: Span, ended_ns: int) -> None:
    if _exporter is not None:
        span.ended_ns = max(ended_ns, span.began_ns)
        _exporter(span)
