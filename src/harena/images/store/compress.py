"""Decompression of layers: gzip, zstd, xz and plain, told apart by their first bytes.

Guarantees: memory stays bounded whatever the input claims; the output ends at a cap, so that a bomb fails early; the
digests of input and output are computed on the way.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import lzma
import queue
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, BinaryIO

from harena.images.errors import BadImage, ImageCancelled, ImageError

CHUNK = 1 << 20
READ_AHEAD = 4
"""Chunks that are decompressed before they are asked for."""
XZ_MEMORY = 256 << 20
ZSTD_WINDOW_LOG = 27
"""Windows of up to 128 MiB, as the zstd tool accepts without options."""

GZIP, ZSTD, XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00"
SKIPPABLE = tuple(bytes([0x50 + n]) + b"\x2a\x4d\x18" for n in range(16))
"""Frames that zstd readers skip. zstd:chunked layers have them."""


def kind_of(head: bytes) -> str:
    """Return gzip, zstd, xz or plain."""
    if head.startswith(GZIP):
        return "gzip"
    if head.startswith((ZSTD, *SKIPPABLE)):
        return "zstd"
    return "xz" if head.startswith(XZ) else "plain"


def plain_chunks(pieces: Iterable[bytes], *, cap: int) -> Generator[bytes]:
    """Decompress pieces of a file. Raise BadImage if they are damaged or give more than `cap` bytes."""
    source = iter(pieces)
    head = b""
    for piece in source:
        head += piece
        if len(head) >= 8:
            break
    kind = kind_of(head)
    decoder = {"gzip": _gunzip, "zstd": _unzstd, "xz": _unxz, "plain": _copy}[kind]
    total = 0
    try:
        for chunk in decoder(_chain(head, source)):
            total += len(chunk)
            if total > cap:
                raise BadImage(f"the layer has more than {cap} bytes when unpacked: raise the cap if you trust it")
            yield chunk
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise BadImage(f"the {kind} data are damaged: {error}") from None


def _chain(head: bytes, rest: Iterator[bytes]) -> Generator[bytes]:
    if head:
        yield head
    yield from rest


def _copy(pieces: Iterator[bytes]) -> Generator[bytes]:
    yield from pieces


def _gunzip(pieces: Iterator[bytes]) -> Generator[bytes]:
    decoder, fed = zlib.decompressobj(31), False
    for piece in pieces:
        data = piece
        while data:
            if decoder.eof:
                if not data.strip(b"\0"):  # padding after the last member
                    return
                decoder = zlib.decompressobj(31)
            fed = True
            out = decoder.decompress(data, CHUNK)
            if out:
                yield out
            data = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    if fed and not decoder.eof:
        # What is left inside comes out in bounded steps too.
        while out := decoder.decompress(decoder.unconsumed_tail, CHUNK):
            yield out
        if not decoder.eof:
            raise EOFError("they end too early")


def _unxz(pieces: Iterator[bytes]) -> Generator[bytes]:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
    for piece in pieces:
        data = piece
        while data or not (decoder.needs_input or decoder.eof):
            if decoder.eof:
                decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
            out = decoder.decompress(data, CHUNK)
            if out:
                yield out
            data = decoder.unused_data.lstrip(b"\0") if decoder.eof else b""
    if not decoder.eof:
        raise EOFError("they end too early")


def _unzstd(pieces: Iterator[bytes]) -> Generator[bytes]:
    try:
        zstd: Any = importlib.import_module("compression.zstd")  # Python 3.14
    except ImportError:
        yield from _unzstd_by_package(pieces)
        return
    options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
    decoder = zstd.ZstdDecompressor(options=options)
    started = False
    try:
        for piece in pieces:
            data = piece
            while data or not (decoder.needs_input or decoder.eof):
                if decoder.eof:
                    decoder = zstd.ZstdDecompressor(options=options)
                started = True
                out = decoder.decompress(data, CHUNK)
                if out:
                    yield out
                data = decoder.unused_data if decoder.eof else b""
    except zstd.ZstdError as error:
        raise BadImage(f"the zstd data are damaged: {error}") from None
    if started and not decoder.eof:
        raise EOFError("they end too early")


def _unzstd_by_package(pieces: Iterator[bytes]) -> Generator[bytes]:
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ImportError:
        raise ImageError(
            "this image has zstd layers, which need Python 3.14 or a package: pip install 'harena[images]'"
        ) from None
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << ZSTD_WINDOW_LOG).stream_reader(
            io.BufferedReader(_Pieces(pieces), CHUNK), read_across_frames=True
        )
        while out := reader.read(CHUNK):
            yield out
    except zstandard.ZstdError as error:
        raise BadImage(f"the zstd data are damaged: {error}") from None


class _Pieces(io.RawIOBase):
    """Pieces as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


class PlainStream(io.RawIOBase):
    """Uncompressed bytes of a layer as a file. A thread decompresses and hashes ahead of the reader.

    `finish` reads what is left and returns the digests of the input and of the output."""

    def __init__(
        self,
        file: BinaryIO,
        *,
        size: int,
        cap: int,
        algorithm: str = "sha256",
        plain_algorithm: str = "sha256",
        is_cancelled: Callable[[], bool] = lambda: False,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._file, self._size, self._cap = file, size, cap
        self._hash, self._plain_hash = hashlib.new(algorithm), hashlib.new(plain_algorithm)
        self._is_cancelled, self._on_bytes = is_cancelled, on_bytes
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(READ_AHEAD)
        self._stop = threading.Event()
        self._left = memoryview(b"")
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="harena-decompress", daemon=True)
        self._thread.start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            if self._ended:
                return 0
            found = self._queue.get()
            if isinstance(found, BaseException):
                self._ended = True
                raise found
            if found is None:
                self._ended = True
                return 0
            self._left = memoryview(found)
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def finish(self) -> tuple[str, str]:
        while not self._ended:
            self._left = memoryview(b"")
            self.readinto(bytearray(1))
        self._thread.join()
        return self._hash.hexdigest(), self._plain_hash.hexdigest()

    def close(self) -> None:
        self._stop.set()
        while self._thread.is_alive():  # it may wait for a place in the queue
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)
        super().close()

    def _input(self) -> Generator[bytes]:
        left = self._size
        while left:
            if self._stop.is_set() or self._is_cancelled():
                raise ImageCancelled("cancelled")
            piece = self._file.read(min(left, CHUNK))
            if not piece:
                raise BadImage("the file ends before its layer does")
            left -= len(piece)
            self._hash.update(piece)
            self._on_bytes(len(piece))
            yield piece

    def _work(self) -> None:
        source = self._input()
        try:
            for chunk in plain_chunks(source, cap=self._cap):
                self._plain_hash.update(chunk)
                self._put(chunk)
            for _ in source:  # a decoder may stop before the end; the digest covers everything
                pass
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: bytes | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.2)
                return
            except queue.Full:
                continue
