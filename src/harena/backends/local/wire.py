"""Frames between host and box, and the parser of data from a box.

Everything a box sends is hostile: lengths are capped before memory is taken, every structure has one size, unknown
operations and trailing bytes are refused with WireError.

The numbers and layouts below are the table that native/wire.h and guest/wire.py are made from: `make wire`.
"""

from __future__ import annotations

import array
import enum
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from harena.errors import WireError
from harena.sandbox.spec import MB
from harena.sandbox.strict_json import MAX_ANSWER_ITEMS, parse_json

MAGIC = 0x314E5248
MAX_FRAME = 64 * MB
MAX_REPORT = MB
"""Largest frame from an init or a zygote. Output of jobs comes in pieces, and only file contents are longer."""
MAX_FDS = 8
MAX_JSON = 16 * MB

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
SOCKET_FIELDS = (("I", "view family type"), ("I", "routed"))  # routed: every address leads to it, in a fork's network
DONE_FIELDS = (
    ("I", "ended"),
    ("i", "wstatus"),
    ("I", "hits"),  # 1: the process limit was hit; 2: the kernel's memory limit was hit
    ("i", "exec_errno"),
    ("Q", "wall_ns cpu_ns peak_kb written"),
    ("I", "out_len err_len res_len records"),
)
"""What was not sent as OUTPUT of stdout, stderr and the result pipe follows."""

IMAGE_FIELDS = (
    ("I", "full uid gid layers argc envc"),
    ("Q", "keep root_bytes"),
)
"""A box whose root is an image, at the end of its configuration: whether jobs have many ids, the user of guests, the
number of layers, words of the command that starts its Python and of its environment, the capabilities of guests that
are root, and how much may be written outside of /workspace. Words follow: see native/image.c."""


def _packed(fields: tuple[tuple[str, str], ...]) -> struct.Struct:
    return struct.Struct("<" + "".join(code * len(names.split()) for code, names in fields))


HEAD, SPAWN, DONE = _packed(HEAD_FIELDS), _packed(SPAWN_FIELDS), _packed(DONE_FIELDS)
SOCKET = _packed(SOCKET_FIELDS)
IMAGE = _packed(IMAGE_FIELDS)
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
    SOCKET = 9
    """Make a socket in the network of a view; STARTED brings it."""
    CHANGES = 10
    """To the init of a box from an image: asks for the folder of changed files, which comes with STARTED."""
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
    VIEW = 5
    """A view of a box from an image: no process but an init, with the files of `view`. `ahead` is its number."""


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
    DISK = 6


class OutputStream(enum.IntEnum):
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
    carries: bool = False
    """A descriptor came with it."""
    earlier: Output | None = None
    """Output that the job wrote before DONE, if there was much of it."""


class Output:
    """Output of a running job, collected in pieces up to its limit."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._parts: list[list[bytes]] = [[] for _ in OutputStream]

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


def parse_head(data: bytes, max_frame: int = MAX_FRAME) -> tuple[int, int, int, int]:
    """Operation, id, length and descriptors of the frame that starts here."""
    magic, op, nfds, id, length = HEAD.unpack(data)
    if magic != MAGIC:
        raise WireError("the box sent bytes that are not a message")
    if op not in REPLIES:
        raise WireError(f"the box sent an unknown operation {op}")
    if length > max_frame:
        raise WireError(f"the box announced {length} bytes, above the {max_frame} byte limit")
    if nfds > 1:
        raise WireError("the box sent more descriptors than any answer has")
    return op, id, length, nfds


def parse_done(body: bytes, earlier: Output | None = None) -> Done:
    if len(body) < DONE.size:
        raise WireError("the box's report is too short")
    (ended, wstatus, hits, exec_errno, wall, cpu, peak, written, out, err, res, records) = DONE.unpack_from(body)
    if len(body) != DONE.size + out + err + res or ended > Ended.DISK:
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


class Reader:
    """Splits a box's byte stream into frames. Keeps at most one frame and one read in memory."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._parts: list[bytes] = []
        self._have = 0
        self._need = HEAD.size
        self._head: tuple[int, int, int, int] | None = None

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
                op, id, _, nfds = self._head
                frames.append(Frame(op, id, taken, carries=nfds > 0))
                self._head, self._need = None, HEAD.size
        rest = whole[at:]
        self._parts, self._have = [rest] if rest else [], len(rest)
        return frames


def rights(fds: tuple[int, ...]) -> list[tuple[int, int, array.array[int]]]:
    """Ancillary data for sendmsg that passes descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
