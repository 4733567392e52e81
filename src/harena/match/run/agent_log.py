"""What an agent prints, bounded and made safe to show."""

from __future__ import annotations


class AgentLog:
    """Head and tail of an agent's output."""

    def __init__(self, keep: int, limit: int) -> None:
        self._half = keep // 2
        self._head = b""
        self._tail = b""
        self._total = 0
        self._limit = limit

    def add(self, data: bytes) -> bool:
        """Add output. Returns False once there is too much."""
        self._total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[max(0, room) :])[-self._half :] if self._half else b""
        return self._total <= self._limit

    def text(self) -> str:
        left_out = self._total - len(self._head) - len(self._tail)
        gap = f"\n[… {left_out} bytes left out …]\n".encode() if left_out > 0 else b""
        return printable((self._head + gap + self._tail).decode("utf-8", "replace"))


def printable(text: str) -> str:
    """Text without terminal control characters, since an agent's output is shown to people."""
    return "".join(char if char in "\n\t" or char.isprintable() else "�" for char in text)
