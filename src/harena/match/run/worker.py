"""A process that plays matches for `runner.Runner`, one at a time on one processor. Started by its module name.

It ends, with its boxes, when the runner's end of the socket closes for any reason.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import struct
import sys
import threading
from typing import Any

import msgspec

from harena.errors import HarenaError, SpecError
from harena.match.result import MatchResult, MatchSpec
from harena.match.run import lockstep
from harena.match.run.play import Rack, play

LENGTH = struct.Struct("<I")
MAX_MESSAGE = 1 << 30


class MatchJob(msgspec.Struct, tag="job"):
    id: int
    spec: MatchSpec
    seeds: list[int] | None = None
    """Seeds of lockstep games, one game each."""
    watched: bool = False


class Cancel(msgspec.Struct, tag="cancel"):
    id: int


class Happened(msgspec.Struct, tag="event"):
    id: int
    event: dict[str, Any]


class JobDone(msgspec.Struct, tag="done"):
    id: int
    results: list[MatchResult]


class JobRefused(msgspec.Struct, tag="refused"):
    id: int
    text: str
    bad_spec: bool
    """True for a mistake of the caller, False for a failure of the platform."""


class Ready(msgspec.Struct, tag="ready"):
    pass


Order = MatchJob | Cancel
Report = Happened | JobDone | JobRefused | Ready
encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_report = msgspec.msgpack.Decoder(Report).decode


def send(sock: socket.socket, message: Order | Report) -> None:
    data = encode(message)
    sock.sendall(LENGTH.pack(len(data)) + data)


def receive(sock: socket.socket) -> bytes | None:
    """Receive one message; None at the end of the connection."""
    head = _exactly(sock, LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    return _exactly(sock, length) if length <= MAX_MESSAGE else None


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        try:
            data = sock.recv(min(count, 1 << 20))
        except OSError:
            return None
        if not data:
            return None
        parts.append(data)
        count -= len(data)
    return b"".join(parts)


class Worker:
    def __init__(self, sock: socket.socket, backend: str = "local") -> None:
        self._sock = sock
        self._backend = backend
        self._jobs: queue.SimpleQueue[MatchJob | None] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._alone = False

    def serve(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        with Rack(backend=self._backend) as rack:
            try:
                rack.warm_up(2)
            except HarenaError:
                if self._backend == "local":
                    raise
                # A server that cannot be reached, or refuses the boxes: each match says so.
            self._tell(Ready())
            while (job := self._jobs.get()) is not None:
                self._do(job, rack)

    def _listen(self) -> None:
        while (data := receive(self._sock)) is not None:
            try:
                order = decode_order(data)
            except msgspec.MsgspecError:
                break  # nobody would answer it: end, so that the runner hears of it
            if isinstance(order, Cancel):
                self._cancelled.add(order.id)
            else:
                self._jobs.put(order)
        self._alone = True
        self._jobs.put(None)

    def _do(self, job: MatchJob, rack: Rack) -> None:
        def cancelled() -> bool:
            return self._alone or job.id in self._cancelled

        def tell(event: dict[str, Any]) -> None:
            self._tell(Happened(job.id, event))

        try:
            if job.seeds is not None:
                results = lockstep.evaluate(job.spec, job.seeds, rack=rack, cancelled=cancelled)
            else:
                results = [play(job.spec, rack=rack, on_event=tell if job.watched else None, cancelled=cancelled)]
            self._tell(JobDone(job.id, results))
        except HarenaError as error:
            self._tell(JobRefused(job.id, str(error), bad_spec=isinstance(error, SpecError)))
        finally:
            self._cancelled.discard(job.id)

    def _tell(self, report: Report) -> None:
        with contextlib.suppress(OSError):  # the runner is gone: the listener has heard it too
            send(self._sock, report)


def main(argv: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner hears it, and ends us in order
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {int(argv[1])})
    Worker(socket.socket(fileno=int(argv[0])), argv[2]).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
