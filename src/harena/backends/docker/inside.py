"""Runs in the container of a box: connects to the host's socket and serves the verbs of a node with a local box.

Executed as a script by the interpreter of an image, which may be too old, so it must be readable by an old one until it
has said so. It ends, with the container, when the host disconnects.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

HERE = "/.harena"
PACKAGE = HERE + "/package/harena"
SOCKET = HERE + "/socket"
ROOTFS = HERE + "/rootfs"
MOUNTS = HERE + "/mounts"
MINIMUM = (3, 11)
WAIT_S = 120.0
OWN = {"proc", "dev", "sys", "tmp", "run", "workspace", "etc", "usr", ".harena"}
"""Folders of a root that are not shown as they are: a box has its own, or shows parts of them."""


def main() -> None:
    link = connect(WAIT_S if sys.argv[1:] == ["--wait"] else 0.0)
    if sys.version_info[:2] < MINIMUM:  # pyright: ignore[reportUnnecessaryComparison]
        refuse(link)
        return
    if os.getpid() == 1:
        reap_others()
    serve(link)
    os._exit(0)  # threads may still wait for what is gone


def connect(wait_s: float) -> socket.socket:
    """Connect to the host. `wait_s`: it may be a container that starts at the same time, and listens later."""
    end = time.monotonic() + wait_s
    while True:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(SOCKET)
            return link
        except OSError:
            link.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def refuse(link: socket.socket) -> None:
    """Answer the first request with an error; the host has just sent it."""
    import json

    link.recv(1)
    text = "the image's python3 is %d.%d; a box of the backend docker needs Python %d.%d or newer in the image"
    error = {"kind": "Unsupported", "text": text % (sys.version_info[:2] + MINIMUM), "retry": "never"}
    answer = json.dumps({"answer": 1, "error": error}).encode()
    link.sendall(struct.pack("<II", len(answer), 0) + answer)
    link.recv(1 << 20)


def reap_others() -> None:
    """Return in a child; this process, the container's first one, waits for whatever ends in the container."""
    child = os.fork()
    if child == 0:
        return
    while True:
        ended, status = os.wait()
        if ended == child:
            os._exit(0 if status == 0 else 1)


def serve(link: socket.socket) -> None:
    sys.path.insert(0, os.path.dirname(PACKAGE))
    import dataclasses

    from harena.node import turns
    from harena.node.link import Link, SocketStream
    from harena.sandbox import backend
    from harena.sandbox.backend import Backend, Box, Capabilities
    from harena.sandbox.spec import Limits, Mount, Spec

    def without_image(spec: Spec) -> Spec:
        """The image is the container's root: a full box has that root, a restricted one sees its folders."""
        if spec.image is None:
            return spec
        if spec.isolation == "full":
            return dataclasses.replace(spec, image=None, rootfs="/", python=sys.executable)
        folders = [entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False)]
        seen = (Mount(source=path, target=path) for path in sorted(folders) if path[1:] not in OWN)
        return dataclasses.replace(spec, image=None, mounts=(*spec.mounts, *seen))

    class InContainer:
        def __init__(self, local: Backend) -> None:
            self._local = local

        def capabilities(self) -> Capabilities:
            return self._local.capabilities()

        def create(self, spec: Spec, *, limits: Limits, start_s: float) -> Box:
            return self._local.create(without_image(spec), limits=limits, start_s=start_s)

    turns.serve(Link.to_client(SocketStream(link)), InContainer(backend.load("local")))


if __name__ == "__main__":
    main()
