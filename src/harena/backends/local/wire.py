"""Frames between host and box, and the parser of data from a box.

Everything a box sends is hostile: lengths are capped before memory is taken, every structure has one size, unknown
operations and trailing bytes are refused with WireError.

The numbers and layouts below are the table that native/wire.h and guest/wire.py are made from: `make wire`.
"""

from __future__ import annotations

import array
import enum
import json
import math
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from harena.errors import WireError
from harena.sandbox.spec import MB

MAGIC = 0x314E5248
MAX_FRAME = 64 * MB
MAX_REPORT = MB
"""Largest frame from an init or a zygote. Output of jobs comes in pieces, and only file contents are longer."""
MAX_FDS = 8
MAX_JSON = 16 * MB
MAX_ITEMS = 1_000_000
"""Maximum number of items of a JSON value, including nested ones and keys: a few bytes of JSON take a hundred in
memory."""
MAX_ANSWER_ITEMS = 2_500_000
"""The same for an answer of a server; the longest lists 200,000 files."""
MAX_DEPTH = 200
"""Most levels of one JSON value: what takes it apart later may do so by recursion."""

HEAD_FIELDS = (("I", "magic"), ("H", "op nfds"), ("I", "id len"))
"""Every frame starts with these; `len` bytes follow. A layout is pairs of a code of `struct` and the fields it has."""
SPAWN_FIELDS = (
    ("I", "kind flags"),
    ("Q", "wall_ns cpu_ns memory output fs_bytes"),
    ("I", "processes nofile profile view"),
    ("I", "records"),  # results that the payload will send; each restarts the wall clock. 0: it sends none
    ("I", "ahead"),  # forks of the same template to keep ready
    ("I", "argc envc strings_len cwd_len stdin_len payload_len"),
    ("H", "rows cols"),
    ("I", "result"),  # bytes that it may write to its result pipe
)
"""Strings follow: argc + envc NUL-ended ones (strings_len bytes), the working folder (cwd_len, with NUL), stdin and the
payload."""
DONE_FIELDS = (
    ("I", "ended"),
    ("i", "wstatus"),
    ("I", "hits"),  # 1: the process limit was hit; 2: the kernel's memory limit was hit
    ("i", "exec_errno"),
    ("Q", "wall_ns cpu_ns peak_kb written"),
    ("I", "out_len err_len res_len records"),
)
"""What was not sent as OUTPUT of stdout, stderr and the result pipe follows."""


def _packed(fields: tuple[tuple[str, str], ...]) -> struct.Struct:
    return struct.Struct("<" + "".join(code * len(names.split()) for code, names in fields))


HEAD, SPAWN, DONE = _packed(HEAD_FIELDS), _packed(SPAWN_FIELDS), _packed(DONE_FIELDS)
ERROR = struct.Struct("<i")
U32 = struct.Struct("<I")
RECORD = struct.Struct("<ciddII")
"""Result of a program of a group: limit, exit code, CPU and wall seconds, sizes of stdout and stderr, which follow."""


class Op(enum.IntEnum):
    PING = 1
    SPAWN = 2
    KILL = 3
    CONFIG = 4
    ALLOW_FORKS = 5
    VIEW = 6
    USAGE = 7
    CANCEL_FORKS = 8
    CALL = 16
    """To a server in the box (guest/zygote.py): JSON and bytes."""
    PONG = 65
    DONE = 66
    STARTED = 67
    ERROR = 68
    OUTPUT = 69
    """Output of a job that is still running: which stream (4 bytes), then bytes of it."""
    ANSWER = 80


REPLIES = frozenset({Op.PONG, Op.DONE, Op.STARTED, Op.ERROR, Op.OUTPUT, Op.ANSWER})


class Kind(enum.IntEnum):
    EXEC = 1
    """A command."""
    PROGRAM = 2
    """A fork of the zygote that runs its payload and ends."""
    SERVER = 3
    """A fork of the zygote that talks to the host on a socket of its own."""
    TRUSTED = 4
    """The zygote itself: our own code, in the box but not confined as a guest."""


class Flag(enum.IntFlag):
    CAPTURE = 1
    """Collect stdout and stderr and send them with DONE."""
    PTY = 2
    """A new terminal; its master goes to the host with STARTED."""
    FRESH_FS = 4
    """An empty /workspace, /tmp and /dev/shm that end with the job."""
    FORKABLE = 8
    """May be forked into new views: see native/zygote.c."""
    NOTIFY = 16
    """Send STARTED."""
    BATCH = 32
    """One of many: throughput counts, so it is not warmed while it waits."""


class Ended(enum.IntEnum):
    """What ended a job, as the box saw it; the host makes the verdict of it."""

    SELF = 0
    WALL = 1
    CPU = 2
    MEMORY = 3
    OUTPUT = 4
    HOST = 5


