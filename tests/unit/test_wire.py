"""The wire format: what is encoded is decoded, however the bytes arrive; anything else is a WireError."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena import WireError
from harena.backends.local import wire, wirefiles
from harena.sandbox import strict_json

REPLIES = sorted(wire.REPLIES)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
frames = st.builds(
    wire.Frame, st.sampled_from(REPLIES), u32, st.binary(max_size=300), st.just(()), st.booleans(), st.none()
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=5)
dones = st.builds(
    wire.Done,
    st.sampled_from(sorted(wire.Ended)),
    i32,
    u32,
    i32,
    u64,
    u64,
    u64,
    u64,
    u32,
    st.binary(max_size=50),
    st.binary(max_size=50),
    st.binary(max_size=50),
)


def encode(frame: wire.Frame) -> bytes:
    return wire.frame(frame.op, frame.id, frame.body, int(frame.carries))


def encode_done(done: wire.Done) -> bytes:
    lengths = len(done.stdout), len(done.stderr), len(done.result), done.records
    numbers = (
        done.ended,
        done.wstatus,
        done.hits,
        done.exec_errno,
        done.wall_ns,
        done.cpu_ns,
        done.peak_kb,
        done.written,
    )
    return wire.DONE.pack(*numbers, *lengths) + done.stdout + done.stderr + done.result


# ---- frames ----


@given(st.lists(frames, max_size=6), st.data())
def test_frames_are_the_same_wherever_the_stream_is_cut(sent: list[wire.Frame], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, found = wire.Reader(), list[wire.Frame]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == sent


def test_frames_are_the_same_byte_by_byte() -> None:
    sent = [
        wire.Frame(wire.Op.PONG, 1, b""),
        wire.Frame(wire.Op.DONE, 2**32 - 1, b"body"),
        wire.Frame(wire.Op.ERROR, 0, b""),
    ]
    reader = wire.Reader()
    found = [frame for byte in b"".join(map(encode, sent)) for frame in reader.feed(bytes([byte]))]
    assert found == sent


@given(st.lists(frames, max_size=3), frames, st.data())
def test_truncated_stream_gives_the_whole_frames_and_no_other(
    sent: list[wire.Frame], last: wire.Frame, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, wire.HEAD.size + len(last.body) - 1))
    assert wire.Reader().feed(b"".join(map(encode, sent)) + encode(last)[:cut]) == sent


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_on_but_nothing_else(data: bytes) -> None:
    try:
        found = wire.Reader().feed(data)
    except WireError:
        return
    assert all(frame.op in REPLIES for frame in found)


@given(st.binary(min_size=16, max_size=200).filter(lambda data: data[:4] != b"HRN1"))
def test_bytes_without_our_magic_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="not a message"):
        wire.Reader().feed(data)


@pytest.mark.parametrize("op", [0, *(op for op in wire.Op if op not in wire.REPLIES), 255, 65535])
def test_operations_that_no_box_may_send_are_refused(op: int) -> None:
    with pytest.raises(WireError, match="unknown operation"):
        wire.Reader().feed(wire.HEAD.pack(wire.MAGIC, op, 0, 1, 0))


@pytest.mark.parametrize("length", [wire.MAX_FRAME + 1, 2**31, 2**32 - 1])
def test_huge_lengths_are_refused_when_announced(length: int) -> None:
    with pytest.raises(WireError, match="limit"):
        wire.Reader().feed(wire.HEAD.pack(wire.MAGIC, wire.Op.PONG, 0, 1, length))


def test_largest_length_takes_no_memory_before_its_bytes_come() -> None:
    reader = wire.Reader()
    tracemalloc.start()
    try:
        assert reader.feed(wire.HEAD.pack(wire.MAGIC, wire.Op.PONG, 0, 1, wire.MAX_FRAME) + b"x" * 1000) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_more_descriptors_than_any_answer_has_are_refused() -> None:
    with pytest.raises(WireError, match="descriptors"):
        wire.Reader().feed(wire.HEAD.pack(wire.MAGIC, wire.Op.STARTED, 2, 1, 0))


def test_request_above_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(WireError, match="limit of one message"):
        wire.frame(wire.Op.SPAWN, 1, bytes(wire.MAX_FRAME + 1))


def test_flood_of_tiny_frames_costs_the_reader_no_more_than_its_bytes() -> None:
    """Cutting a read into frames must not copy the rest of it once for every frame."""
    tiny = wire.frame(wire.Op.PONG, 0)
    reader = wire.Reader()
    copied = CountingBytes(tiny * 16384)
    assert len(reader.feed(copied)) == 16384
    assert CountingBytes.copied < 8 * len(tiny) * 16384


class CountingBytes(bytes):
    """Counts the bytes that slicing it, and what was sliced of it, copies."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        if isinstance(key, slice):
            CountingBytes.copied += len(part)
            return CountingBytes(part)
        return part


