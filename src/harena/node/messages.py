"""What messages between a client and a node carry: specs, limits, results, reports and errors.

A client does not trust its node, which a guest may have taken over: what comes from a node has a closed schema, and an
unknown error never becomes a success. `verbs` checks what comes from a client.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from harena import errors
from harena.errors import BoxFileError, BoxLost, IsolationUnavailable, Retry, WireError
from harena.node.link import SMALL_TEXT, Message
from harena.sandbox.backend import Capabilities, Task
from harena.sandbox.network import Denied, Network, NetworkReport
from harena.sandbox.spec import Limits, Mount, Result, Spec, Usage, Verdict

MAX_CORES = 4096
"""Most processors of a node that are believed: a pool makes as many boxes."""
MAX_DENIED = 100
REPORT_TEXT = MAX_DENIED * 2048 + SMALL_TEXT
"""Maximum size of the JSON of a report of a network."""
MAX_NUMBER = 1 << 53
MAX_WORDS = 16 * 1024
"""Characters of a text from a node that are kept."""
IDS = ("", "single", "full")
TIERS = ("full", "restricted")

# ---- values that a client sends; `verbs` checks them ----


def spec_out(spec: Spec) -> Message:
    return dataclasses.asdict(spec) | {"env": dict(spec.env)}


def spec_in(message: Message) -> Spec:
    mounts = tuple(Mount(**mount) for mount in message["mounts"])
    lists = {name: tuple(message[name]) for name in ("packages", "requirements", "preload", "paths", "allow")}
    fields: Message = {**message, **lists, "mounts": mounts, "network": network_in(message["network"])}
    return Spec(**fields)


def network_out(network: Network | None) -> Message | None:
    return None if network is None else dataclasses.asdict(network)


def network_in(message: Message | None) -> Network | None:
    return None if message is None else Network(**message)


def limits_out(limits: Limits) -> Message:
    return {name: getattr(limits, name) for name in Limits.__dataclass_fields__}


def task_out(task: Task) -> tuple[Message, bytes]:
    """The sources and the input travel as bytes, which need no quoting."""
    pieces = [source.encode("utf-8", "surrogatepass") for source in task.sources]
    fields: Message = {"grouped": task.grouped, "limits": limits_out(task.limits), "more": task.more}
    return {**fields, "sizes": [len(piece) for piece in pieces]}, b"".join([*pieces, task.stdin])


def task_in(message: Message, data: bytes) -> Task:
    sources: list[str] = []
    for size in message["sizes"]:
        sources.append(data[:size].decode("utf-8", "surrogatepass"))
        data = data[size:]
    limits = Limits(**message["limits"])
    return Task(sources=sources, stdin=data, grouped=message["grouped"], limits=limits, more=message["more"])


def json_arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Message:
    """Check that the arguments of a call are valid JSON before anything is sent."""
    given = {"args": [*args], "kwargs": {**kwargs}}
    try:
        json.dumps(given, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise errors.SpecError(f"call {name}: its arguments are not JSON: {error}") from None
    return given


# ---- values that a node sends; a client does not trust them ----


def result_out(result: Result) -> tuple[Message, bytes]:
    message = {
        "verdict": result.verdict.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "usage": dataclasses.asdict(result.usage),
        "detail": result.detail,
        "value": result.value,
        "started": result.started,
        "ids": result.ids,
        "isolation": result.isolation,
        "out": len(result.stdout),
        "err": len(result.stderr),
    }
    return message, result.stdout + result.stderr


def field(message: Message, name: str, *kinds: type) -> Any:
    """A field of an answer, which must have one of these types; a bool is not an int."""
    value = message.get(name)
    if type(value) not in kinds:
        raise WireError(f"the node sent an answer with a wrong {name}")
    return value


def fields(message: object, *names: str) -> Message:
    """An object that has exactly these fields."""
    if not isinstance(message, dict) or set(cast("Message", message)) != set(names):
        raise WireError(f"the node sent something else than {', '.join(names) or 'nothing'}")
    return cast("Message", message)


def whole(value: object, least: int = 0, most: int = MAX_NUMBER) -> int:
    if type(value) is not int or not least <= value <= most:
        raise WireError(f"the node sent something else than a number from {least} to {most}")
    return value


def number(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= cast("float", value) <= MAX_NUMBER:
        raise WireError("the node sent something else than an amount")
    return cast("float", value)


def yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise WireError("the node sent something else than yes or no")
    return value


def word(value: object, known: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise WireError(f"the node sent something else than one of {known}")
    return value


def words(value: object) -> str:
    """Text for people: without control characters, and not longer than anybody reads."""
    if not isinstance(value, str):
        raise WireError("the node sent something else than text")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in value[:MAX_WORDS])


def items(value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(cast("list[Any]", value)) > most:
        raise WireError(f"the node sent something else than a list of at most {most}")
    return cast("list[Any]", value)


RESULT = (
    *("verdict", "exit_code", "signal", "usage", "detail", "value", "started", "ids", "isolation"),
    *("out", "err"),
)
VERDICTS = tuple(verdict.value for verdict in Verdict)


def result_in(message: object, data: bytes) -> Result:
    found = fields(message, *RESULT)
    usage = fields(found["usage"], "cpu_s", "wall_s", "peak_mb", "bytes")
    out = whole(found["out"])
    if out + whole(found["err"]) != len(data):
        raise WireError("the node sent more or less output than it announced")
    return Result(
        verdict=Verdict(word(found["verdict"], VERDICTS)),
        exit_code=None if found["exit_code"] is None else whole(found["exit_code"], 0, 255),
        signal=None if found["signal"] is None else whole(found["signal"], 1, 64),
        stdout=data[:out],
        stderr=data[out:],
        usage=Usage(
            cpu_s=number(usage["cpu_s"]),
            wall_s=number(usage["wall_s"]),
            peak_mb=number(usage["peak_mb"]),
            bytes=whole(usage["bytes"]),
        ),
        detail=words(found["detail"]),
        value=found["value"],
        started=yes(found["started"]),
        ids=word(found["ids"], IDS),
        isolation=word(found["isolation"], TIERS),
    )


def results_in(values: object, data: bytes, most: int) -> list[Result]:
    results: list[Result] = []
    for one in items(values, most):
        if not isinstance(one, dict):
            raise WireError("the node sent something else than a result")
        message = cast("Message", one)
        size = whole(message.get("out")) + whole(message.get("err"))
        results.append(result_in(message, data[:size]))
        data = data[size:]
    if data:
        raise WireError("the node sent more output than it announced")
    return results


def capabilities_in(message: object) -> Capabilities:
    found = fields(message, *Capabilities.__dataclass_fields__)
    return Capabilities(
        launcher=words(found["launcher"]),
        memory=words(found["memory"]),
        processes=words(found["processes"]),
        landlock=whole(found["landlock"]),
        counts_memory=yes(found["counts_memory"]),
        forks=yes(found["forks"]),
        network=yes(found["network"]),
        ids=word(found["ids"], IDS),
        isolation=word(found["isolation"], TIERS),
        not_covered=tuple(map(words, items(found["not_covered"], 100))),
        notes=tuple(map(words, items(found["notes"], 100))),
        cores=whole(found["cores"], 0, MAX_CORES),
    )


def report_out(report: NetworkReport) -> Message:
    return dataclasses.asdict(report)


def report_in(message: object) -> NetworkReport:
    found = fields(message, *NetworkReport.__dataclass_fields__)
    denied = [fields(one, *Denied.__dataclass_fields__) for one in items(found["denied"], MAX_DENIED)]
    return NetworkReport(
        connections=whole(found["connections"]),
        bytes_out=whole(found["bytes_out"], 0, 1 << 63),
        bytes_in=whole(found["bytes_in"], 0, 1 << 63),
        refused=whole(found["refused"]),
        denied=tuple(Denied(words(one["target"]), words(one["reason"]), whole(one["count"])) for one in denied),
    )


# ---- errors ----

PLAIN = {
    kind.__name__: kind
    for kind in (
        errors.SpecError,
        errors.BackendUnavailable,
        errors.Unsupported,
        errors.BoxClosed,
        errors.RequirementsFailed,
        errors.StartTimeout,
        errors.QueueTimeout,
        errors.BudgetExceeded,
        errors.WireError,
        BrokenPipeError,
        ProcessLookupError,
        BlockingIOError,
        TimeoutError,
        OSError,
    )
}
"""Errors that are recreated from their text alone, the most specific first."""
RETRYABLE = {kind.__name__: kind for kind in (errors.BoxError, errors.JournalError)}
"""Errors that say whether to try again. What is not known is a box that was lost."""


def error_out(error: BaseException) -> Message:
    """What a client learns of an error. The text of one that is not ours could name files of the host."""
    if isinstance(error, BoxFileError):
        return {"kind": "BoxFileError", "text": error.strerror, "errno": error.errno, "path": error.filename}
    if isinstance(error, IsolationUnavailable):
        return {"kind": "IsolationUnavailable", "text": error.missing, "fix": error.fix}
    kind = next((name for name, plain in PLAIN.items() if isinstance(error, plain)), type(error).__name__)
    retry = error.retry.value if isinstance(error, errors.BoxError) else Retry.UNKNOWN.value
    if isinstance(error, errors.HarenaError):
        text = str(error)
    elif isinstance(error, OSError):
        text = error.strerror or (str(error) if error.filename is None else type(error).__name__)
    else:
        text = f"the node failed: {type(error).__name__}"
    return {"kind": kind, "text": text, "retry": retry}


def error_in(message: object) -> Exception:
    if not isinstance(message, dict):
        raise WireError("the node sent something else than an error")
    found = cast("Message", message)
    kind, text = found.get("kind"), words(found.get("text"))
    if not isinstance(kind, str):
        raise WireError("the node sent an error without a kind")
    if kind == "BoxFileError":
        fields(found, "kind", "text", "errno", "path")
        return errors.file_error(whole(found["errno"], 1, 4095), words(found["path"]), text)
    if kind == "IsolationUnavailable":
        fields(found, "kind", "text", "fix")
        return IsolationUnavailable(text, fix=words(found["fix"]))
    fields(found, "kind", "text", "retry")
    retry = Retry(word(found["retry"], [one.value for one in Retry]))
    if kind in PLAIN:
        return PLAIN[kind](text)
    return RETRYABLE.get(kind, BoxLost)(text, retry=retry)
