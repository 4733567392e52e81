"""Journal of one box, while it is written.

Guarantees: an action is on file before it reaches the box, and nothing reaches the box while the journal cannot be
written; once the result of an action could not be written, nothing does any more; a line is written as a whole or named
as torn by `verify`; threads may write at once, other processes may not.
Lines survive a killed process; with `sync` they survive a power failure too.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import hashlib
import json
import logging
import os
import re
import stat
import threading
import weakref
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harena.errors import JournalError, Retry, SpecError, WrongProcess
from harena.journal import entries
from harena.journal.blobs import Blobs
from harena.journal.entries import Entry

MB = 1 << 20
MAX_BYTES = 1024 * MB
"""Size of a journal with its contents, after which no action is accepted."""
MIN_KEY = 16
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
FULL = (errno.ENOSPC, errno.EDQUOT)
SPACE = MB
"""Free bytes with which a disk that was full counts as usable again."""

log = logging.getLogger("harena.journal")

_labels: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar("labels", default=None)


@contextlib.contextmanager
def labelled(**labels: str) -> Generator[None]:
    """Add labels to the actions that this thread begins."""
    token = _labels.set({**(_labels.get() or {}), **labels})
    try:
        yield
    finally:
        _labels.reset(token)


def current_labels() -> Mapping[str, str]:
    return _labels.get() or {}


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        if name not in entries.LABELS or len(value) > entries.MAX_LABEL:
            raise SpecError(f"label {name[:40]!r}: one of {', '.join(entries.LABELS)}, of {entries.MAX_LABEL} letters")
    return dict(labels)


class _Room:
    """Bytes that a journal, or all journals of a folder, may still take."""

    def __init__(self, most: int, used: int = 0) -> None:
        self.most, self.used = most, used
        self.failure = ""
        """Why the last write failed; empty if it did not."""
        self.disk_full = False
        """Whether it failed for want of space."""
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        with self._lock:
            self.used += count
            self.failure = ""

    @property
    def full(self) -> bool:
        return self.used >= self.most


class Journal:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: bytes | None = None,
        labels: Mapping[str, str] | None = None,
        max_bytes: int = MAX_BYTES,
        sync: bool = False,
        room: _Room | None = None,
    ) -> None:
        """Create a journal; `path` must not exist. `key`: sign every line, so that only somebody with the key can
        change the journal unnoticed. `labels`: owner, run, agent and session. `sync`: wait for the disk after every
        line."""
        if key is not None and len(key) < MIN_KEY:
            raise SpecError(f"key: at least {MIN_KEY} random bytes")
        self.path = Path(path)
        self.labels = check_labels(labels or {})
        self._key, self._sync, self._max_bytes = key, sync, max_bytes
        self._rooms = [_Room(max_bytes), *([room] if room is not None else [])]
        self._blobs = Blobs(self.path.parent)
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._seq, self._prev, self._size = 0, entries.FIRST, 0
        self._opened, self._closed, self._broken = False, False, ""
        self._last_act: int | None = None
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self.path, flags, 0o600)
        except FileExistsError:
            raise SpecError(f"{self.path}: exists already; every box needs its own journal") from None
        except OSError as error:
            if error.errno not in FULL:
                raise SpecError(f"{self.path}: cannot be created: {error.strerror}") from None
            raise self._failure(error, "nothing was run", Retry.SAFE) from None
        self._release = weakref.finalize(self, os.close, self._fd)

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".jsonl")

    @property
    def head(self) -> tuple[int, str]:
        """Number of entries, and the SHA-256 of the last one. Kept elsewhere, it shows whether the end was cut off."""
        with self._lock:
            return self._seq, self._prev

    # ---- entries ----

    def open(self, box: str, spec: Entry, limits: Entry, parent: Entry | None = None) -> None:
        """Write the first entry: the box that the journal is about. A journal that cannot have one is removed."""
        with self._entry(nothing_ran=True):
            if self._opened:
                raise SpecError(f"{self.path}: has a box already; every box needs its own journal")
            entry = {"format": entries.FORMAT, "journal": self.name[: entries.MAX_LABEL], "box": box, "parent": parent}
            entry |= {"labels": self.labels, "spec": self._json(spec), "limits": self._json(limits)}
            self._append("open", {**entry, "keyed": self._key is not None})
            self._opened = True

    def act(self, verb: str, plain: Entry, data: Mapping[str, Any], values: Mapping[str, Any]) -> int:
        """Record an action before it reaches the box, and return its number. `data` are bytes, or lists of them, and
        `values` anything that is JSON."""
        labels = check_labels({name: value for name, value in current_labels().items() if value})
        with self._entry(nothing_ran=True):
            self._check_room()

            def fields(small: bool) -> Entry:
                found = {name: self._data(one, small) for name, one in data.items()}
                action = {**plain, **found, **{name: self._json(one, small) for name, one in values.items()}}
                return {"verb": verb, "action": action, "labels": labels}

            of = self._append_small("act", fields)
            if entries.is_step({"verb": verb, "action": plain}):
                self._last_act = of
            return of

    def piece(self, of: int, stream: str, data: bytes) -> None:
        """Record bytes of a process that runs. Those for the process are recorded before it gets them."""
        is_input = stream in ("stdin", "in")
        with self._entry(nothing_ran=is_input):
            if is_input:
                self._check_room()
            self._append("piece", {"of": of, "stream": stream, "data": self._data(data)})

    def end(self, of: int, results: list[Entry], answer: Any = None, data: bytes | None = None) -> None:
        """Record how an action ended. Fields of results that are bytes, and `value` and `network`, are stored."""
        with self._entry(nothing_ran=False):

            def fields(small: bool) -> Entry:
                shown = [self._result(result, small) for result in results]
                stored = None if answer is None else self._json(answer, small)
                return {
                    "of": of,
                    "results": shown,
                    "answer": stored,
                    "data": None if data is None else self._data(data, small),
                }

            self._append_small("end", fields)

    def fail(self, of: int, party: str, kind: str, text: str, retry: str) -> None:
        """Record that an action has no result, and whose fault that is."""
        fault = {"party": party, "kind": kind[:100], "text": text[: entries.MAX_TEXT], "retry": retry}
        with self._entry(nothing_ran=False):
            self._append("fail", {"of": of, "fault": fault})

    def reward(self, reward: float | None, *, done: bool = False, of: int | None = None) -> None:
        """Record the reward of an action: the one with this number, else the latest step. A later reward replaces it.
        None takes it back."""
        if reward is not None and not entries.KINDS["reward"]["reward"](reward):
            raise SpecError(f"reward={reward!r:.80}: a finite number, or None")
        with self._entry(nothing_ran=True):
            self._check_room()
            target = self._last_act if of is None else of
            if target is None or not 0 < target < self._seq:
                raise SpecError("reward: there is no such action in the journal yet")
            self._append("reward", {"of": target, "reward": reward, "done": bool(done)})

    def close(self, reason: str = "it was closed") -> None:
        """Write the last entry. Idempotent. A journal that cannot be written ends without it: its box must end."""
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                return
            try:
                if self._opened and not self._broken:
                    self._append("close", {"reason": reason[: entries.MAX_TEXT]})
            except OSError as error:
                self._failure(error, "", Retry.NEVER)
                self._cut()
                log.warning("%s: ends without its last entry: %s", self.path, error.strerror)
            finally:
                self._closed = True
                self._release()
                if not self._opened:
                    with contextlib.suppress(OSError):
                        os.unlink(self.path)

    def fork(self, box: str) -> Journal:
        """Create the journal of a fork of this box, which begins at the current entry of this one. It is named after
        the session that it is for (`labelled`), or after this journal and the box."""
        session = current_labels().get("session")
        path = self.path.with_name(f"{session or f'{self.name}-{box}'}.jsonl")
        labels = {**self.labels, **({"session": session} if session else {})}
        room = self._rooms[1] if len(self._rooms) > 1 else None
        made = Journal(path, key=self._key, labels=labels, max_bytes=self._max_bytes, sync=self._sync, room=room)
        count, digest = self.head
        made._origin = {"journal": self.name[: entries.MAX_LABEL], "seq": count - 1, "sha256": digest}
        return made

    _origin: Entry | None = None

    @property
    def origin(self) -> Entry | None:
        """The entry of another journal that this one continues."""
        return self._origin

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- lines ----

    @contextlib.contextmanager
    def _entry(self, *, nothing_ran: bool) -> Generator[None]:
        """Hold the lock for one entry. If it cannot be written and comes before what it is about, the journal is as it
        was, and the caller may try again. Otherwise something has happened that the journal does not have: it ends."""
        with self._lock:
            try:
                yield
            except OSError as error:
                if self._cut() and nothing_ran:
                    raise self._failure(error, "nothing was run", Retry.SAFE) from None
                self._broken = error.strerror or "the write failed"
                raise self._failure(error, "what ran is not recorded", Retry.UNKNOWN) from None

    def _cut(self) -> bool:
        """Remove a part of a line. False if that failed."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._size)
            return True
        return False

    def _failure(self, error: OSError, consequence: str, retry: Retry) -> JournalError:
        why = error.strerror or "the write failed"
        for room in self._rooms:
            room.failure, room.disk_full = why, error.errno in FULL
        return JournalError(f"journal {self.name}: cannot be written: {why}; {consequence}", retry=retry)

    def _check_room(self) -> None:
        for room in self._rooms:
            if room.full:
                raise JournalError(
                    f"journal {self.name}: it has {room.used} of at most {room.most} bytes; nothing was run",
                    retry=Retry.NEVER,
                )

    def _append_small(self, kind: str, fields: Any) -> int:
        """Append an entry, with everything stored beside it if the line would be too long."""
        entry = fields(False)
        if len(json.dumps(entry)) > entries.MAX_LINE // 2:
            entry = fields(True)
        return self._append(kind, entry)

    def _append(self, kind: str, fields: Entry) -> int:
        if os.getpid() != self._owner:
            raise WrongProcess("the journal")
        if self._closed or self._broken:
            why = self._broken or "it was closed"
            raise JournalError(f"journal {self.name}: cannot be written: {why}; nothing was run", retry=Retry.NEVER)
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line = entries.encode({"seq": self._seq, "at": at, "kind": kind, "prev": self._prev, **fields}, self._key)
        self._write(line + b"\n")
        self._prev = entries.line_digest(line)
        self._seq += 1
        return self._seq - 1

    def _write(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(self._fd, view) :]
        if self._sync:
            os.fdatasync(self._fd)
        self._size += len(line)
        self._take(len(line))

    def _take(self, count: int) -> None:
        for room in self._rooms:
            room.take(count)

    def _data(self, data: Any, small: bool = False) -> Any:
        if isinstance(data, list):
            return [self._data(one, small) for one in data]  # pyright: ignore[reportUnknownVariableType]
        field = None if small else entries.inline(data)
        return self._stored(data) if field is None else field

    def _json(self, value: Any, small: bool = False) -> Entry:
        try:
            text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise SpecError("the arguments are not JSON") from None
        return self._stored(text) if small or len(text) > entries.INLINE else {"json": value}

    def _result(self, result: Entry, small: bool) -> Entry:
        shown = {**result, "detail": result["detail"][: entries.MAX_TEXT]}
        for name in ("stdout", "stderr"):
            shown[name] = self._data(result[name], small)
        for name in ("value", "network"):
            shown[name] = None if result[name] is None else self._json(result[name], small)
        return shown

    def _stored(self, data: bytes) -> Entry:
        digest = hashlib.sha256(data).hexdigest()
        self._take(self._blobs.put(digest, data, sync=self._sync))
        return {"sha256": digest, "size": len(data)}


