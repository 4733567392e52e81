"""Streams of processes and ports in a node. They are pipes and sockets of this process, which threads fill and empty,
so that they behave as with other backends.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from harena.errors import BoxError
from harena.node import link, messages
from harena.node.connection import Connection
from harena.sandbox.process import CHUNK, Process, Written
from harena.sandbox.spec import Limits, Result

SLICE_S = 5.0
"""How long the node waits for an answer of a process before the client asks again."""


class _Control:
    def __init__(self, node: Connection, handle: int, room: int) -> None:
        self._node = node
        self._handle = handle
        self._room = room

    def signal(self, number: int) -> None:
        self._node.call("signal", handle=self._handle, number=number)

    def resize(self, rows: int, cols: int) -> None:
        self._node.call("resize", handle=self._handle, rows=rows, cols=cols)

    def wait(self, timeout_s: float, written: Written) -> Result:
        """Wait for the end. The node has seen all output and determines the verdict."""
        answer = self._node.call(
            "wait",
            seconds=timeout_s,
            room=self._room,
            text=2 * link.SMALL_TEXT,
            handle=self._handle,
            timeout_s=timeout_s,
        )
        with self._node.checked():
            return messages.result_in(*answer)

    def forget(self) -> None:
        self._node.tell("forget", handle=self._handle)


def process(node: Connection, handle: int, limits: Limits, what: str, *, pty: bool) -> Process:
    control = _Control(node, handle, limits.output_bytes)
    if pty:
        terminal, theirs = socket.socketpair()
        _in_thread(_pump_in, node, handle, os.dup(theirs.fileno()))
        _in_thread(_pump_terminal, node, handle, theirs)
        fd = terminal.detach()
        return Process(control, limits, what, stdin=fd, stdout=fd, stderr=None, pty=True)
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    _in_thread(_pump_in, node, handle, stdin[0])
    _in_thread(_pump_out, node, handle, "stdout", stdout[1])
    _in_thread(_pump_out, node, handle, "stderr", stderr[1])
    return Process(control, limits, what, stdin=stdin[1], stdout=stdout[0], stderr=stderr[0], pty=False)


def port(node: Connection, handle: int) -> socket.socket:
    """Return a socket that is connected to a port of the box."""
    ours, theirs = socket.socketpair()
    copy = os.dup(theirs.fileno())
    _in_thread(_pump_socket, node, handle, theirs)
    _in_thread(_pump_to_socket, node, handle, copy)
    return ours


def _in_thread(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, name="harena-node-client-stream", daemon=True).start()


def _pump_out(node: Connection, handle: int, stream: str, fd: int) -> None:
    """Copy output of the process into a local pipe. A full pipe makes the process wait."""
    try:
        with contextlib.suppress(OSError, BoxError), os.fdopen(fd, "wb", buffering=0) as file:
            while data := _read(node, handle, stream):
                view = memoryview(data)
                while view:
                    view = view[file.write(view) or 0 :]
    finally:
        node.tell("close_stream", handle=handle, stream=stream)


def _pump_terminal(node: Connection, handle: int, sock: socket.socket) -> None:
    with sock:
        _pump_out(node, handle, "stdout", os.dup(sock.fileno()))
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # both ways: a terminal has one descriptor


def _read(node: Connection, handle: int, stream: str) -> bytes:
    while True:
        answer, data = node.call("read", room=CHUNK, handle=handle, stream=stream, timeout_s=SLICE_S)
        if answer.get("ready") is True:
            return data


def _pump_in(node: Connection, handle: int, fd: int) -> None:
    with contextlib.suppress(BoxError), os.fdopen(fd, "rb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while data := file.read(CHUNK):
                node.call("write", data, seconds=None, handle=handle)  # until the process reads it
        node.tell("close_stdin", handle=handle)


def _pump_socket(node: Connection, handle: int, sock: socket.socket) -> None:
    """Copy what comes from a port of the box into a local socket."""
    with sock:
        with contextlib.suppress(OSError, BoxError):
            while True:
                answer, data = node.call("pull", room=CHUNK, handle=handle, timeout_s=SLICE_S)
                if answer.get("ready") is True and not data:
                    break
                sock.sendall(data)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)


def _pump_to_socket(node: Connection, handle: int, fd: int) -> None:
    """Copy from a local socket to a port of the box, until the caller closes it."""
    with socket.socket(fileno=fd) as sock, contextlib.suppress(OSError, BoxError):
        while data := sock.recv(CHUNK):
            node.call("push", data, seconds=None, handle=handle)  # until the guest reads it
        node.call("shut", handle=handle)
        poll = select.poll()
        poll.register(sock, 0)
        poll.poll()  # closed by both sides
    node.tell("hang_up", handle=handle)
