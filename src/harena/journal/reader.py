"""Reading and verifying journals. Everything in the file is untrusted: it may have been changed by anybody who could.

What verifying shows: without a key, that no line was damaged, or changed by somebody who did not also compute the
digests of all later lines; with the key, that nobody without the key changed, added or moved a line. That the end was
not cut off is known if the last entry is `close`, or if the caller kept `Journal.head`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harena.errors import JournalBroken, SpecError
from harena.journal import entries
from harena.journal.blobs import Blobs
from harena.journal.entries import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalVerification:
    ok: bool
    entries: int
    """Entries before the first broken one, or all."""
    head: str
    """SHA-256 of the last good line."""
    problem: str = ""
    """What is wrong with the first broken entry, whose number is `entries`."""
    torn: int = 0
    """Bytes of an incomplete last line, from a process that was killed or a disk that was full."""
    closed: bool = False
    """Whether the last entry is `close`. Otherwise the box runs, its process was killed, or the end was cut off."""
    keyed: bool = False
    """Whether the lines are signed."""
    signatures_checked: bool = False


def verify(
    path: str | os.PathLike[str], *, key: bytes | None = None, head: str | None = None, contents: bool = True
) -> JournalVerification:
    """Check every line, the chain, and the stored contents. `head`: the digest that the last line must have, or that a
    line must have for which more were written since."""
    count, last, closed, keyed, problem, torn, met = 0, entries.FIRST, False, False, "", 0, head is None
    blobs, checked = Blobs(Path(path).parent), set[str]()
    for line in _lines(path):
        if not line.endswith(b"\n"):
            torn = len(line)
            break
        line = line[:-1]
        try:
            entry = _chained(line, count, last, closed)
            if count == 0:
                keyed = entry["keyed"]
                if key is not None and not keyed:
                    raise JournalBroken("the journal says that it is not signed, and a key was given")
            if ("mac" in entry) is not keyed:
                raise JournalBroken("signed, unlike the journal" if "mac" in entry else "not signed")
            if key is not None and not entries.is_signed(line, key):
                raise JournalBroken("the signature is wrong: changed by somebody without the key, or another key")
            if contents:
                for reference in references(entry):
                    if reference["sha256"] not in checked:
                        blobs.get(reference["sha256"], reference["size"])
                        checked.add(reference["sha256"])
        except JournalBroken as error:
            problem = str(error)
            break
        closed, last, count = entry["kind"] == "close", entries.line_digest(line), count + 1
        met = met or last == head
    if not problem and count == 0:
        problem = "there is no complete entry"
    if not problem and not met:
        problem = "the end was cut off, or it is another journal: no line has the digest that was given"
    return JournalVerification(
        ok=not problem and not torn,
        entries=count,
        head=last,
        problem=problem,
        torn=torn,
        closed=closed,
        keyed=keyed,
        signatures_checked=key is not None and count > 0,
    )


def read(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """Yield the entries of a journal, which may still be written. Raises JournalBroken at the first broken one; a torn
    last line is left out."""
    count, last, closed = 0, entries.FIRST, False
    for line in _lines(path):
        if not line.endswith(b"\n"):
            return
        line = line[:-1]
        try:
            entry = _chained(line, count, last, closed)
        except JournalBroken as error:
            raise JournalBroken(f"{path}: entry {count}: {error}; run `harena journal verify`") from None
        yield entry
        closed, last, count = entry["kind"] == "close", entries.line_digest(line), count + 1


def _chained(line: bytes, count: int, last: str, closed: bool) -> Entry:
    entry = entries.decode(line)
    if entry["seq"] != count:
        raise JournalBroken(f"has the number {entry['seq']}: entries were added, removed or moved")
    if entry["prev"] != last:
        raise JournalBroken("does not follow the entry before: this one or that one was changed")
    if (entry["kind"] == "open") is not (count == 0):
        raise JournalBroken("the first entry, and no other one, opens a journal")
    if closed:
        raise JournalBroken("comes after the end of the journal")
    if entry.get("of", 0) >= max(count, 1):
        raise JournalBroken("is about an entry that comes later")
    return entry


def _lines(path: str | os.PathLike[str]) -> Generator[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        try:
            while line := file.readline(entries.MAX_LINE + 2):
                if not line.endswith(b"\n") and len(line) > entries.MAX_LINE:
                    line += b"\n"  # too long to be ours; `decode` says so
                yield line
        except OSError as error:
            raise SpecError(f"{path}: {error.strerror}") from None


def references(entry: Any) -> Iterator[Entry]:
    """References to stored contents in an entry. What callers and guests gave as JSON is not searched."""
    if isinstance(entry, list):
        for one in entry:  # pyright: ignore[reportUnknownVariableType]
            yield from references(one)
    elif isinstance(entry, dict) and "json" not in entry:
        if entry.keys() == {"sha256", "size"}:  # pyright: ignore[reportUnknownMemberType]
            yield entry
        else:
            for one in entry.values():  # pyright: ignore[reportUnknownVariableType]
                yield from references(one)


class Contents:
    """Resolves fields of entries to bytes and JSON."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._blobs = Blobs(Path(path).parent)

    def data(self, field: Entry) -> bytes:
        found = entries.inline_bytes(field)
        return self._blobs.get(field["sha256"], field["size"]) if found is None else found

    def json(self, field: Entry | None) -> Any:
        if field is None:
            return None
        if "json" in field:
            return field["json"]
        try:
            return json.loads(self._blobs.get(field["sha256"], field["size"]))
        except (ValueError, RecursionError):
            raise JournalBroken(f"the contents {field['sha256']} are not JSON") from None
