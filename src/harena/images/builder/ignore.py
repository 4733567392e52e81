"""Patterns for paths: .dockerignore files, and the wildcards of COPY."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harena.images.builder.dockerfile import DockerfileError

MAX_PATTERN = 4096


@dataclass
class Ignore:
    """A .dockerignore: which paths of the build context are left out. The last pattern that matches decides."""

    patterns: list[tuple[bool, re.Pattern[str]]] = field(default_factory=list[tuple[bool, re.Pattern[str]]])

    @classmethod
    def parse(cls, text: str) -> Ignore:
        patterns: list[tuple[bool, re.Pattern[str]]] = []
        for line in text.split("\n"):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            back = line.startswith("!")
            pattern = "/".join(part for part in line.lstrip("!").strip().split("/") if part not in ("", "."))
            if pattern:
                patterns.append((back, compiled(pattern, r"(?:/.*)?")))
        return cls(patterns)

    def leaves_out(self, path: str) -> bool:
        out = False
        for back, pattern in self.patterns:
            if out == back and pattern.match(path):
                out = not back
        return out


def compiled(pattern: str, end: str = "") -> re.Pattern[str]:
    """A pattern for paths. `end` is what may follow it."""
    if len(pattern) > MAX_PATTERN:
        raise DockerfileError(f"{pattern[:80]!r} is not a valid pattern: it is longer than {MAX_PATTERN} characters")
    try:
        return re.compile(_glob(pattern) + end + r"\Z", re.DOTALL)
    except (re.error, OverflowError, RecursionError):
        raise DockerfileError(f"{pattern[:80]!r} is not a valid pattern") from None


def _glob(pattern: str) -> str:
    """A Go file pattern with ** as a regular expression."""
    out, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif char == "*":
            out, at = out + "[^/]*", at + 1
        elif char == "?":
            out, at = out + "[^/]", at + 1
        elif char == "[" and (end := pattern.find("]", at + 2)) > 0:
            body = re.sub(r"([\\\[\]&~|])", r"\\\1", pattern[at + 1 : end])
            out, at = out + f"[{body}]", end + 1
        else:
            out, at = (
                out + re.escape(pattern[at + 1 : at + 2] if char == "\\" else char),
                at + (2 if char == "\\" else 1),
            )
    return out
