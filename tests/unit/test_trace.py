"""Spans and their ids."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from harena import trace
from harena.trace import Span, SpanPlace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def spans() -> Iterator[list[Span]]:
    found: list[Span] = []
    trace.export_to(found.append)
    yield found
    trace.export_to(None)


def test_a_traceparent_comes_back_as_it_was_sent() -> None:
    assert trace.parse(PARENT) == SpanPlace(TRACE, SPAN)
    assert SpanPlace(TRACE, SPAN).traceparent() == PARENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        PARENT.upper(),
        PARENT + "\n",
        PARENT + "-more",
        f"01-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[:-1]}é-{SPAN}-01",
        "0" * 100_000,
    ],
)
def test_what_is_no_traceparent_begins_a_new_trace(text: str) -> None:
    assert trace.parse(text) is None


def test_spans_in_spans_have_one_trace(spans: list[Span]) -> None:
    with trace.span("outer", parent=trace.parse(PARENT)) as outer, trace.span("inner") as inner:
        assert trace.current() == inner.place
    assert trace.current() is None
    assert [span.name for span in spans] == ["inner", "outer"]
    assert {span.place.trace_id for span in spans} == {TRACE}
    assert inner.parent == outer.place
    assert outer.parent == SpanPlace(TRACE, SPAN)
    assert outer.began_ns <= inner.began_ns <= inner.ended_ns <= outer.ended_ns


def test_a_failure_is_noted_and_raised(spans: list[Span]) -> None:
    with pytest.raises(ZeroDivisionError), trace.span("breaks"):
        _ = 1 // 0
    assert [span.error for span in spans] == ["ZeroDivisionError"]


def test_another_thread_is_in_no_trace() -> None:
    seen: list[SpanPlace | None] = []
    with trace.span("here"):
        thread = threading.Thread(target=lambda: seen.append(trace.current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_words_of_agents_are_cut(spans: list[Span]) -> None:
    place = SpanPlace(TRACE, SPAN)
    trace.record("match", parent=place, began_ns=2, ended_ns=1, error="x" * 10_000, agent="y" * 10_000, none=None)
    (span,) = spans
    assert (len(span.error), len(str(span.attributes["agent"]))) == (trace.MAX_TEXT, trace.MAX_TEXT)
    assert "none" not in span.attributes
    assert span.ended_ns >= span.began_ns
