"""Compact format of replays. Guarantees: input is bounded (header, steps, sizes) and has a fixed structure, or is
refused with ReplayError; the game section contains no times, so the same match gives the same bytes.

A file is MAGIC, a version byte, the u32 length of the game section, the game section, the run section. A section is one
zstd frame of a u32 header length, a msgpack header and columns; docs/replays.md has the fields. Seats' actions are
separate columns, stored byte plane by byte plane without planes of zeros, so a small number takes one byte.
"""

from __future__ import annotations

import collections
import math
import re
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from harena.errors import BackendUnavailable, HarenaError

try:
    import msgspec
    import zstandard
except ImportError as error:
    raise BackendUnavailable("replays need msgspec and zstandard: pip install 'harena[match]'") from error

MAGIC = b"\x89HRP"
VERSION = 1
MAX_STEPS = 1_000_000
MAX_MOVES = 4_000_000
"""Maximum number of moves of all seats together."""
MAX_SEATS = 1024
MAX_HEADER = 1 << 20
MAX_SECTION = 64 << 20
MAX_FILE = 64 << 20
CHECK_EVERY = 100
"""Steps between two check hashes of the view."""
CHECK_BYTES = 4
"""Bytes of a check hash, which only has to show where a game diverged."""
FINAL_BYTES = 16

_U32 = struct.Struct("<I")
_LEVEL = 12
_MAX_PLANES = 64
_TINY_US, _SMALL_US, _FINE_US = 64, 256, 1024
_FINE_STEPS = 12

_T = TypeVar("_T")


