"""Secrets to plant, and a program that looks for them in all the memory it can read.

A secret is a mark that all secrets of one `Mark` share, and the letter of the door it went through, over and over: any
twelve bytes of it hold the whole mark. The scanner must not find itself, so it knows the mark only shifted, shifts what
it reads, and reports what it finds shifted too.
"""

from __future__ import annotations

import json
import random
import string
from typing import Any

SHIFT = 77
PERIOD = 7
"""Six characters of mark and the letter of a door."""
LETTERS = string.ascii_letters

_SCANNER = """
def scan(needle, everything):
    import os

    shift = bytes((byte + 77) % 256 for byte in range(256))
    found, read = [], 0

    def look(data):
        data = data.translate(shift)
        at = data.find(needle)
        while at >= 0:
            start, end = at, at + len(needle)
            while start and (data[start - 1] == data[start + 6] or (at - start) % 7 == 0):
                start -= 1
            while end < len(data) and (data[end] == data[end - 7] or (end - at) % 7 == 6):
                end += 1
            if end - start >= 12:
                found.append(data[at : at + 7].hex())
            at = data.find(needle, at + 1)

    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except PermissionError:  # the restricted tier shows the process itself alone; others are worth a try
        pids = [str(os.getpid()), str(os.getppid()), *(str(os.getpid() + step) for step in range(-40, 40) if step)]
    for pid in pids:
        for name in ("cmdline", "environ", "stack", "auxv", "comm"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    look(file.read())
            except OSError:
                pass
        try:
            with open(f"/proc/{pid}/maps") as file:
                maps = file.read().splitlines()
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        except OSError:
            continue
        for line in maps:
            span, rights, _, _, inode = line.split()[:5]
            if "r" not in rights or not (everything or "w" in rights or inode == "0"):
                continue
            start, end = (int(word, 16) for word in span.split("-"))
            while start < end:
                try:
                    data = os.pread(memory, min(end - start, 1 << 20), start)
                except (OSError, OverflowError):
                    break
                read += len(data)
                look(data)
                if len(data) < 1 << 20:
                    break
                start += len(data) - 64
        os.close(memory)
    return [read, found[:20]]
"""


class Mark:
    def __init__(self) -> None:
        self._mark = "".join(random.SystemRandom().choices(string.digits + LETTERS, k=PERIOD - 1))

    def secret(self, door: str) -> str:
        return (self._mark + door) * 6

    def shifted(self, text: str | None = None) -> list[int]:
        return [(byte + SHIFT) % 256 for byte in (text or self._mark).encode()]

    def says(self, door: str, where: str = "stdout") -> str:
        """A program that writes a secret which is not in its source."""
        return (
            "import os, sys\n"
            f"sys.{where}.write(bytes((byte - {SHIFT}) % 256 for byte in {self.shifted(self.secret(door))}).decode() * 4)\n"
        )

    def holds(self, door: str) -> str:
        """A program that has a secret in its source, and does a little with it."""
        return f"text = {self.secret(door)!r}\nassert len(text * 3) == {PERIOD * 6 * 3}\n"

    def function(self, *, everything: bool = True) -> str:
        """Source that defines `answer()`, which scans."""
        return _SCANNER + f"\ndef answer():\n    return scan(bytes({self.shifted()}), {everything})\n"

    def scanner(self, *, everything: bool = True) -> str:
        return self.function(everything=everything) + "import json\nprint(json.dumps(answer()))\n"

    def found(self, answer: str | Any) -> str:
        """The doors whose secrets a scanner has seen. It must have looked at its own memory at least."""
        read, seen = json.loads(answer) if isinstance(answer, str) else answer
        assert read > 1 << 20, f"the scanner read only {read} bytes"
        letters = {bytes((byte - SHIFT) % 256 for byte in bytes.fromhex(word)).decode("latin-1")[-1] for word in seen}
        return "".join(sorted(letters))
