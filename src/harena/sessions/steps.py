"""Steps of a session and their results: plain dictionaries, as users of sessions write and read them.

{"name": "hello", "type": "Command", "command": ["echo", "hi"], "workDir": "src", "env": {...}, "timeout": 30}
{"name": "fix", "type": "FilePatch", "path": "a.py", "content": "..."}
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harena.errors import SpecError
from harena.sandbox.box import check_command
from harena.sandbox.spec import MB, Result, workspace_path
from harena.sessions.operations import Record

MAX_STEPS = 1000
MAX_CONTENT = 16 * MB
MAX_NAME = 200
CONTAINERS = ("executor", "sidecar")
"""Names that a step may give for where it runs. Both are the session's box."""
FIELDS = {
    "Command": {"name", "type", "command", "workDir", "env", "container", "timeout"},
    "FilePatch": {"name", "type", "path", "content", "container"},
}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    name: str
    type: str
    command: tuple[str, ...] = ()
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    timeout_s: float | None = None
    path: str = ""
    content: str = ""


def parse_steps(steps: object) -> list[Step]:
    """Check everything before anything runs. Raises SpecError with the number of the wrong step."""
    if not isinstance(steps, Sequence) or isinstance(steps, str | bytes):
        raise SpecError("steps: give a list of steps")
    listed = cast("Sequence[object]", steps)
    if not 1 <= len(listed) <= MAX_STEPS:
        raise SpecError(f"steps: from 1 to {MAX_STEPS} at once")
    return [_parse(number, step) for number, step in enumerate(listed)]


def _parse(number: int, step: object) -> Step:
    try:
        if not isinstance(step, dict):
            raise SpecError("not an object")
        return _step(number, cast("dict[str, Any]", step))
    except SpecError as error:
        raise SpecError(f"step {number}: {error}") from None


def _step(number: int, step: dict[str, Any]) -> Step:
    kind = step.get("type", "Command")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise SpecError(f"type: there is {' and '.join(FIELDS)}")
    for unknown in step.keys() - FIELDS[kind]:
        raise SpecError(f"no field {str(unknown)[:40]!r} of {kind}; there is {', '.join(sorted(FIELDS[kind]))}")
    name = step.get("name", f"step-{number}")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise SpecError(f"name: text of 1 to {MAX_NAME} characters")
    if step.get("container", CONTAINERS[0]) not in CONTAINERS:
        raise SpecError(f"container: there is {' and '.join(CONTAINERS)}")
    if kind == "FilePatch":
        path, content = step.get("path"), step.get("content")
        if not isinstance(path, str) or not isinstance(content, str) or len(content) > MAX_CONTENT:
            raise SpecError(f"path, content: text, of at most {MAX_CONTENT} characters")
        workspace_path(path)
        _check_text(path, content)
        return Step(name=name, type=kind, path=path, content=content)
    command, cwd = step.get("command"), step.get("workDir")
    env: object = step.get("env") or {}
    if not isinstance(command, list | tuple) or not isinstance(env, dict) or not isinstance(cwd, str | None):
        raise SpecError("command: a list of words; env: names and values; workDir: a path")
    words, values = cast("Sequence[Any]", command), cast("dict[Any, Any]", env)
    if not all(isinstance(one, str) for one in (*values.keys(), *values.values())):
        raise SpecError("env: names and values are text")
    check_command(words, values, cwd)
    _check_text(*words, *values.keys(), *values.values(), cwd or "")
    timeout_s = None if step.get("timeout") is None else seconds(step["timeout"])
    return Step(name=name, type=kind, command=tuple(words), cwd=cwd, env=values, timeout_s=timeout_s)


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise SpecError("text holds half of a surrogate pair") from None


def seconds(value: object) -> float:
    """Read a duration: a number of seconds, or text such as "30s" or "5m"."""
    if isinstance(value, str) and (found := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)?", value)):
        return float(found[1]) * _UNITS[found[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise SpecError("timeout: seconds, or text such as 30s or 5m")
    return float(value)


def of_result(result: Result) -> Record:
    """What a step's record says of an execution."""
    return {
        "state": "Succeeded" if result.ok else "Failed",
        "exitCode": _exit_code(result),
        "stdout": result.stdout.decode("utf-8", "replace"),
        "stderr": result.stderr.decode("utf-8", "replace"),
        "verdict": result.verdict.value,
        "detail": result.detail,
        "usage": dataclasses.asdict(result.usage),
        "isolation": result.isolation,
    }


def _exit_code(result: Result) -> int:
    """As a shell would report it; see `harena run --help`."""
    if result.exit_code is not None:
        return result.exit_code
    if result.verdict.shell_code is not None:
        return result.verdict.shell_code
    return 128 + (result.signal or 0)