class Stream(enum.IntEnum):
    OUT = 0
    ERR = 1
    RESULT = 2


class Profile(enum.IntEnum):
    """The seccomp profiles, in the order of a box's configuration."""

    SESSION = 0
    """Processes of a session's box."""
    PROGRAM = 1
    """Programs of `pool.map`: only AF_UNIX sockets."""
    INTERPRETER = 2
    """The persistent interpreter: may also clone() with one exact value of flags, to fork itself into namespaces."""
    TALK = 3
    """Agents of a match: as PROGRAM, and bound to the processors that the host chose."""


class Mode(bytes, enum.Enum):
    """What a fork of the zygote does: the first byte of its payload. Pieces with their lengths in front follow."""

    PROGRAM = b"P"
    """Source, stdin."""
    GROUP = b"G"
    """Bytes of output that each may write, then sources that share a process."""
    CALL = b"C"
    """JSON: a source, and the function of it to call."""
    SERVER = b"S"
    """JSON: the role, files or interpreter."""
    TALK = b"T"
    """Source of a conversation."""


class Frame(NamedTuple):
    op: int
    id: int
    body: bytes
    fds: tuple[int, ...] = ()
    earlier: Output | None = None
    """With DONE: output that the job wrote before, if there was much of it."""


class Output:
    """Output of a running job, collected in pieces up to its limit."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._parts: list[list[bytes]] = [[] for _ in Stream]

    def add(self, body: bytes) -> None:
        if len(body) <= U32.size:
            raise WireError("the box sent output without any bytes")
        stream: int = U32.unpack_from(body)[0]
        self._room -= len(body) - U32.size
        if stream >= len(self._parts) or self._room < 0:
            raise WireError("the box sent output that nobody allowed")
        self._parts[stream].append(body[U32.size :])

    def joined(self, *rest: bytes) -> list[bytes]:
        """Standard output, standard error and result, including the last piece."""
        return [b"".join((*parts, last)) if parts else last for parts, last in zip(self._parts, rest, strict=True)]


class Done(NamedTuple):
    """How a job ended, as reported by the init of the box or the zygote."""

    ended: int
    wstatus: int
    hits: int
    exec_errno: int
    wall_ns: int
    cpu_ns: int
    peak_kb: int
    written: int
    records: int
    stdout: bytes
    stderr: bytes
    result: bytes
    """After the 8 bytes of CPU base: records, written by the guest itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    kind: Kind
    flags: Flag
    wall_ns: int = 0
    cpu_ns: int = 0
    memory: int = 0
    output: int = 0
    fs_bytes: int = 0
    processes: int = 0
    nofile: int = 0
    profile: int = 0
    view: int = 0
    records: int = 0
    ahead: int = 0
    argv: tuple[bytes, ...] = ()
    env: tuple[bytes, ...] = ()
    cwd: bytes = b""
    stdin: bytes = b""
    payload: bytes = b""
    rows: int = 0
    cols: int = 0
    result: int = 0
    """Bytes that the job may write to its result pipe."""

    @property
    def room(self) -> int:
        """Maximum number of bytes that the job writes."""
        return self.output + self.result

    def encode(self) -> bytes:
        strings = b"".join(word + b"\0" for word in (*self.argv, *self.env))
        cwd = self.cwd + b"\0" if self.cwd else b""
        fixed = SPAWN.pack(
            self.kind,
            self.flags,
            self.wall_ns,
            self.cpu_ns,
            self.memory,
            self.output,
            self.fs_bytes,
            self.processes,
            self.nofile,
            self.profile,
            self.view,
            self.records,
            self.ahead,
            len(self.argv),
            len(self.env),
            len(strings),
            len(cwd),
            len(self.stdin),
            len(self.payload),
            self.rows,
            self.cols,
            self.result,
        )
        return b"".join((fixed, strings, cwd, self.stdin, self.payload))


def frame(op: int, id: int, body: bytes = b"", nfds: int = 0) -> bytes:
    if len(body) > MAX_FRAME:
        raise WireError(f"a request of {len(body)} bytes is above the {MAX_FRAME} byte limit of one message")
    return HEAD.pack(MAGIC, op, nfds, id, len(body)) + body


def parse_head(data: bytes, max_frame: int = MAX_FRAME) -> tuple[int, int, int]:
    """Operation, id and length of the frame that starts here."""
    magic, op, nfds, id, length = HEAD.unpack(data)
    if magic != MAGIC:
        raise WireError("the box sent bytes that are not a message")
    if op not in REPLIES:
        raise WireError(f"the box sent an unknown operation {op}")
    if length > max_frame:
        raise WireError(f"the box announced {length} bytes, above the {max_frame} byte limit")
    if nfds > 1:
        raise WireError("the box sent more descriptors than any answer has")
    return op, id, length