class ReplayError(HarenaError):
    """The data is not a replay, is damaged or hostile, or cannot be re-run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Column:
    """Byte strings one after the other, in `width` bytes each, or of the lengths `lengths` when width is 0."""

    data: bytes
    width: int
    lengths: tuple[int, ...] = ()

    @classmethod
    def of(cls, items: Sequence[bytes]) -> Column:
        widths = set(map(len, items))
        if len(widths) > 1 or widths == {0}:
            return cls(b"".join(items), 0, tuple(map(len, items)))
        return cls(b"".join(items), widths.pop() if widths else 1)

    def __len__(self) -> int:
        return len(self.data) // self.width if self.width else len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        at = 0
        for size in self.lengths if not self.width else (self.width for _ in range(len(self))):
            yield self.data[at : at + size]
            at += size


class _ColumnHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    count: int
    width: int
    planes: tuple[int, ...]
    """The byte positions that are stored; the others are zero. Empty: as it is, byte after byte."""


def _pack_column(column: Column) -> tuple[_ColumnHead, bytes]:
    width, data = column.width, column.data
    if not width:
        head, lengths = _pack_column(Column(b"".join(map(_U32.pack, column.lengths)), 4))
        return _ColumnHead(head.count, 0, head.planes), lengths + data
    if width > _MAX_PLANES or not data:
        return _ColumnHead(len(column), width, ()), data
    planes = [data[at::width] for at in range(width)]
    kept = tuple(at for at, plane in enumerate(planes) if plane.strip(b"\0")) or (0,)
    return _ColumnHead(len(column), width, kept), b"".join(planes[at] for at in kept)


def _unpack_column(head: _ColumnHead, reader: _RecordReader) -> Column:
    if not 0 <= head.count <= MAX_STEPS or not 0 <= head.width <= MAX_SECTION:
        raise ReplayError(f"a column of {head.count} times {head.width} bytes: over the limits of a replay")
    if not head.width:
        raw = _unpack_column(_ColumnHead(head.count, 4, head.planes), reader)
        lengths = struct.unpack(f"<{head.count}I", raw.data)
        return Column(reader.take(sum(lengths)), 0, lengths)
    size = head.count * head.width
    if not head.planes:
        return Column(reader.take(size), head.width)
    if list(head.planes) != sorted(set(head.planes)) or not 0 <= head.planes[0] <= head.planes[-1] < head.width:
        raise ReplayError("a column whose byte planes are out of order")
    reader.spend(size)
    data = bytearray(size)
    for at in head.planes:
        data[at :: head.width] = reader.take(head.count)
    return Column(bytes(data), head.width)


class _RecordReader:
    """What is left of a section, and of the memory that its columns may take: planes left out cost no bytes there."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._budget = data, 0, MAX_SECTION

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ReplayError("a section of the replay ends early")
        self._at += size
        return self._data[self._at - size : self._at]

    def spend(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            raise ReplayError(f"the columns of the replay unpack to more than {MAX_SECTION >> 20} MiB")

    def finish(self) -> None:
        if self._at != len(self._data):
            raise ReplayError(f"{len(self._data) - self._at} bytes too many in a section of the replay")


class _GameHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    environment: str
    seed: int
    config: dict[str, Any]
    agents: tuple[str, ...]
    steps: int
    winner: int | None
    scores: tuple[float, ...]
    status: str
    seats: tuple[str, ...]
    forfeited: tuple[int, ...]
    final: bytes
    checks: bytes
    movers: tuple[tuple[int, ...], ...]
    order: _ColumnHead | None
    columns: tuple[_ColumnHead, ...]
    withdrawn: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Written only where there are some: replays without any are what they were before this was known."""
    images: tuple[str, ...] = ()
    """The same."""


class _RunHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    match_id: str
    harena: str
    reason: str
    seats: tuple[str, ...]
    started_at: float
    ended_at: float
    means: tuple[tuple[tuple[int, int], ...], ...]
    """What each code of a seat's column means, in microseconds: the average of the moves that have it."""
    columns: tuple[_ColumnHead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Contents of a replay."""

    environment: str
    seed: int
    config: dict[str, Any]
    agents: tuple[str, ...]
    movers: tuple[tuple[int, ...], ...]
    """The distinct sets of seats that moved together."""
    order: Column
    """Which of `movers` each step has, as u16."""
    actions: tuple[Column, ...]
    """The actions of each seat, as its space encodes them."""
    cpu_us: tuple[tuple[int, ...], ...]
    """CPU times of each seat, beside its actions."""
    winner: int | None
    scores: tuple[float, ...]
    status: str
    reason: str
    seats: tuple[tuple[str, str], ...]
    forfeited: tuple[int, ...]
    withdrawn: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """After how many steps which seats were taken out, while the others played on."""
    images: tuple[str, ...] = ()
    """For each seat the image that played there, by name and digest; empty for code. Empty if no seat had one."""
    checks: bytes
    """CHECK_BYTES of the view's hash after every CHECK_EVERY steps; may be empty."""
    final: bytes
    """FINAL_BYTES of the last view's hash; empty when it is not known."""
    match_id: str
    harena: str
    started_at: float
    ended_at: float

    @property
    def steps(self) -> int:
        return len(self.order)

    @property
    def environment_version(self) -> str:
        """Version from the id; empty if it has none."""
        found = re.search(r"[-_](v\d+)$", self.environment)
        return found[1] if found else ""

    def moves(self) -> Iterator[tuple[dict[int, bytes], dict[int, int]]]:
        """Step by step: the actions, and the microseconds they took, by seat."""
        actions = [iter(column) for column in self.actions]
        times = [iter(column) for column in self.cpu_us]
        for (index,) in struct.iter_unpack("<H", self.order.data):
            movers = self.movers[index]
            yield {seat: next(actions[seat]) for seat in movers}, {seat: next(times[seat]) for seat in movers}


@dataclass(frozen=True, slots=True)
class Moves:
    """Steps turned into columns."""

    movers: tuple[tuple[int, ...], ...]
    order: Column
    actions: tuple[Column, ...]
    cpu_us: tuple[tuple[int, ...], ...]


def columns(seats: int, steps: Sequence[tuple[Mapping[int, bytes], Mapping[int, int]]]) -> Moves:
    if len(steps) > MAX_STEPS:
        raise ReplayError(f"{len(steps)} steps are too many for a replay, at most {MAX_STEPS}: turn recording off")
    movers: dict[tuple[int, ...], int] = {}
    order: list[int] = []
    actions: list[list[bytes]] = [[] for _ in range(seats)]
    times: list[list[int]] = [[] for _ in range(seats)]
    for moved, cpu_us in steps:
        order.append(movers.setdefault(tuple(sorted(moved)), len(movers)))
        for seat, action in moved.items():
            actions[seat].append(action)
            times[seat].append(cpu_us.get(seat, 0))
    if sum(map(len, actions)) > MAX_MOVES:
        raise ReplayError(f"more than {MAX_MOVES} moves are too many for a replay: turn recording off")
    if len(movers) > 1 << 16:
        raise ReplayError("more than 65536 different sets of seats moved together: turn recording off")
    packed = Column(struct.pack(f"<{len(order)}H", *order), 2)
    return Moves(tuple(movers), packed, tuple(map(Column.of, actions)), tuple(map(tuple, times)))


def game_section(record: Record) -> list[bytes]:
    """Not compressed, in blocks whose bytes look alike."""
    heads, blocks = _packed(record.actions)
    order_head, order = None, b""
    if len(record.movers) > 1:
        order_head, order = _pack_column(record.order)
    head = _GameHead(
        record.environment,
        record.seed,
        record.config,
        record.agents,
        record.steps,
        record.winner,
        record.scores,
        record.status,
        tuple(status for status, _ in record.seats),
        record.forfeited,
        record.final,
        record.checks,
        record.movers,
        order_head,
        heads,
        record.withdrawn,
        record.images,
    )
    fields = msgspec.structs.astuple(head)
    left_out = 0 if record.images else 1 if record.withdrawn else 2
    return [_header(fields[: len(fields) - left_out]), order, *blocks]


def run_section(record: Record) -> list[bytes]:
    codes = [bytes(map(_time_code, times)) for times in record.cpu_us]
    means = tuple(_means(seat, times) for seat, times in zip(codes, record.cpu_us, strict=True))
    heads, blocks = _packed([Column(seat, 1) for seat in codes])
    head = _RunHead(
        record.match_id,
        record.harena,
        record.reason,
        tuple(reason for _, reason in record.seats),
        record.started_at,
        record.ended_at,
        means,
        heads,
    )
    return [_header(head), *blocks]


def encode(record: Record) -> bytes:
    game, run = _compress(game_section(record)), _compress(run_section(record))
    return b"".join((MAGIC, bytes([VERSION]), _U32.pack(len(game)), game, run))


def decode(data: bytes) -> Record:
    if len(data) > MAX_FILE:
        raise ReplayError(f"{len(data)} bytes are too many for a replay, at most {MAX_FILE >> 20} MiB")
    start = len(MAGIC) + 1
    if not data.startswith(MAGIC) or len(data) < start + 4:
        raise ReplayError("not a compact replay: it does not start like one")
    if data[start - 1] != VERSION:
        raise ReplayError(f"a replay of format {data[start - 1]}; this version of harena reads format {VERSION}")
    (size,) = _U32.unpack_from(data, start)
    try:
        return _read(data[start + 4 : start + 4 + size], data[start + 4 + size :])
    except (
        msgspec.MsgspecError,
        zstandard.ZstdError,
        struct.error,
        RecursionError,
        ValueError,
        OverflowError,
    ) as error:
        raise ReplayError(f"the replay is damaged: {error}") from None


def _read(game_bytes: bytes, run_bytes: bytes) -> Record:
    reader = _RecordReader(_decompress(game_bytes))
    game = _take_header(reader, _GameHead)
    _check_game(game)
    one = Column(bytes(2 * game.steps), 2)
    order = _unpack_column(game.order, reader) if game.order is not None else one
    actions = tuple(_unpack_column(head, reader) for head in game.columns)
    reader.finish()
    _check_moves(game, order, actions)
    reader = _RecordReader(_decompress(run_bytes))
    run = _take_header(reader, _RunHead)
    codes = tuple(_unpack_column(head, reader) for head in run.columns)
    reader.finish()
    if not len(run.seats) == len(codes) == len(run.means) == len(actions):
        raise ReplayError("the replay's run section is about another number of seats")
    times = tuple(
        _times(codes, dict(means), len(moves)) for codes, means, moves in zip(codes, run.means, actions, strict=True)
    )
    return Record(
        environment=game.environment,
        seed=game.seed,
        config=game.config,
        agents=game.agents,
        movers=game.movers,
        order=order,
        actions=actions,
        cpu_us=times,
        winner=game.winner,
        scores=game.scores,
        status=game.status,
        reason=run.reason,
        seats=tuple(zip(game.seats, run.seats, strict=True)),
        forfeited=game.forfeited,
        withdrawn=game.withdrawn,
        images=game.images,
        checks=game.checks,
        final=game.final,
        match_id=run.match_id,
        harena=run.harena,
        started_at=run.started_at,
        ended_at=run.ended_at,
    )


def _check_game(game: _GameHead) -> None:
    seats = len(game.agents)
    if not 1 <= seats <= MAX_SEATS or not len(game.seats) == len(game.scores) == len(game.columns) == seats:
        raise ReplayError(f"the replay names {seats} agents and does not fit them")
    if len(game.images) not in (0, seats):
        raise ReplayError(f"the replay names {len(game.images)} images for {seats} agents")
    if not 0 <= game.steps <= MAX_STEPS:
        raise ReplayError(f"a replay of {game.steps} steps, at most {MAX_STEPS} are read")
    named = {seat for movers in game.movers for seat in movers} | set(game.forfeited)
    out = [seat for _, seats in game.withdrawn for seat in seats]
    if not set(out) <= set(game.forfeited) or len(set(out)) != len(out):
        raise ReplayError("the replay takes out seats that did not forfeit, or one of them twice")
    after = [step for step, _ in game.withdrawn]
    if after != sorted(after) or not all(0 <= step <= game.steps for step in after):
        raise ReplayError("the replay takes out seats at no step of its own")
    if game.winner is not None:
        named.add(game.winner)
    if not named <= set(range(seats)) or any(len(set(movers)) != len(movers) for movers in game.movers):
        raise ReplayError(f"the replay names seats that its {seats} agents do not have")
    if len(game.movers) > 1 << 16 or (
        game.steps > 0 and (not game.movers or (game.order is None and len(game.movers) > 1))
    ):
        raise ReplayError("the replay does not say who moved")
    if len(game.final) not in (0, FINAL_BYTES) or len(game.checks) not in (0, game.steps // CHECK_EVERY * CHECK_BYTES):
        raise ReplayError("the replay's hashes have another length")


def _check_moves(game: _GameHead, order: Column, actions: Sequence[Column]) -> None:
    if order.width != 2 or len(order) != game.steps:
        raise ReplayError(f"a replay of {game.steps} steps, with an order of {len(order)}")
    counts = [0] * len(actions)
    for (index,), times in collections.Counter(struct.iter_unpack("<H", order.data)).items():
        if index >= len(game.movers):
            raise ReplayError("the replay does not say who moved")
        for seat in game.movers[index]:
            counts[seat] += times
    if sum(counts) > MAX_MOVES:
        raise ReplayError(f"a replay of {sum(counts)} moves, at most {MAX_MOVES} are read")
    for seat, (count, column) in enumerate(zip(counts, actions, strict=True)):
        if count != len(column):
            raise ReplayError(f"seat {seat} moves {count} times in the replay, with {len(column)} actions")


def _packed(parts: Iterable[Column]) -> tuple[tuple[_ColumnHead, ...], list[bytes]]:
    packed = [_pack_column(part) for part in parts]
    return tuple(head for head, _ in packed), [block for _, block in packed]


def canonical(value: Any) -> bytes:
    """msgpack with sorted keys: unlike JSON it leaves no choice of how to write a number."""
    return msgspec.msgpack.encode(value, order="deterministic")


def _header(head: object) -> bytes:
    try:
        data = canonical(head)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise ReplayError(f"the replay's seed, config and names must be plain data: {error}") from None
    if len(data) > MAX_HEADER:
        raise ReplayError(f"the replay's header has {len(data)} bytes, at most {MAX_HEADER}: a smaller config")
    return _U32.pack(len(data)) + data


def _take_header(reader: _RecordReader, kind: type[_T]) -> _T:
    (size,) = _U32.unpack(reader.take(4))
    if size > MAX_HEADER:
        raise ReplayError(f"a replay's header of {size} bytes, at most {MAX_HEADER} are read")
    return msgspec.msgpack.decode(reader.take(size), type=kind)


_local = threading.local()


def _compress(blocks: Sequence[bytes]) -> bytes:
    size = sum(map(len, blocks))
    if size > MAX_SECTION:
        raise ReplayError(f"{size} bytes of moves are too many for a replay: turn recording off")
    compressor: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    if size < 512:
        return compressor.compress(b"".join(blocks))
    stream = compressor.compressobj(size=size)
    parts: list[bytes] = []
    for block in blocks:  # separate blocks have separate codes, so that text and moves do not share one
        parts += (stream.compress(block), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) if block else b"")
    return b"".join((*parts, stream.flush()))


def _decompress(data: bytes) -> bytes:
    size = zstandard.frame_content_size(data)
    if not 0 <= size <= MAX_SECTION:
        raise ReplayError(f"a section that says it unpacks to {size} bytes; at most {MAX_SECTION >> 20} MiB are read")
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(data, max_output_size=size)


def _time_code(us: int) -> int:
    """Steps of 6 % from a millisecond on, hardly any below it: noise is not worth its bytes."""
    if us < _TINY_US:
        return 0
    if us < _FINE_US:
        return 1 if us < _SMALL_US else 2
    return min(255, 3 + int(_FINE_STEPS * math.log2(us / _FINE_US)))


def _means(codes: bytes, times: Sequence[int]) -> tuple[tuple[int, int], ...]:
    if codes and not codes.strip(b"\0"):
        return ((0, round(sum(times) / len(times))),)
    sums: dict[int, list[int]] = {}
    for code, us in zip(codes, times, strict=True):
        entry = sums.setdefault(code, [0, 0])
        entry[0] += us
        entry[1] += 1
    return tuple((code, round(total / count)) for code, (total, count) in sorted(sums.items()))


def _times(codes: Column, means: Mapping[int, int], moves: int) -> tuple[int, ...]:
    if codes.width != 1 or len(codes) != moves:
        raise ReplayError(f"{moves} moves in the replay, with {len(codes)} times")
    if any(us < 0 for us in means.values()) or not set(codes.data) <= means.keys():
        raise ReplayError("a move in the replay has a time that it does not explain")
    return tuple(means[code] for code in codes.data)
