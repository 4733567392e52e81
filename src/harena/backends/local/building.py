"""Boxes for the steps of a build: a command on layers that no image has yet, and the files that it changed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING

from harena.backends.local.launch import image
from harena.errors import SpecError
from harena.sandbox.network import Network
from harena.sandbox.process import Process
from harena.sandbox.spec import MB, Limits, Result, Spec

if TYPE_CHECKING:
    from harena.backends.local.backend import LocalBackend
    from harena.images.unpack.ids import Ids

LIMITS = Limits(wall_s=3600, memory_mb=8192, processes=4096, output_bytes=256 * MB, open_files=4096)
START_S = 60.0
OWN_FILES = (
    b".harena",
    b"dev",
    b"proc",
    b"etc/hosts",
    b"etc/hostname",
    b"etc/resolv.conf",
    b"etc/apt/apt.conf.d/99-harena-one-id",
)
"""Files that the box has of its own, and that are no part of a layer: see `image.words`."""


@contextlib.contextmanager
def run_step(
    backend: LocalBackend,
    argv: Sequence[str],
    *,
    layers: Sequence[str],
    ids: Ids,
    user: str,
    env: Mapping[str, str],
    cwd: str,
    root_mb: int,
    network: Sequence[str],
    on_output: Callable[[bytes], None],
) -> Generator[tuple[Result, int, Sequence[bytes]]]:
    """Run a command to its end. Yields its result, a descriptor of the changed files, and which of them are the box's.

    The box, in which nothing runs any more, lives until the context ends. It may reach what `network` names, as in
    `Network.allow`."""
    found = image.find_user(layers, user)
    root = image.Root(tuple(layers), ids, found, {"PATH": image.PATH, "HOME": found.home, **env}, cwd, is_build=True)
    if ids.kind == "full" and max(found.uid, found.gid, *found.groups, 0) >= ids.count:
        raise SpecError(f"user {found.uid}:{found.gid} is above the {ids.count} ids of a box")
    with contextlib.ExitStack() as stack:
        reachable = Network(allow=tuple(network)) if network else None
        spec = Spec(root_mb=root_mb, hostname="build", network=reachable)
        box = backend.create_on(root, spec, limits=LIMITS, start_s=START_S)
        stack.callback(box.close)
        process = box.start(argv, env={}, cwd=cwd, limits=LIMITS, pty=False, rows=0, cols=0)
        stack.callback(process.close)
        process.close_stdin()
        _pass_output(process, on_output)
        result = process.wait()
        if reachable is not None:
            result = dataclasses.replace(result, network=box.network_report())
        changes = box.changes()
        stack.callback(os.close, changes)
        yield result, changes, OWN_FILES


def _pass_output(process: Process, on_output: Callable[[bytes], None]) -> None:
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    live = {stream.fileno(): stream for stream in streams}
    poll = select.poll()
    for fd in live:
        poll.register(fd, select.POLLIN)
    while live:
        for fd, _ in poll.poll():
            data = live[fd].read()
            if data:
                on_output(data)
            else:
                poll.unregister(fd)
                del live[fd]
