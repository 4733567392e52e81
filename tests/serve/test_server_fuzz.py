"""Whatever JSON a server sends, its client gets a value of the right type or raises an error of ours. The other direction
is in test_hostile_clients.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harena import HarenaError, Result
from harena.node import messages
from harena.sandbox.backend import Capabilities
from harena.sandbox.network import NetworkReport
from harena.sessions import errors
from harena.sessions.engines.remote import RemoteEngine

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["ok", "end"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
USAGE = {"cpu_s": 0.0, "wall_s": 0.0, "peak_mb": 0.0, "bytes": 0}
RESULT = {
    "verdict": "ok",
    "exit_code": 0,
    "signal": None,
    "detail": "",
    "value": None,
    "started": True,
    "ids": "",
    "usage": USAGE,
    "isolation": "full",
    "out": 2,
    "err": 0,
}
ERROR = {"kind": "BoxError", "text": "no", "retry": "safe"}
FILE_ERROR = {"kind": "BoxFileError", "text": "no", "errno": 2, "path": "x"}
STEP = {"stdout": "a", "stderr": "", "state": "Succeeded", "exitCode": 0}
EVENTS = [
    {"number": 1, "event": "output", "step": 0, "stream": "stdout", "data": "a"},
    {"number": 2, "event": "step", "step": 0, "result": STEP},
    {"number": 3, "event": "end", "result": {"status": {"state": "Succeeded", "exitCode": 0}}},
    {"number": 3, "event": "error", "error": ERROR},
]
BATCH = [{"event": "result", "index": 0, "verdict": "ok"}, {"event": "end"}, {"event": "error", "error": FILE_ERROR}]
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def mutated(data: st.DataObject, value: Any) -> Any:
    """The value, or with a part of it replaced or removed."""
    kind = data.draw(st.sampled_from(["right", "other", "inside", "inside"]))
    if kind == "right":
        return value
    if kind == "other" or not isinstance(value, dict) or not value:
        return data.draw(json_values)
    name = data.draw(st.sampled_from(sorted(value)))
    if data.draw(st.integers(0, 3)) == 0:
        return {key: one for key, one in value.items() if key != name}
    return {**value, name: mutated(data, value[name])}


@FUZZ
@given(data=st.data())
def test_reading_an_answer_gives_its_type_or_an_error_of_ours(data: st.DataObject) -> None:
    with contextlib.suppress(HarenaError):
        found = messages.result_in(mutated(data, RESULT), data.draw(st.sampled_from([b"hi", b"", b"more"])))
        assert isinstance(found, Result)
        assert found.stdout + found.stderr == b"hi"
    with contextlib.suppress(HarenaError):
        assert isinstance(messages.capabilities_in(mutated(data, RESULT)), Capabilities)
    with contextlib.suppress(HarenaError):
        assert isinstance(messages.report_in(mutated(data, {})), NetworkReport)
    for error in (ERROR, FILE_ERROR, {"kind": "NotFound", "text": "no"}):
        with contextlib.suppress(HarenaError):
            assert isinstance(errors.error_in(mutated(data, error)), Exception)


class Scripted(RemoteEngine):
    """Its server sends these objects as the lines of a stream."""

    def __init__(self, lines: list[Any]) -> None:
        super().__init__("http://127.0.0.1:9", "x")
        self.lines = lines

    def _lines(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from (line for line in self.lines if isinstance(line, dict))
        raise ConnectionResetError


@FUZZ
@given(data=st.data())
def test_reading_a_stream_ends_with_a_result_or_an_error_of_ours(data: st.DataObject) -> None:
    follow = data.draw(st.booleans())
    chosen = data.draw(st.lists(st.sampled_from(EVENTS if follow else BATCH), max_size=4))
    engine = Scripted([mutated(data, line) for line in chosen])
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(HarenaError):
        patch.setattr("time.sleep", lambda _: None)
        if follow:
            options: dict[str, Any] = {"operation_id": "o", "keep_going": False, "trace_id": ""}
            done = engine.execute("s", [{"command": ["x"]}], **options, on_step=len, on_output=len)
            assert isinstance(done["status"], dict)
        else:
            more: dict[str, Any] = {"stdin": None, "limits": None, "pool_ref": None, "namespace": "d", "image": None}
            found = list(engine.batch(["1"], **more, spec=None, run="", agent=""))
            assert [one["index"] for one in found] == [0]
