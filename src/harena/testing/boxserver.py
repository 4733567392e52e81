"""A server of boxes for tests: `harena serve` on a free port of loopback, in a process of its own."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BoxServer:
    url: str
    token: str
    process: subprocess.Popen[str]


@contextlib.contextmanager
def box_server(folder: Path, *options: str, listen: str = "127.0.0.1:0") -> Iterator[BoxServer]:
    """Start a server, and stop it at the end. `folder` holds its token."""
    file = folder / "tokens"
    command = [sys.executable, "-m", "harena", "serve", "--listen", listen, "--token-file", str(file), *options]
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"boxes +(\S+)", line):
                break
        else:
            raise AssertionError(f"the server did not start: {(folder / 'log').read_text()}")
        yield BoxServer(found[1], file.read_text().split()[1], process)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()