def read_key(path: str) -> bytes:
    """Read a key of journals from a file that nobody else may read."""
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise SpecError(f"{path}: other users may read or change it; run chmod 600 on it")
            key = file.read(4096)
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    if len(key) < MIN_KEY:
        raise SpecError(f"{path}: a key has at least {MIN_KEY} random bytes")
    return key


class JournalFolder:
    """Journals of one owner in one folder, which together have at most `max_bytes`."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        key: bytes | None = None,
        max_bytes: int = MAX_BYTES,
        sync: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self._key, self._sync = key, sync
        used = sum(path.lstat().st_size for path in self.folder.rglob("*") if path.is_file())
        self._room = _Room(max_bytes, used)

    @property
    def failure(self) -> str:
        """Why the last write of a journal failed; empty if it did not, or if there is space again."""
        if self._room.failure and self._room.disk_full:
            with contextlib.suppress(OSError):
                disk = os.statvfs(self.folder)
                if disk.f_bavail * disk.f_frsize > SPACE:
                    self._room.failure = ""
        return self._room.failure

    def create(self, name: str, **labels: str) -> Journal:
        return Journal(
            self.path(name), key=self._key, labels=labels, max_bytes=self._room.most, sync=self._sync, room=self._room
        )

    def path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise SpecError(f"journal {name[:80]!r}: letters, digits, _ and -")
        return self.folder / f"{name}.jsonl"
