"""Parser of tar archives that nobody trusts.

Reads ustar, pax, GNU and old V7 archives from a stream, in one pass and in bounded memory. It knows headers and bytes,
not files: names are as the archive gave them. Where the formats leave room it decides as Go's archive/tar, which
Docker, containerd and umoci use, so that an image has the same files here as there:

- Records of a global pax header are checked, and not applied.
- Only files have a body. The size field of links, folders and devices is ignored.
- An archive may end without its two zero blocks. The digest of the layer tells whether it is whole.

Anything malformed raises `TarError`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:  # dataclasses take long to import, and the process that parses has its caps without them
    from harena.images.unpack.caps import Caps

BLOCK = 512
BUFFER_BYTES = 1 << 20


class TarError(Exception):
    """The archive is malformed, or exceeds a cap."""


FILE, HARD, SYMLINK, CHAR, BLOCK_DEVICE, FOLDER, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
_KINDS = {kind: kind for kind in (FILE, HARD, SYMLINK, CHAR, BLOCK_DEVICE, FOLDER, FIFO)} | {
    b"\0": FILE,
    b"7": FILE,
    b"S": FILE,
}

_HEADER = struct.Struct("100s24s12s12s8sc100s8s80s155s12s")
_ZERO = bytes(BLOCK)
_XATTR = b"SCHILY.xattr."
_MTIME_END_S = 1 << 34
"""The latest time that ext4 can store is in 2446, which is before this."""


class TarMember:
    """One member. `size` is that of the file, holes included."""

    __slots__ = ("gid", "kind", "link", "mode", "mtime_ns", "name", "parts", "size", "uid", "xattrs")

    def __init__(self, kind: bytes, name: bytes, link: bytes, mode: int, uid: int, gid: int) -> None:
        self.kind, self.name, self.link = kind, name, link
        self.mode, self.uid, self.gid = mode, uid, gid
        self.size = self.mtime_ns = 0
        self.xattrs: dict[bytes, bytes] | None = None
        self.parts: list[tuple[int, int]] | None = None
        """Offset and length of the parts of a sparse file; the body has them one after the other."""


class TarArchive:
    """Members of an archive, in order. `readinto` fills a part of the buffer and returns 0 at the end."""

    def __init__(self, readinto: Callable[[memoryview], int], caps: Caps) -> None:
        self._readinto, self._caps = readinto, caps
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._end = 0
        self._left = self._padding = 0
        self._read_bytes = 0
        self._known: dict[bytes, tuple[int, int, int]] = {}
        self.name = b""
        """Name of the latest member, for messages."""

    @property
    def left(self) -> int:
        """Bytes of the body that have not been read."""
        return self._left

    @property
    def buffered(self) -> int:
        """Bytes that have been read ahead."""
        return self._end - self._start

    def next(self) -> TarMember | None:
        """Return the next member, or None at the end. What is left of the body before is skipped."""
        if self._left or self._padding:
            self._skip(self._left + self._padding)
            self._left = self._padding = 0
        extended: dict[bytes, bytes] = {}
        sparse: list[bytes] = []
        long_name = long_link = b""
        while True:
            at = self._start
            if self._end - at < BLOCK:
                if not self._fill(BLOCK):
                    if self._end != self._start or extended or long_name or long_link:
                        raise TarError("the archive is cut off in a header")
                    if not self._read_bytes:
                        raise TarError("the archive is empty")
                    return None
                at = self._start
            block = self._view[at : at + BLOCK]
            name, numbers, size_field, mtime_field, sum_field, flag, link, magic, rest, prefix, tail = _HEADER.unpack(
                block
            )
            if sum_field == b"\0\0\0\0\0\0\0\0" and bytes(block) == _ZERO:
                self._start = at + BLOCK
                if self._fill(BLOCK) and bytes(self._view[self._start : self._start + BLOCK]) != _ZERO:
                    raise TarError("a block of zeros is followed by something else")
                if extended or long_name or long_link:
                    raise TarError("an extended header has no member")
                return None
            # The low half of Adler-32 is one more than the sum of the bytes modulo 65521, and far quicker than sum().
            # Digests guard against forgery; this notices that something else than a header is here.
            expected = number(sum_field)
            if ((zlib.adler32(block) & 0xFFFF) - 1 - sum(sum_field) + 256 - expected) % 65521:
                # Some old programs added signed bytes.
                found = sum(block[:148]) + sum(block[156:]) + 256
                signed = found - 256 * sum(byte > 127 for byte in bytes(block[:148]) + bytes(block[156:]))
                if signed != expected:
                    raise TarError("a header has a wrong checksum")
            self._start = at + BLOCK
            size = number(size_field)
            if size < 0:
                raise TarError("a size is negative")
            if flag in b"xLKg":
                payload = self._payload(size)
                if flag == b"x":
                    extended, sparse = records(payload)
                elif flag == b"g":
                    records(payload)
                elif flag == b"L":
                    long_name = payload.partition(b"\0")[0]
                else:
                    long_link = payload.partition(b"\0")[0]
                continue
            break

        name = name.partition(b"\0")[0]
        if magic == b"ustar\x0000" and prefix[0]:
            if tail[8:] == b"tar\0":  # star keeps times at the end of the prefix
                prefix = prefix[:131]
            name = prefix.partition(b"\0")[0] + b"/" + name
        link = link.partition(b"\0")[0] if link[0] else b""
        if long_name:
            name = long_name
        if long_link:
            link = long_link
        if extended:
            name = extended.get(b"GNU.sparse.name") or extended.get(b"path") or name
            link = extended.get(b"linkpath") or link
        self.name = name
        kind = _KINDS.get(flag)
        if kind is None:
            raise TarError(f"its type {ascii(flag)[1:]} is not known")
        if flag == b"\0" and name.endswith(b"/"):
            kind = FOLDER
        if not name or b"\0" in name or b"\0" in link:
            raise TarError("a name is empty or has a zero byte")
        if len(name) > self._caps.name_bytes + 2 or len(link) > self._caps.name_bytes:
            raise TarError(f"a name is longer than {self._caps.name_bytes} bytes")

        known = self._known.get(numbers)
        if known is None:
            known = self._numbers(numbers)
        member = TarMember(kind, name, link, *known)
        member.mtime_ns = _bounded(number(mtime_field)) * 1_000_000_000
        if extended:
            size = self._extend(member, extended, size)
        if kind is not FILE:
            return member
        member.size = size
        self._left, self._padding = size, -size % BLOCK
        if flag == b"S":
            self._old_sparse(member, rest, prefix)
        elif extended and (sparse or b"GNU.sparse.map" in extended or b"GNU.sparse.major" in extended):
            self._pax_sparse(member, extended, sparse)
        if member.size > self._caps.bytes:
            raise TarError(f"the file is larger than {self._caps.bytes} bytes")
        return member

    def take(self, most: int) -> memoryview:
        """Return the next bytes of the body, at least one and at most `most`. Valid until the next call."""
        start = self._start
        if start == self._end:
            if not self._fill(1):
                raise TarError("the archive is cut off in a file")
            start = self._start
        count = min(most, self._left, self._end - start)
        self._start = start + count
        self._left -= count
        return self._view[start : start + count]

    def passed(self, count: int) -> None:
        """Note that so many bytes of the body went past the buffer, which must be empty."""
        if count <= 0:
            raise TarError("the archive is cut off in a file")
        self._left -= count
        self._count(count)

    def drain(self) -> None:
        """Read what follows the end of the archive."""
        self._start = self._end = 0
        while self._fill(1):
            self._start = self._end = 0

    def _numbers(self, field: bytes) -> tuple[int, int, int]:
        mode, uid, gid = number(field[:8]), number(field[8:16]), number(field[16:])
        if mode < 0:
            raise TarError("a mode is negative")
        known = mode & 0o7777, _id(uid), _id(gid)
        if len(self._known) > 1024:
            self._known.clear()
        self._known[field] = known
        return known

    def _extend(self, member: TarMember, extended: dict[bytes, bytes], size: int) -> int:
        for key, value in extended.items():
            if key == b"mtime":
                member.mtime_ns = _time(value)
            elif key == b"size":
                size = _decimal(value)
            elif key == b"uid":
                member.uid = _id(_decimal(value))
            elif key == b"gid":
                member.gid = _id(_decimal(value))
            elif key.startswith(_XATTR):
                if member.xattrs is None:
                    member.xattrs = {}
                member.xattrs[key[len(_XATTR) :]] = value
        if member.xattrs:
            if len(member.xattrs) > self._caps.xattrs:
                raise TarError(f"it has more than {self._caps.xattrs} extended attributes")
            if sum(len(key) + len(value) for key, value in member.xattrs.items()) > self._caps.xattr_bytes:
                raise TarError(f"its extended attributes are larger than {self._caps.xattr_bytes} bytes")
        return size

    def _old_sparse(self, member: TarMember, rest: bytes, prefix: bytes) -> None:
        # Of `rest` and `prefix` together byte 0 is byte 265 of the header.
        area = rest + prefix
        fields = [area[121 + 12 * n : 133 + 12 * n] for n in range(8)]
        member.size = number(area[218:230])
        more = area[217]
        while more:
            block = self._exactly(BLOCK)
            fields += [block[12 * n : 12 * n + 12] for n in range(42)]
            more = block[504]
            if len(fields) > 2 * self._caps.sparse_parts + 64:
                raise TarError(f"it has more than {self._caps.sparse_parts} sparse parts")
        # A part whose fields are empty ends the list.
        used = next((n for n in range(0, len(fields), 2) if not fields[n].strip(b"\0 ")), len(fields))
        self._set_parts(member, [number(field) for field in fields[:used]])

    def _pax_sparse(self, member: TarMember, extended: dict[bytes, bytes], sparse: list[bytes]) -> None:
        if b"GNU.sparse.major" in extended:
            if (extended[b"GNU.sparse.major"], extended.get(b"GNU.sparse.minor")) != (b"1", b"0"):
                raise TarError("its sparse format is not known")
            member.size = _decimal(extended.get(b"GNU.sparse.realsize", b""))
            values = self._sparse_map()
        else:
            member.size = _decimal(extended.get(b"GNU.sparse.size", b""))
            text = extended.get(b"GNU.sparse.map")
            if text is not None:
                sparse = text.split(b",") if text else []
            values = [_decimal(value) for value in sparse]
        self._set_parts(member, values)

    def _sparse_map(self) -> list[int]:
        """Read the map at the beginning of the body: a count, then an offset and a length for each part, as lines."""
        text = bytearray()
        wanted = found = 0
        while not wanted or found < wanted:
            if self._left < BLOCK or len(text) > BLOCK + 64 * wanted:
                raise TarError("its sparse map is malformed")
            block = self._exactly(BLOCK)
            self._left -= BLOCK
            text += block
            found += block.count(b"\n")
            if not wanted:
                count = _decimal(block.partition(b"\n")[0])
                if count > self._caps.sparse_parts:
                    raise TarError(f"it has more than {self._caps.sparse_parts} sparse parts")
                wanted = 1 + 2 * count
        return [_decimal(bytes(line)) for line in text.split(b"\n", wanted)[1:wanted]]

    def _set_parts(self, member: TarMember, values: list[int]) -> None:
        if len(values) % 2:
            raise TarError("its sparse map is malformed")
        parts = list(zip(values[::2], values[1::2], strict=True))
        if len(parts) > self._caps.sparse_parts:
            raise TarError(f"it has more than {self._caps.sparse_parts} sparse parts")
        end = stored = 0
        for offset, length in parts:
            if offset < end or length < 0:
                raise TarError("parts of its sparse map overlap")
            end = offset + length
            stored += length
        if end > member.size:
            raise TarError("its sparse map goes beyond its size")
        if stored != self._left:
            raise TarError("its sparse map does not match its size")
        member.parts = parts

    def _payload(self, size: int) -> bytes:
        if size > self._caps.header_bytes:
            raise TarError(f"an extended header is larger than {self._caps.header_bytes} bytes")
        payload = self._exactly(size)
        self._skip(-size % BLOCK)
        return payload

    def _exactly(self, size: int) -> bytes:
        if size <= BUFFER_BYTES:
            if not self._fill(size):
                raise TarError("the archive is cut off in a header")
            data = bytes(self._view[self._start : self._start + size])
            self._start += size
            return data
        whole = bytearray()
        while len(whole) < size:
            whole += self._exactly(min(size - len(whole), BUFFER_BYTES))
        return bytes(whole)

    def _skip(self, count: int) -> None:
        ahead = self._end - self._start
        while count > ahead:
            count -= ahead
            self._start = self._end = 0
            if not self._fill(1):
                raise TarError("the archive is cut off in a file")
            ahead = self._end
        self._start += count

    def _fill(self, need: int) -> bool:
        """Have at least so many bytes in the buffer, in one piece. False at the end of the stream."""
        start, end = self._start, self._end
        if end - start >= need:
            return True
        if start:
            self._view[: end - start] = bytes(self._view[start:end])
            self._start, self._end, end = 0, end - start, end - start
        while end < need:
            count = self._readinto(self._view[end:])
            if not count:
                return False
            self._count(count)
            self._end = end = end + count
        return True

    def _count(self, count: int) -> None:
        self._read_bytes += count
        if self._read_bytes > self._caps.archive_bytes:
            raise TarError(f"the archive is larger than {self._caps.archive_bytes} bytes")


def records(payload: bytes) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the records of a pax header; an empty value takes a record back. Sparse parts of format 0.0 repeat their
    keys, so they come separately."""
    found: dict[bytes, bytes] = {}
    sparse: list[bytes] = []
    at, end = 0, len(payload)
    while at < end:
        space = payload.find(b" ", at, at + 12)
        digits = payload[at:space] if space > at else b""
        if not digits.isdigit():
            _bad_record()
        stop = at + int(digits)
        if stop <= space + 2 or stop > end or payload[stop - 1] != 10:
            _bad_record()
        key, equals, value = payload[space + 1 : stop - 1].partition(b"=")
        if not key or not equals:
            _bad_record()
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            if (key == b"GNU.sparse.numbytes") != len(sparse) % 2:
                raise TarError("its sparse map is malformed")
            sparse.append(value)
        elif value or key.startswith(_XATTR):
            found[key] = value
        else:
            found.pop(key, None)
        at = stop
    return found, sparse


