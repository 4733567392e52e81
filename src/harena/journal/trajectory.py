"""Journal as a trajectory: one record for each action, with its full observation, reward, usage and fault.

An action without a result, because the platform failed, has `fault`, `mask` true and no reward, whatever reward was
given: a trainer leaves it out and never scores it as zero.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

from harena.journal.entries import Entry, is_step
from harena.journal.reader import Contents, read

UNFINISHED: Entry = {
    "party": "platform",
    "kind": "Unfinished",
    "text": "the journal has no end of it: it still runs, or the process that wrote the journal was killed",
    "retry": "unknown",
}
Step = dict[str, Any]


def steps(path: str | os.PathLike[str], *, everything: bool = False) -> Iterator[Step]:
    """Yield the actions of a journal in the order in which they ended; those without an end come last."""
    rewards = {entry["of"]: (entry["reward"], entry["done"]) for entry in read(path) if entry["kind"] == "reward"}
    contents = Contents(path)
    acts: dict[int, tuple[Entry, list[Entry]]] = {}
    head: Step = {}
    count = 0
    for entry in read(path):
        kind = entry["kind"]
        if kind == "open":
            head = {"journal": entry["journal"], "box": entry["box"], "labels": entry["labels"]}
        elif kind == "act" and (everything or is_step(entry)):
            acts[entry["seq"]] = entry, []
        elif kind == "piece" and entry["of"] in acts:
            acts[entry["of"]][1].append(entry)
        elif kind in ("end", "fail") and entry["of"] in acts:
            act, pieces = acts.pop(entry["of"])
            yield _step(contents, head, count, act, pieces, entry, rewards)
            count += 1
    for act, pieces in acts.values():
        yield _step(contents, head, count, act, pieces, None, rewards)
        count += 1


def lines(path: str | os.PathLike[str], *, everything: bool = False) -> Iterator[bytes]:
    """The trajectory as JSON lines."""
    for step in steps(path, everything=everything):
        yield json.dumps(step, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _step(
    contents: Contents,
    head: Step,
    number: int,
    act: Entry,
    pieces: list[Entry],
    end: Entry | None,
    rewards: dict[int, tuple[float | None, bool]],
) -> Step:
    fault = UNFINISHED if end is None else end["fault"] if end["kind"] == "fail" else None
    mask = fault is not None and fault["party"] == "platform"
    reward, done = rewards.get(act["seq"], (None, False))
    results = [_result(contents, one) for one in end["results"]] if end is not None and fault is None else []
    observation: Step = results[0] if len(results) == 1 else {"results": results} if results else {}
    if end is not None and fault is None and end["answer"] is not None:
        observation["answer"] = contents.json(end["answer"])
        _put(observation, "data", contents.data(end["data"]))
    if pieces:
        for name in ("stdout", "stderr"):  # of a process, whose result is recorded without them
            found = [contents.data(one["data"]) for one in pieces if one["stream"] == name]
            if found:
                _put(observation, name, b"".join(found))
        observation["pieces"] = [_put({"stream": one["stream"]}, "data", contents.data(one["data"])) for one in pieces]
    usage = observation.pop("usage", None)
    if results and usage is None:
        usage = {name: sum(one["usage"][name] for one in results) for name in ("cpu_s", "wall_s", "bytes")}
        usage["peak_mb"] = max(one["usage"]["peak_mb"] for one in results)
    return {
        "step": number,
        "seq": act["seq"],
        "at": act["at"],
        "journal": head["journal"],
        "labels": {**head["labels"], **act["labels"]},
        "action": action(contents, act),
        "observation": observation if fault is None or pieces else None,
        "reward": None if mask else reward,
        "done": done,
        "usage": usage,
        "fault": fault,
        "mask": mask,
    }


def action(contents: Contents, act: Entry) -> Step:
    """An action with its contents."""
    shown: Step = {"verb": act["verb"]}
    for name, value in act["action"].items():
        if name == "sources":
            shown[name] = [_put({}, "source", contents.data(one)) for one in value]
        elif isinstance(value, dict) and name in ("argv", "env", "limits", "given", "message", "rules"):
            shown[name] = contents.json(value)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, dict):
            _put(shown, name, contents.data(value))  # pyright: ignore[reportUnknownArgumentType]
        else:
            shown[name] = value
    return shown


def _result(contents: Contents, result: Entry) -> Step:
    shown = {**result, "value": contents.json(result["value"]), "network": contents.json(result["network"])}
    for name in ("stdout", "stderr"):
        _put(shown, name, contents.data(result[name]))
    return shown


def _put(into: Step, name: str, data: bytes) -> Step:
    """Add bytes as text. Those that are not UTF-8 are added as base64 too, so that nothing is lost."""
    into[name] = data.decode("utf-8", "replace")
    if into[name].encode("utf-8", "replace") != data:
        into[f"{name}_base64"] = base64.b64encode(data).decode()
    return into
