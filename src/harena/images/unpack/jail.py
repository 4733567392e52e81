"""The host's side of a jailed process: starts it, maps its ids, reads its report and ends it.

`seal` is the side inside. `untar` and `builder/packer.py` are the programs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from harena.errors import IsolationUnavailable
from harena.images.unpack.caps import Caps
from harena.images.unpack.ids import Ids
from harena.terminal import safe

CPU_S = 3600
MEMORY_BYTES = 4 << 30
"""Limits of the process that parses. They end it when an archive finds a way to keep it busy."""

_REPORT_BYTES = 1 << 13
_HANDSHAKE_S = 60.0
_END_S = 10.0
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from harena.images.unpack.untar import main; main(sys.argv[2])"


class Jail:
    """The process that works in a layer's folder; see `untar`."""

    def __init__(
        self,
        verb: str,
        folder: Path | int,
        ids: Ids,
        *,
        stdin: int,
        stdout: int = subprocess.DEVNULL,
        program: str | None = None,
        more: dict[str, Any] | None = None,
        lock: int = -1,
        owners: int = -1,
        caps: Caps | None = None,
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        if isinstance(folder, int):
            place = os.dup(folder) if folder >= 0 else -1
        else:
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        order = {
            "verb": verb,
            "control": theirs.fileno(),
            "folder": place,
            "lock": lock,
            "owners": owners,
            "full": ids.kind == "full",
            "ids": ids.count,
            "caps": dataclasses.asdict(caps) if caps else None,
            "limits": {"RLIMIT_CPU": CPU_S, "RLIMIT_AS": MEMORY_BYTES}
            | ({"RLIMIT_FSIZE": max(caps.bytes, 1 << 20)} if caps else {}),
            **(more or {}),
        }
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    program or PROGRAM,
                    str(Path(__file__).parents[3]),
                    json.dumps(order),
                ],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                pass_fds=[number for number in (theirs.fileno(), place, lock, owners) if number >= 0],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if place >= 0:
                os.close(place)
        try:
            self._control.settimeout(_HANDSHAKE_S)
            first = self._receive()
            if first != b"U":
                reason = parsed(first).get("host") if first else "the process ended"
                raise IsolationUnavailable(f"no user namespace to unpack in: {safe(str(reason))[:200]}")
            ids.write(self._process.pid)
            with contextlib.suppress(BrokenPipeError):
                self._control.send(b"G")
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def answer(self) -> dict[str, Any]:
        """Wait for the end of the work and return what the process reports."""
        self._control.settimeout(None)
        packet = self._receive()
        if packet:
            # It ends now by itself, unless it was taken over. If it was killed, the one inside was about to die.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END_S)
            if self._process.returncode != -signal.SIGKILL:
                return parsed(packet)
        code = self._process.wait()
        if code in (128 + signal.SIGXCPU, -signal.SIGXCPU):
            return {"error": f"it took more than {CPU_S} s of processor time"}
        name = signal.Signals(code - 128).name if 128 < code < 128 + signal.NSIG - 1 else f"code {code}"
        return {"error": f"the unpacking process ended early ({name})"}

    def _receive(self) -> bytes:
        try:
            return self._control.recv(_REPORT_BYTES)
        except TimeoutError:
            raise IsolationUnavailable("the unpacking process does not answer") from None
        except ConnectionError:
            return b""

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        # The process inside dies with it. Its end of the socket closes when it can no longer write files.
        self._control.settimeout(_HANDSHAKE_S)
        while self._receive():
            pass
        self._control.close()


def parsed(packet: bytes) -> dict[str, Any]:
    """Return a report, or what says that it is none: the process that wrote it may have been taken over."""
    try:
        value = json.loads(packet)
    except (ValueError, RecursionError):
        value = None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"error": "the report is malformed"}