def parse_done(body: bytes, earlier: Output | None = None) -> Done:
    if len(body) < DONE.size:
        raise WireError("the box's report is too short")
    (ended, wstatus, hits, exec_errno, wall, cpu, peak, written, out, err, res, records) = DONE.unpack_from(body)
    if len(body) != DONE.size + out + err + res or ended > Ended.HOST:
        raise WireError("the box's report does not add up")
    at = DONE.size
    streams = [body[at : at + out], body[at + out : at + out + err], body[at + out + err :]]
    if earlier is not None:
        streams = earlier.joined(*streams)
    return Done(ended, wstatus, hits, exec_errno, wall, cpu, peak, written, records, *streams)


def parse_error(body: bytes) -> tuple[int, str]:
    if len(body) < ERROR.size or len(body) > 4096:
        raise WireError("the box's error message has no sensible size")
    (number,) = ERROR.unpack_from(body)
    return number, body[ERROR.size :].decode("utf-8", "replace")


def parse_records(data: bytes, limit: int) -> list[bytes]:
    """Complete records that a program wrote to its result pipe. A guest may have truncated or forged the last one."""
    records: list[bytes] = []
    at = 8
    while len(data) - at >= U32.size and len(records) < limit:
        (length,) = U32.unpack_from(data, at)
        at += U32.size
        if len(data) - at < length:
            break
        records.append(data[at : at + length])
        at += length
    return records


def encode_call(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    text = json.dumps(message, separators=(",", ":")).encode()
    return U32.pack(len(text)) + text + blob


def parse_answer(body: bytes) -> tuple[dict[str, Any], bytes]:
    """The JSON object and the bytes of a server's answer."""
    if len(body) < U32.size:
        raise WireError("the box's answer is too short")
    (length,) = U32.unpack_from(body)
    if length > MAX_JSON or length > len(body) - U32.size:
        raise WireError("the box's answer does not add up")
    value = parse_json(body[U32.size : U32.size + length], MAX_ANSWER_ITEMS)
    if not isinstance(value, dict):
        raise WireError("the box's answer is not an object")
    return cast("dict[str, Any]", value), body[U32.size + length :]


class ValueTooLarge(WireError):
    """JSON with more items or levels than the host accepts."""


def parse_json(data: bytes, max_items: int = MAX_ITEMS) -> Any:
    """Strict JSON: no NaN, no infinities, no repeated keys, no numbers of unbounded length; items and levels are
    bounded before any value is created."""
    _bound(data, max_items)
    try:
        return json.loads(data, parse_constant=_refuse, parse_int=_int, parse_float=_float, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the box sent JSON that is refused: {type(error).__name__}: {str(error)[:200]}") from None


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def _items(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b",") + text.count(b":")


def _bound(text: bytes, max_items: int) -> None:
    """Check the number of items and levels without creating values. Strings are skipped only if there seem to be
    many."""
    if _items(text) < max_items and text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    text = _STRING.sub(b"", text)
    if _items(text) >= max_items:
        raise ValueTooLarge(f"the box sent JSON of more than {max_items} items")
    brackets = text.translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets, before = brackets.replace(b"[]", b""), len(brackets)  # takes the innermost level away
        if len(brackets) in {0, before}:
            return  # nothing is left, or no JSON: the parser will say so
    raise ValueTooLarge(f"the box sent JSON nested more than {MAX_DEPTH} deep")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _int(digits: str) -> int:
    if len(digits) > 4000:
        raise ValueError("a number of more than 4000 digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number too large for a float")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is given twice")
    return value


class Reader:
    """Splits a box's byte stream into frames. Keeps at most one frame and one read in memory."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._parts: list[bytes] = []
        self._have = 0
        self._need = HEAD.size
        self._head: tuple[int, int, int] | None = None

    def feed(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return frames
        whole = data if len(self._parts) == 1 else b"".join(self._parts)
        at = 0  # the rest is copied once for all frames: a flood of tiny ones costs no more than its bytes
        while len(whole) - at >= self._need:
            taken = whole[at : at + self._need]
            at += self._need
            if self._head is None:
                self._head = parse_head(taken, self._max_frame)
                self._need = self._head[2]
            else:
                op, id, _ = self._head
                frames.append(Frame(op, id, taken))
                self._head, self._need = None, HEAD.size
        rest = whole[at:]
        self._parts, self._have = [rest] if rest else [], len(rest)
        return frames


def rights(fds: tuple[int, ...]) -> list[tuple[int, int, array.array[int]]]:
    """Ancillary data for sendmsg that passes descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