# ---- reports ----


@given(dones)
def test_report_is_read_as_it_was_written(done: wire.Done) -> None:
    assert wire.parse_done(encode_done(done)) == done


@given(dones, st.data())
def test_report_of_any_other_size_is_refused(done: wire.Done, data: st.DataObject) -> None:
    body = encode_done(done)
    changed = data.draw(
        st.integers(0, len(body) - 1).map(lambda cut: body[:cut]) | st.binary(min_size=1).map(body.__add__)
    )
    with pytest.raises(WireError):
        wire.parse_done(changed)


@given(st.binary(max_size=150))
def test_report_of_garbage_is_refused_or_adds_up(body: bytes) -> None:
    try:
        done = wire.parse_done(body)
    except WireError:
        return
    assert wire.DONE.size + len(done.stdout) + len(done.stderr) + len(done.result) == len(body)


def test_report_of_an_unknown_end_is_refused() -> None:
    done = wire.Done(7, 0, 0, 0, 0, 0, 0, 0, 0, b"", b"", b"")
    with pytest.raises(WireError, match="add up"):
        wire.parse_done(encode_done(done))


@given(i32, st.text(max_size=100))
def test_error_is_read_as_it_was_written(number: int, step: str) -> None:
    step = step.encode("utf-8", "replace").decode()
    assert wire.parse_error(wire.ERROR.pack(number) + step.encode()) == (number, step)


@pytest.mark.parametrize("body", [b"", b"123", b"x" * 5000], ids=len)
def test_error_of_no_sensible_size_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        wire.parse_error(body)


# ---- records ----


@given(st.lists(st.binary(max_size=40), max_size=6), st.binary(max_size=3))
def test_records_are_read_as_they_were_written(records: list[bytes], rest: bytes) -> None:
    data = bytes(8) + b"".join(wire.U32.pack(len(record)) + record for record in records) + rest
    assert wire.parse_records(data, 10) == records
    assert wire.parse_records(data, 2) == records[:2]


@given(st.binary(max_size=100), st.integers(0, 5))
def test_records_of_garbage_are_few_and_no_longer_than_the_garbage(data: bytes, limit: int) -> None:
    found = wire.parse_records(data, limit)
    assert len(found) <= limit
    assert sum(map(len, found)) <= len(data)


# ---- calls and answers ----


@given(json_objects, st.binary(max_size=100))
def test_call_is_read_as_it_was_written(message: dict[str, Any], blob: bytes) -> None:
    assert wire.parse_answer(wire.encode_call(message, blob)) == (message, blob)


@given(st.binary(max_size=200))
def test_answer_of_garbage_is_refused_or_an_object(body: bytes) -> None:
    try:
        message, blob = wire.parse_answer(body)
    except WireError:
        return
    assert isinstance(message, dict)
    assert len(blob) <= len(body) - wire.U32.size


def answer(text: bytes) -> bytes:
    return wire.U32.pack(len(text)) + text


