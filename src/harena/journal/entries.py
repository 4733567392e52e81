"""Format of a journal: one JSON object on each line, with a closed schema, chained by SHA-256.

Every entry has `seq` (its line number), `at`, `kind` and `prev`, the SHA-256 of the line before. With a key it ends
with `mac`, an HMAC-SHA256 of the rest of the line. Bytes are `{"text"}` or `{"base64"}` where they are short, else
`{"sha256", "size"}` with the contents in a file beside the journal; JSON is `{"json"}` or the same reference.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from harena.errors import JournalBroken

FORMAT = "harena.journal/1"
FIRST = "0" * 64
"""`prev` of the first entry."""
INLINE = 4096
"""Longer bytes are stored beside the journal."""
MAX_LINE = 4 << 20
MAX_TEXT = 2000
"""Characters of details, reasons and messages of errors. What a guest wrote is stored in full, as bytes."""
MAX_LABEL = 200
LABELS = ("owner", "run", "agent", "session", "operation", "trace", "step")
PARTIES = ("platform", "caller")
"""Whose fault an operation without a result is. What a guest did wrong is a result with a verdict."""
MAX_NUMBER = 1 << 63

Entry = dict[str, Any]
Check = Callable[[Any], bool]


def _text(most: int) -> Check:
    return lambda value: isinstance(value, str) and len(value) <= most


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_NUMBER


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < MAX_NUMBER and math.isfinite(value)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _flag(value: Any) -> bool:
    return type(value) is bool


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _one_of(*words: str) -> Check:
    return lambda value: isinstance(value, str) and value in words


def _list(check: Check, most: int) -> Check:
    def checked(value: Any) -> bool:
        found = cast("list[Any]", value)
        return isinstance(value, list) and len(found) <= most and all(map(check, found))

    return checked


def _record(**fields: Check) -> Check:
    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        found = cast("Entry", value)
        return found.keys() == fields.keys() and all(fields[name](one) for name, one in found.items())

    return check


def _labels(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    found = cast("dict[Any, Any]", value)
    return found.keys() <= set(LABELS) and all(map(_text(MAX_LABEL), found.values()))


def is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


_reference = _record(sha256=is_digest, size=_whole)
_data_fields: tuple[Check, ...] = (_record(text=_text(INLINE)), _record(base64=_text(2 * INLINE)), _reference)


def _data(value: Any) -> bool:
    return any(check(value) for check in _data_fields)


def _json(value: Any) -> bool:
    return _reference(value) or (isinstance(value, dict) and cast("Entry", value).keys() == {"json"})


_usage = _record(cpu_s=_number, wall_s=_number, peak_mb=_number, bytes=_whole)
_result = _record(
    verdict=_text(20),
    exit_code=_or_none(_number),
    signal=_or_none(_number),
    detail=_text(MAX_TEXT),
    started=_flag,
    isolation=_text(20),
    ids=_text(20),
    usage=_usage,
    stdout=_data,
    stderr=_data,
    value=_or_none(_json),
    network=_or_none(_json),
)
_fault = _record(party=_one_of(*PARTIES), kind=_text(100), text=_text(MAX_TEXT), retry=_text(20))
_parent = _record(journal=_text(MAX_LABEL), seq=_whole, sha256=is_digest)

_command = {"argv": _json, "env": _json, "cwd": _data, "limits": _json}
VERBS: dict[str, dict[str, Check]] = {
    "exec": {**_command, "stdin": _data},
    "run": {"source": _data, "limits": _json},
    "call": {"source": _data, "name": _text(MAX_TEXT), "given": _json, "limits": _json},
    "program": {"sources": _list(_data, 1000), "stdin": _data, "grouped": _flag, "limits": _json},
    "start": {**_command, "pty": _flag},
    "shell": _command,
    "command": {"shell": _whole, "command": _data, "timeout_s": _or_none(_number), "output_bytes": _or_none(_whole)},
    "converse": {"source": _data, "limits": _json},
    "converse_with": {"argv": _json, "limits": _json},
    "files": {"op": _text(20), "path": _data, "message": _json, "data": _data},
    "fork": {"count": _whole},
    "network": {"rules": _json},
    "connect": {"port": _whole},
}
"""What a box can be asked to do, and the fields of each."""
FILE_ACTIONS = frozenset({"write", "remove", "apply", "read"})
"""Operations on files that are steps of a trajectory. The others serve listings and snapshots."""
NO_STEPS = frozenset({"fork", "network", "connect", "shell"})
"""Verbs that are no steps of a trajectory. Commands of a shell are steps, its start is not."""
STREAMS = ("stdin", "stdout", "stderr", "in", "out", "log")
"""Where bytes of a running process go or come from; in, out and log are those of a conversation."""
KINDS: dict[str, dict[str, Check]] = {
    "open": {
        "format": _one_of(FORMAT),
        "journal": _text(MAX_LABEL),
        "box": _text(MAX_LABEL),
        "parent": _or_none(_parent),
        "labels": _labels,
        "spec": _json,
        "limits": _json,
        "keyed": _flag,
    },
    "act": {"verb": _one_of(*VERBS), "action": _object, "labels": _labels},
    "piece": {"of": _whole, "stream": _one_of(*STREAMS), "data": _data},
    "end": {"of": _whole, "results": _list(_result, 1000), "answer": _or_none(_json), "data": _or_none(_data)},
    "fail": {"of": _whole, "fault": _fault},
    "reward": {"of": _whole, "reward": _or_none(_number), "done": _flag},
    "close": {"reason": _text(MAX_TEXT)},
}
"""Kinds of entries, and the fields of each beside those of every entry."""
_HEAD: dict[str, Check] = {"seq": _whole, "at": _text(40), "kind": _one_of(*KINDS), "prev": is_digest}
_MAC = re.compile(rb',"mac":"([0-9a-f]{64})"}$')


def is_step(act: Mapping[str, Any]) -> bool:
    """Whether an action is a step of a trajectory, which a reward can be given for."""
    return act["action"]["op"] in FILE_ACTIONS if act["verb"] == "files" else act["verb"] not in NO_STEPS


def encode(entry: Mapping[str, Any], key: bytes | None) -> bytes:
    """Return the line of an entry, without its end. ASCII alone, so that a terminal obeys nothing in it."""
    line = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
    return line if key is None else line[:-1] + f',"mac":"{_mac(line, key)}"}}'.encode()


def decode(line: bytes) -> Entry:
    """Parse and check a line. Raises JournalBroken, which says what is wrong with it."""
    if len(line) > MAX_LINE:
        raise JournalBroken(f"longer than {MAX_LINE} bytes")
    try:
        found = json.loads(line, parse_constant=_refuse)
        whole = isinstance(found, dict) and json.dumps(found, separators=(",", ":")).encode() == line
    except (ValueError, RecursionError):
        raise JournalBroken("not JSON") from None
    if not whole:
        raise JournalBroken("not written by a journal: other spaces, repeated names or other letters")
    entry = cast("Entry", found)
    kind = entry.get("kind")
    fields = KINDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise JournalBroken("of an unknown kind")
    fields = {**_HEAD, **fields}
    for name in (entry.keys() - {"mac"}) ^ fields.keys():
        raise JournalBroken(f"the field {name[:40]!r} of {kind} is {'missing' if name in fields else 'unknown'}")
    for name, check in fields.items():
        if not check(entry[name]):
            raise JournalBroken(f"the field {name!r} of {kind} has another type or is too long")
    if kind == "act" and not _record(**VERBS[entry["verb"]])(entry["action"]):
        raise JournalBroken(f"not an action of {entry['verb']}")
    return entry


def is_signed(line: bytes, key: bytes) -> bool:
    """Whether a line ends with the right HMAC."""
    found = _MAC.search(line)
    return found is not None and hmac.compare_digest(found[1].decode(), _mac(line[: found.start()] + b"}", key))


def _mac(line: bytes, key: bytes) -> str:
    return hmac.new(key, line, hashlib.sha256).hexdigest()


def line_digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def inline(data: bytes) -> Entry | None:
    """Short bytes as a field; None if they must be stored beside the journal."""
    if len(data) > INLINE:
        return None
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def inline_bytes(field: Mapping[str, Any]) -> bytes | None:
    """The bytes of a field that has them; None for a reference."""
    if "text" in field:
        return str(field["text"]).encode("utf-8", "surrogatepass")
    if "base64" in field:
        try:
            return base64.b64decode(field["base64"], validate=True)
        except ValueError:
            raise JournalBroken("a field with something else than base64") from None
    return None


def _refuse(name: str) -> Any:
    raise ValueError(name)
