"""Process that holds the relay's boxes. It ends, with all of its boxes, when the client disconnects.
`python -m harena.backends.relay.node DESCRIPTOR`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from harena.node.link import Link, SocketStream
from harena.node.turns import serve
from harena.sandbox import backend


def _wait_for_the_client(number: int, frame: object) -> None:
    """Handle Ctrl-C without ending, since the client will disconnect. If it were ignored, every box would ignore it
    too."""


def main() -> None:
    signal.signal(signal.SIGINT, _wait_for_the_client)
    serve(Link.to_client(SocketStream(socket.socket(fileno=int(sys.argv[1])))), backend.load("local"))
    os._exit(0)  # threads may still wait for what is gone


if __name__ == "__main__":
    main()
