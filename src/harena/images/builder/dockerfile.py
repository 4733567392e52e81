"""Reads Dockerfiles: text to stages of instructions. Pure; `builder` carries them out.

What is not supported is refused with its name and line, never skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from harena.images.errors import ImageError

MAX_BYTES = 1 << 20
MAX_INSTRUCTIONS = 2000
MAX_EXPANDED = 1 << 20
"""Size of a word after its variables were replaced."""

Command: TypeAlias = str | tuple[str, ...]
"""The shell form, one line for the shell, or the exec form, the words themselves."""


class DockerfileError(ImageError):
    """The Dockerfile cannot be built. The message names the line."""


@dataclass(frozen=True, slots=True)
class From:
    line: int
    image: str
    name: str = ""
    platform: str = ""


@dataclass(frozen=True, slots=True)
class RunStep:
    line: int
    command: Command


@dataclass(frozen=True, slots=True)
class Copy:
    line: int
    sources: tuple[str, ...]
    target: str
    stage: str = ""
    """Stage or image to copy from; empty: the build context."""
    owner: str = ""
    mode: int | None = None
    is_add: bool = False


@dataclass(frozen=True, slots=True)
class Env:
    line: int
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Arg:
    line: int
    name: str
    default: str | None


@dataclass(frozen=True, slots=True)
class Label:
    line: int
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """An instruction with one value: WORKDIR, USER, STOPSIGNAL."""

    line: int
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Words:
    """An instruction with a list of words: SHELL, EXPOSE, VOLUME."""

    line: int
    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """ENTRYPOINT or CMD."""

    line: int
    name: str
    command: Command


@dataclass(frozen=True, slots=True)
class HealthCheck:
    line: int
    command: Command | None
    """None: HEALTHCHECK NONE."""
    options: tuple[tuple[str, str], ...] = ()


Instruction: TypeAlias = RunStep | Copy | Env | Arg | Label | Setting | Words | Start | HealthCheck


@dataclass(frozen=True, slots=True)
class Stage:
    start: From
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    args: tuple[Arg, ...]
    """Arguments before the first FROM, which only FROM lines see."""
    stages: tuple[Stage, ...]
    escape: str = "\\"


def parse(text: str) -> Dockerfile:
    """Raises DockerfileError for what is wrong or not supported."""
    if len(text) > MAX_BYTES or "\0" in text:
        raise DockerfileError(f"the Dockerfile has a NUL byte, or more than {MAX_BYTES} characters")
    escape = _directives(text)
    args: list[Arg] = []
    stages: list[tuple[From, list[Instruction]]] = []
    for count, (line, name, rest) in enumerate(_logical_lines(text, escape)):
        if count >= MAX_INSTRUCTIONS:
            raise DockerfileError(f"line {line}: more than {MAX_INSTRUCTIONS} instructions")
        if name == "FROM":
            stages.append((_from(line, rest), []))
            continue
        found = _instruction(line, name, rest, escape)
        if stages:
            stages[-1][1].extend(found)
        elif all(isinstance(one, Arg) for one in found):
            args.extend(one for one in found if isinstance(one, Arg))
        else:
            raise DockerfileError(f"line {line}: {name} before the first FROM; only ARG may be there")
    if not stages:
        raise DockerfileError("the Dockerfile has no FROM")
    return Dockerfile(tuple(args), tuple(Stage(start, tuple(body)) for start, body in stages), escape)


# ---- lines ----

_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(.*?)\s*$")
_HEREDOC = re.compile(r"(?:^|\s)[0-9]*<<-?[\"']?[A-Za-z_]")


def _directives(text: str) -> str:
    """Escape character that the first comment lines choose."""
    escape = "\\"
    for number, line in enumerate(text.split("\n"), 1):
        found = _DIRECTIVE.match(line)
        if not found:
            break
        if found[1].lower() == "escape":
            if found[2] not in ("\\", "`"):
                raise DockerfileError(f"line {number}: escape={found[2][:20]!r}: a backslash or a backtick")
            escape = found[2]
        elif found[1].lower() not in ("syntax", "check"):
            break
    return escape


def _logical_lines(text: str, escape: str) -> Iterator[tuple[int, str, str]]:
    """Instructions with the line they begin on. Lines that end with the escape character go on; comments and empty
    lines between them are dropped."""
    start, parts = 0, list[str]()
    for number, line in enumerate(text.split("\n"), 1):  # and not at the other characters that end lines for Python
        stripped = line.strip()
        if stripped.startswith("#") or (not stripped and not parts):
            continue
        if parts and not stripped:
            continue  # Docker warns, and goes on
        if not parts:
            start = number
        body = line.rstrip()
        goes_on = body.endswith(escape) and not body.endswith(escape * 2)
        parts.append(body[: -len(escape)] if goes_on else body)
        if not goes_on:
            yield _split(start, "".join(parts))
            parts = []
    if parts:
        yield _split(start, "".join(parts))


def _split(line: int, text: str) -> tuple[int, str, str]:
    words = text.split(None, 1)
    name, rest = words[0].upper() if words else "", words[1] if len(words) > 1 else ""
    if not name.isalpha():
        raise DockerfileError(f"line {line}: {name[:40]!r} is no instruction")
    if _HEREDOC.search(rest) and name in ("RUN", "COPY", "ADD"):
        raise DockerfileError(
            f"line {line}: {name} with a here-document (<<) is not supported: write a file and COPY it"
        )
    return line, name, rest.strip()


# ---- instructions ----


def _instruction(line: int, name: str, rest: str, escape: str) -> list[Instruction]:
    if not rest and name not in ("CMD", "ENTRYPOINT"):
        raise DockerfileError(f"line {line}: {name} needs an argument")
    match name:
        case "RUN":
            options, rest = _options(rest)
            _no_options(line, name, options)
            return [RunStep(line, _command(line, name, rest))]
        case "COPY" | "ADD":
            return [_copy(line, name, rest, escape)]
        case "ENV":
            return [Env(line, _pairs(line, name, rest, escape))]
        case "LABEL":
            return [Label(line, _pairs(line, name, rest, escape))]
        case "MAINTAINER":
            return [Label(line, (("maintainer", rest),))]
        case "ARG":
            return [_arg(line, word) for word in _words(line, rest, escape)]
        case "WORKDIR" | "USER" | "STOPSIGNAL":
            return [Setting(line, name, rest)]
        case "SHELL":
            words = _json_words(rest)
            if not words:
                raise DockerfileError(f'line {line}: SHELL takes a JSON list of words, such as ["/bin/sh", "-c"]')
            return [Words(line, name, words)]
        case "EXPOSE" | "VOLUME":
            return [Words(line, name, _json_words(rest) or tuple(_words(line, rest, escape)))]
        case "ENTRYPOINT" | "CMD":
            return [Start(line, name, _command(line, name, rest))]
        case "HEALTHCHECK":
            return [_health(line, rest)]
        case "ONBUILD":
            raise DockerfileError(f"line {line}: ONBUILD is not supported: write the instruction where it is to run")
        case _:
            raise DockerfileError(f"line {line}: {name} is no instruction of a Dockerfile")


_OPTION = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)")


def _options(rest: str) -> tuple[dict[str, str], str]:
    options: dict[str, str] = {}
    while found := _OPTION.match(rest):
        options[found[1]] = found[2] or ""
        rest = rest[found.end() :]
    return options, rest


def _no_options(line: int, name: str, options: Mapping[str, str], known: Sequence[str] = ()) -> None:
    for option in options:
        if option not in known:
            raise DockerfileError(f"line {line}: {name} --{option} is not supported")


def _from(line: int, rest: str) -> From:
    options, rest = _options(rest)
    _no_options(line, "FROM", options, ("platform",))
    words = rest.split()
    if len(words) == 1:
        return From(line, words[0], "", options.get("platform", ""))
    if len(words) != 3 or words[1].lower() != "as" or not re.fullmatch(r"[a-z][a-z0-9_.-]*", words[2].lower()):
        raise DockerfileError(f"line {line}: FROM takes an image, or an image AS a name")
    return From(line, words[0], words[2].lower(), options.get("platform", ""))


def _command(line: int, name: str, rest: str) -> Command:
    """JSON that is a list of words is the exec form. Anything else is a line for the shell, as Docker does it."""
    words = _json_words(rest)
    if words is not None:
        if name == "RUN" and not words:
            raise DockerfileError(f"line {line}: RUN of an empty list")
        return words
    return rest


def _json_words(text: str) -> tuple[str, ...] | None:
    if not text.startswith("["):
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list) or not all(_is_usable(word) for word in cast("list[Any]", value)):
        return None
    return tuple(cast("list[str]", value))


def _is_usable(word: object) -> bool:
    """Whether a word of a JSON list can be an argument of a program."""
    if not isinstance(word, str) or "\0" in word:
        return False
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _copy(line: int, name: str, rest: str, escape: str) -> Copy:
    options, rest = _options(rest)
    _no_options(line, name, options, ("from", "chown", "chmod") if name == "COPY" else ("chown", "chmod"))
    words = _json_words(rest) or tuple(_words(line, rest, escape))
    if len(words) < 2:
        raise DockerfileError(f"line {line}: {name} takes at least one source and a target")
    if len(words) > 2 and not words[-1].endswith("/"):
        raise DockerfileError(f"line {line}: {name} of several sources: the target must be a folder and end with /")
    for source in words[:-1] if name == "ADD" else ():
        if re.match(r"[a-z][a-z0-9+.-]*://|git@", source):
            raise DockerfileError(f"line {line}: ADD of an address is not supported: fetch it in a RUN, or COPY a file")
    mode = options.get("chmod")
    if mode is not None and not re.fullmatch(r"[0-7]{3,4}", mode):
        raise DockerfileError(f"line {line}: {name} --chmod={mode[:40]}: an octal mode, such as 755")
    return Copy(
        line,
        words[:-1],
        words[-1],
        options.get("from", ""),
        options.get("chown", ""),
        int(mode, 8) if mode is not None else None,
        name == "ADD",
    )


def _arg(line: int, word: str) -> Arg:
    name, equals, default = word.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise DockerfileError(f"line {line}: ARG {name[:40]!r}: not a usable name")
    return Arg(line, name, default if equals else None)


def _pairs(line: int, name: str, rest: str, escape: str) -> tuple[tuple[str, str], ...]:
    words = list(_words(line, rest, escape))
    if "=" not in words[0]:  # the old form: one name, and the rest of the line
        key, _, value = rest.partition(" ")
        if not value.strip():
            raise DockerfileError(f"line {line}: {name} {key[:40]} has no value")
        return ((key, value.strip()),)
    pairs: list[tuple[str, str]] = []
    for word in words:
        key, equals, value = word.partition("=")
        key = _plain(key, escape)
        if not key or not equals:
            raise DockerfileError(f"line {line}: {name} takes name=value, not {word[:40]!r}")
        pairs.append((key, value))
    return tuple(pairs)


def _plain(word: str, escape: str) -> str:
    return expand(word, {}, escape) if "$" not in word else word


def _health(line: int, rest: str) -> HealthCheck:
    options, rest = _options(rest)
    _no_options(line, "HEALTHCHECK", options, ("interval", "timeout", "start-period", "start-interval", "retries"))
    kind, _, command = rest.partition(" ")
    if kind.upper() == "NONE" and not command.strip():
        return HealthCheck(line, None)
    if kind.upper() != "CMD" or not command.strip():
        raise DockerfileError(f"line {line}: HEALTHCHECK takes CMD and a command, or NONE")
    for option, value in options.items():
        if option == "retries":
            if not re.fullmatch(r"[0-9]{1,6}", value):
                raise DockerfileError(f"line {line}: HEALTHCHECK --retries={value[:40]}: a number")
        elif duration_ns(value) is None:
            raise DockerfileError(f"line {line}: HEALTHCHECK --{option}={value[:40]}: a time such as 30s or 1m30s")
    return HealthCheck(line, _command(line, "HEALTHCHECK", command.strip()), tuple(options.items()))


_UNITS_NS = {"ns": 1, "us": 1000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def duration_ns(text: str) -> int | None:
    """Nanoseconds of a time as Go writes it, such as 1m30s or 0.5s; None if it is not one."""
    if text == "0":
        return 0
    if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ns|us|ms|s|m|h))+", text):
        return None
    parts = re.findall(r"([0-9.]+)([a-z]+)", text)
    total = sum(int(float(number) * _UNITS_NS[unit]) for number, unit in parts)
    return total if total < 1 << 62 else None


def _words(line: int, text: str, escape: str) -> list[str]:
    """Words as Docker splits them: quotes and escapes keep a word together and stay in it, for `expand`."""
    words, word, quote, at = list[str](), "", "", 0
    while at < len(text):
        char = text[at]
        if char == escape and quote != "'" and at + 1 < len(text):
            word += text[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if char == quote else quote
            word += char
        elif char in "\"'":
            quote = char
            word += char
        elif char.isspace():
            if word:
                words.append(word)
            word = ""
        else:
            word += char
        at += 1
    if quote:
        raise DockerfileError(f"line {line}: a quote ({quote}) is not closed")
    return [*words, word] if word else words


# ---- variables ----

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


MAX_NESTED = 20
"""Variables inside the default of a variable."""


def expand(text: str, scope: Mapping[str, str], escape: str = "\\", depth: int = 0) -> str:
    """Replace variables, and take quotes and escapes away. Forms: $a, ${a}, ${a:-b}, ${a-b}, ${a:+b}, ${a+b}."""
    out, quote, at, size = list[str](), "", 0, 0
    while at < len(text):
        char = text[at]
        if char == escape and quote != "'":
            if at + 1 >= len(text):
                out.append(char)
            elif quote and text[at + 1] not in ('"', "$", escape):
                out.append(text[at : at + 2])
            else:
                out.append(text[at + 1])
            at += 2
        elif char == quote:
            quote, at = "", at + 1
        elif char in "\"'" and not quote:
            quote, at = char, at + 1
        elif char == "$" and quote != "'":
            value, at = _variable(text, at + 1, scope, escape, depth)
            out.append(value)
            size += len(value)
        else:
            out.append(char)
            at += 1
        if size > MAX_EXPANDED:
            raise DockerfileError(f"a word grows above {MAX_EXPANDED} characters by its variables")
    return "".join(out)


def _variable(text: str, at: int, scope: Mapping[str, str], escape: str, depth: int) -> tuple[str, int]:
    if depth > MAX_NESTED:
        raise DockerfileError(f"variables are nested more than {MAX_NESTED} levels deep")
    if text[at : at + 1] != "{":
        found = _NAME.match(text, at)
        return (scope.get(found[0], ""), found.end()) if found else ("$", at)
    found = _NAME.match(text, at + 1)
    end = _closing(text, at)
    if not found or end < 0:
        raise DockerfileError(f"{text[at - 1 : at + 39]!r}: not a variable")
    value, rest = scope.get(found[0]), text[found.end() : end]
    if not rest:
        return value or "", end + 1
    form = re.match(r"(:?[-+])", rest)
    if not form:
        raise DockerfileError(f"${{{text[at + 1 : end][:40]}}}: only the forms :- - :+ and + are supported")
    missing = value is None or (form[1][0] == ":" and not value)
    other = rest[form.end() :]
    if form[1].endswith("-"):
        return (expand(other, scope, escape, depth + 1) if missing else value or ""), end + 1
    return ("" if missing else expand(other, scope, escape, depth + 1)), end + 1


def _closing(text: str, at: int) -> int:
    depth = 0
    for place in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place
    return -1
