"""What a client may ask of a node: for each verb its fields, their types and their caps. Everything else is refused
before it reaches a box. A request has exactly these fields; none has a default, so a mistyped name is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from harena.errors import WireError
from harena.node import link
from harena.node.link import Message
from harena.sandbox.backend import MAX_PACKET
from harena.sandbox.batch import MAX_GROUP_BYTES
from harena.sandbox.box import MAX_FORKS, check_call, check_command
from harena.sandbox.network import MAX_RULES
from harena.sandbox.process import CHUNK
from harena.sandbox.spec import MB, Limits

MAX_NUMBER = 1 << 53
MAX_WORDS = 10_000
MAX_WORD = 4 * MB
MAX_NAME = 4096
MAX_WAIT_S = 8 * 86400.0
"""Longest wait that a request may ask for: more than the longest execution."""
MAX_SOURCE = 4 * MAX_GROUP_BYTES
"""Bytes of Python source: a character takes up to four."""
MAX_CPUS = 4096
MAX_CPU_NS = 1 << 62

Check = Callable[[Any], bool]
"""Whether a value has the right type and size."""


def whole(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def number(low: float, high: float) -> Check:
    return lambda value: type(value) in (int, float) and low <= value <= high


def text(most: int = MAX_NAME) -> Check:
    return lambda value: type(value) is str and len(value) <= most


def flag(value: Any) -> bool:
    return type(value) is bool


def one_of(*names: str) -> Check:
    return lambda value: type(value) is str and value in names


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def many(check: Check, most: int, *, least: int = 0) -> Check:
    def right(value: Any) -> bool:
        if type(value) is not list:
            return False
        items = cast("list[Any]", value)
        return least <= len(items) <= most and all(map(check, items))

    return right


def names_and_values(value: Any) -> bool:
    return (
        type(value) is dict
        and len(cast("Message", value)) <= MAX_WORDS
        and all(text(MAX_NAME)(name) and text(MAX_WORD)(one) for name, one in cast("Message", value).items())
    )


def record(fields: Mapping[str, Check]) -> Check:
    """Objects with exactly these fields."""
    return lambda value: (
        type(value) is dict
        and cast("Message", value).keys() == fields.keys()
        and all(check(value[name]) for name, check in fields.items())
    )


def anything(value: Any) -> bool:
    """For values that only a box of the client itself reads."""
    return True


HANDLE = whole(1, MAX_NUMBER)
NETWORK = record(
    {
        "allow": many(text(300), MAX_RULES),
        "private_names": flag,
        "max_open": whole(1, 1024),
        "max_connections": whole(0, 1 << 40),
        "max_bytes": whole(0, 1 << 60),
        "connect_s": number(0, 86400),
        "idle_s": number(0, 86400),
    }
)
LIMITS = record(dict.fromkeys(Limits.__dataclass_fields__, anything))
"""`Limits` itself checks the values, with a reason for the caller."""
SPEC: dict[str, Check] = {
    "python": optional(text()),
    "packages": many(text(200), 100),
    "requirements": many(text(1000), 1000),
    "preload": many(text(200), 1000),
    "paths": many(text(), 100),
    "mounts": many(record({"source": text(), "target": text(), "writable": flag}), 100),
    "env": names_and_values,
    "rootfs": optional(text()),
    "image": optional(text(1000)),
    "pull": flag,
    "root_mb": whole(1, 1 << 20),
    "user": optional(text(200)),
    "ids": text(20),
    "workspace_mb": whole(1, 1 << 20),
    "hostname": text(100),
    "isolation": text(20),
    "allow": many(text(20), 10),
    "network": optional(NETWORK),
    "gpus": lambda value: type(value) is int or text(10)(value) or many(text(10), 64)(value),
}
"""Fields of a Spec."""
COMMAND = {
    "argv": many(text(MAX_WORD), MAX_WORDS, least=1),
    "env": names_and_values,
    "cwd": text(),
    "limits": LIMITS,
}
TASK = record(
    {
        "sizes": many(whole(0, MAX_SOURCE), 1000, least=1),
        "grouped": flag,
        "limits": LIMITS,
        "more": whole(0, 1000),
    }
)
GIVEN = record({"args": lambda value: type(value) is list, "kwargs": lambda value: type(value) is dict})
OF_HANDLE: dict[str, Check] = {"handle": HANDLE}
STREAM = {**OF_HANDLE, "stream": one_of("stdout", "stderr")}

REQUESTS: dict[str, Mapping[str, Check]] = {
    "capabilities": {},
    "load": {},
    "create": {"spec": record(SPEC), "limits": LIMITS, "start_s": number(0, 86400)},
    "stop": {"target": HANDLE},
    "exec": {**OF_HANDLE, **COMMAND},
    "run": {**OF_HANDLE, "limits": LIMITS},
    "call": {**OF_HANDLE, "name": text(1000), "given": GIVEN, "limits": LIMITS},
    "ask_files": {**OF_HANDLE, "message": lambda value: type(value) is dict},
    "fork": {**OF_HANDLE, "count": whole(1, MAX_FORKS)},
    "alive": OF_HANDLE,
    "set_network": {**OF_HANDLE, "network": optional(NETWORK)},
    "network_report": OF_HANDLE,
    "connect": {**OF_HANDLE, "port": whole(1, 65535), "timeout_s": number(0, 60)},
    "pull": {**OF_HANDLE, "timeout_s": number(0, 60)},
    "push": OF_HANDLE,
    "shut": OF_HANDLE,
    "hang_up": OF_HANDLE,
    "ping": OF_HANDLE,
    "warm_up": OF_HANDLE,
    "close": OF_HANDLE,
    "start": {**OF_HANDLE, **COMMAND, "pty": flag, "rows": whole(0, 65535), "cols": whole(0, 65535)},
    "read": {**STREAM, "timeout_s": number(0, 60)},
    "close_stream": STREAM,
    "write": OF_HANDLE,
    "close_stdin": OF_HANDLE,
    "signal": {**OF_HANDLE, "number": whole(0, 64)},
    "resize": {**OF_HANDLE, "rows": whole(0, 65535), "cols": whole(0, 65535)},
    "wait": {**OF_HANDLE, "timeout_s": number(0, MAX_WAIT_S)},
    "forget": OF_HANDLE,
    "programs": OF_HANDLE,
    "give": {**OF_HANDLE, "key": HANDLE, "task": TASK},
    "converse": {**OF_HANDLE, "limits": LIMITS},
    "converse_with": {
        **OF_HANDLE,
        "argv": many(text(MAX_WORD), MAX_WORDS, least=1),
        "limits": LIMITS,
        "cpus": many(whole(0, MAX_CPUS), MAX_CPUS),
    },
    "met": OF_HANDLE,
    "send": OF_HANDLE,
    "receive_soon": OF_HANDLE,
    "receive": {**OF_HANDLE, "wait_s": number(0, MAX_WAIT_S)},
    "turn": {**OF_HANDLE, "wait_s": number(0, MAX_WAIT_S), "cpu_ns": optional(whole(0, MAX_CPU_NS))},
    "become_stream": OF_HANDLE,
    "read_log": OF_HANDLE,
    "cpu_ns": OF_HANDLE,
    "others_cpu_ns": OF_HANDLE,
    "freeze": OF_HANDLE,
    "thaw": OF_HANDLE,
    "pin": {**OF_HANDLE, "cpus": many(whole(0, MAX_CPUS), MAX_CPUS, least=1)},
    "end": {**OF_HANDLE, "patience_s": number(0, MAX_WAIT_S)},
    "drop": OF_HANDLE,
}
DATA = {
    "exec": link.MAX_REQUEST,
    "run": MAX_SOURCE,
    "call": MAX_SOURCE,
    "converse": MAX_SOURCE,
    "ask_files": link.MAX_REQUEST,
    "give": link.MAX_REQUEST,
    "write": CHUNK,
    "push": CHUNK,
    "send": MAX_PACKET,
    "become_stream": MAX_PACKET,
}
"""Most bytes that come with a request; the others have none."""


def check(verb: Any, message: Message, data: bytes) -> None:
    """Raise WireError for a request that is not one. `message` is without its number and verb."""
    if type(verb) is not str or verb not in REQUESTS:
        raise WireError(f"no verb {str(verb)[:40]!r}")
    fields = REQUESTS[verb]
    for name in message:
        if name not in fields:
            raise WireError(f"{verb}: no field {name[:40]!r}")
    for name, right in fields.items():
        if name not in message:
            raise WireError(f"{verb}: {name} is missing")
        if not right(message[name]):
            raise WireError(f"{verb}: {name} has a wrong type, is too large or out of range")
    if len(data) > DATA.get(verb, 0):
        raise WireError(f"{verb}: {len(data)} bytes are more than it takes")
    if verb in ("exec", "start"):
        check_command(message["argv"], message["env"], message["cwd"])
    elif verb == "converse_with":
        check_command(message["argv"], {}, "")
    elif verb == "call":
        check_call(message["name"])
    elif verb == "give":
        _check_task(message["task"], data)


def _check_task(task: Message, data: bytes) -> None:
    sizes: list[int] = task["sizes"]
    if sum(sizes) > len(data):
        raise WireError("give: the sizes of the sources do not add up")
    if not task["grouped"] and len(sizes) != 1:
        raise WireError("give: more than one program, and no group")
    if task["grouped"] and sum(sizes) != len(data):
        raise WireError("give: a group has no input")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that `check` has let through."""

    verb: str
    number: int
    message: Message
    data: bytes

    def __getitem__(self, name: str) -> Any:
        return self.message[name]

    @property
    def limits(self) -> Limits:
        return Limits(**self.message["limits"])

    @property
    def source(self) -> str:
        return self.data.decode("utf-8", "surrogatepass")