def _bad_record() -> NoReturn:
    raise TarError("a pax header is malformed")


def number(field: bytes) -> int:
    """Value of a numeric field: octal digits, or a binary number where the first bit is set."""
    if field[0] & 0x80:
        bits = 8 * len(field) - 1
        value = int.from_bytes(field, "big") & ((1 << bits) - 1)
        return value - (1 << bits) if value >> (bits - 1) else value
    digits = field.strip(b" \0")
    if digits.translate(None, b"01234567"):
        raise TarError("a number is malformed")
    return int(digits, 8) if digits else 0


def _decimal(text: bytes) -> int:
    # int() would take signs, underscores and spaces, and needs quadratic time for long texts.
    if not text.isdigit() or len(text) > 20:
        raise TarError("a number is malformed")
    return int(text)


def _id(value: int) -> int:
    if not 0 <= value < 1 << 32:
        raise TarError("a user or group id is out of range")
    return value


def _bounded(seconds: int) -> int:
    return seconds if 0 <= seconds < _MTIME_END_S else 0


def _time(text: bytes) -> int:
    """Nanoseconds of a pax time. As in containerd a time that no file can have becomes 1970."""
    whole, _, fraction = text.partition(b".")
    negative = whole.startswith(b"-")
    if fraction and not fraction.isdigit():
        raise TarError("a time is malformed")
    seconds = _decimal(whole[1:] if negative else whole)
    if negative or not 0 <= seconds < _MTIME_END_S:
        return 0
    return seconds * 1_000_000_000 + int(fraction[:9].ljust(9, b"0") or b"0")