@pytest.mark.parametrize(
    "text",
    [
        b"NaN",
        b'{"a": NaN}',
        b'{"a": [Infinity]}',
        b'{"a": -Infinity}',
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"a": ' + b"1" * 4001 + b"}",
        b'{"a": -' + b"1" * 5000 + b"}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 50_000,
        b"[]",
        b'"text"',
        b"null",
        b"1",
        b"",
        b"{",
        b'{"a": 1} x',
        b"\xff\xfe",
        b'{"a": "\x00"}',
        b"{'a': 1}",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_answer_that_is_no_strict_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(WireError):
        wire.parse_answer(answer(text))


@pytest.mark.parametrize("body", [b"", b"\1\0\0", struct.pack("<I", 10) + b"{}", struct.pack("<I", 2**32 - 1) + b"{}"])
def test_answer_whose_length_does_not_add_up_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        wire.parse_answer(body)


def test_answer_with_too_much_json_is_refused() -> None:
    with pytest.raises(WireError, match="add up"):
        wire.parse_answer(answer(b'{"a": "' + b"x" * wire.MAX_JSON + b'"}'))


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"[]," * 1_000_000 + b"1]",
        b"{" + b'"a":1,' * 600_000 + b'"b":1}',
        b"[" * 201 + b"]" * 201,
        b"[" + b'[{"a":' * 150 + b"1" + b"}]" * 150 + b"]",
        b'["' + b'\\"' * 100 + b'"' + b",[]" * 1_000_000 + b"]",
    ],
    ids=["items", "keys", "levels", "mixed levels", "behind a string"],
)
def test_json_of_too_many_items_or_levels_is_refused_before_any_is_made(text: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(strict_json.ValueTooLarge):
            strict_json.parse_json(text)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000  # pieces between strings
    finally:
        tracemalloc.stop()


def test_what_a_string_holds_is_no_item_and_no_level() -> None:
    for text in (",:" * 1_000_000, "[" * 1000, '\\"[{' * 1000, '"' * 1000 + ",[" * 1_000_000):
        assert strict_json.parse_json(json.dumps([text, text]).encode()) == [text, text]
    deep: list[Any] = []
    for _ in range(strict_json.MAX_DEPTH - 1):
        deep = [deep]
    assert strict_json.parse_json(json.dumps(deep).encode()) == deep


def test_output_beyond_what_was_allowed_is_refused() -> None:
    output = wire.Output(10)
    output.add(wire.U32.pack(1) + b"12345")
    output.add(wire.U32.pack(1) + b"67890")
    assert output.joined(b"a", b"b", b"c") == [b"a", b"1234567890b", b"c"]
    for body in (wire.U32.pack(1) + b"x", wire.U32.pack(3) + b"x", wire.U32.pack(0), b""):
        with pytest.raises(WireError):
            output.add(body)


@given(json_values)
def test_json_is_read_as_the_standard_library_wrote_it(value: Any) -> None:
    assert strict_json.parse_json(json.dumps(value).encode()) == value


@given(st.text(alphabet='[]{}:,"-0123456789.eE \\ntrfalsuNIiy', max_size=60))
def test_json_like_text_is_refused_or_plain_data(text: str) -> None:
    try:
        value = strict_json.parse_json(text.encode())
    except WireError:
        return
    assert not has_nan(value)


def has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    return isinstance(value, list) and any(map(has_nan, value))


def test_number_too_large_for_a_float_is_refused() -> None:
    """Otherwise it would become the infinity that strict JSON does not have."""
    with pytest.raises(WireError):
        strict_json.parse_json(b'{"a": 1e999}')


# ---- requests ----

word = st.binary(max_size=20).filter(lambda text: b"\0" not in text)


@given(
    st.lists(word, max_size=4),
    st.lists(word, max_size=4),
    word,
    st.binary(max_size=40),
    st.binary(max_size=40),
    u64,
    u32,
)
def test_spawn_has_the_layout_of_the_native_side(
    argv: list[bytes], env: list[bytes], cwd: bytes, stdin: bytes, payload: bytes, wall_ns: int, processes: int
) -> None:
    """Read back as native/serve.c does: the fixed part, then strings, folder, stdin and payload by their lengths."""
    spawn = wire.Spawn(
        kind=wire.Kind.EXEC,
        flags=wire.Flag.CAPTURE,
        argv=tuple(argv),
        env=tuple(env),
        cwd=cwd,
        stdin=stdin,
        payload=payload,
        wall_ns=wall_ns,
        processes=processes,
    )
    body = spawn.encode()
    fixed = wire.SPAWN.unpack_from(body)
    argc, envc, strings_len, cwd_len, stdin_len, payload_len = fixed[13:19]
    assert (fixed[0], fixed[2], fixed[7], argc, envc) == (wire.Kind.EXEC, wall_ns, processes, len(argv), len(env))
    at = wire.SPAWN.size
    parts: list[bytes] = []
    for length in (strings_len, cwd_len, stdin_len, payload_len):
        parts.append(body[at : at + length])
        at += length
    assert at == len(body)
    assert parts[0].split(b"\0")[:-1] == [*argv, *env]
    assert parts[1:] == [cwd + b"\0" if cwd else b"", stdin, payload]


# ---- the other sides ----


@pytest.mark.parametrize("path", wirefiles.files(), ids=lambda path: path.name)
def test_other_sides_are_made_from_the_table(path: Path) -> None:
    assert path.read_text() == wirefiles.files()[path], "run `make wire`"
