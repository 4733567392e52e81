"""Renders a replay as one self-contained HTML file, for the command line, notebooks and the web page.

Guarantees: the page makes no requests, and nothing that an agent wrote (its name, its logs, its moves) runs in it: the
data is JSON that cannot close a tag, only our two scripts may run, and they write text nodes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from harena.match.replay.replay import Replay, ReplayFrame

MAX_FRAMES = 20_000
MAX_FRAME_BYTES = 24 << 20
"""Size of all frames together; beyond either, every second one is left out, and the page says so."""
MAX_LOG_BYTES = 1 << 20

_TITLES = {
    "pong": "Pong",
    "tictactoe": "Tic-tac-toe",
    "connect_four": "Connect four",
    "rps": "Rock, paper, scissors",
    "tron": "Light cycles",
    "leduc": "Leduc poker",
}
_PARTS = ("viewer.css", "boards.js", "viewer.js")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def html(replay: Replay, *, logs: Sequence[str] | None = None) -> str:
    """The page. `logs`: what each seat printed; only for the agents' owners."""
    game = re.sub(r"-v\d+$", "", replay.environment)
    frames, stride = _thinned(replay.frames(), len(replay.agents), with_text=game not in _TITLES)
    return page(
        {
            "match": {
                "environment": replay.environment,
                "game": game,
                "title": title(game),
                "seed": str(replay.seed),  # a browser's numbers end at 53 bits
                "match_id": replay.match_id,
                "status": replay.status,
                "reason": replay.reason,
                "winner": replay.winner,
                "scores": replay.scores,
                "steps": replay.steps,
                "started_at": replay.started_at,
                "wall_s": replay.ended_at - replay.started_at,
            },
            "seats": [
                {"name": name, "status": status, "reason": reason}
                for name, (status, reason) in zip(replay.agents, replay.seats, strict=True)
            ],
            "versions": replay.versions,
            "frames": [msgspec.Raw(frame) for frame in frames],
            "stride": stride,
            "logs": None if logs is None else [_cut(log) for log in logs],
        }
    )


def title(game: str) -> str:
    """Title of a game, from its name without a version."""
    return _TITLES.get(game, game)


def page(data: dict[str, Any]) -> str:
    """The page around any such data: a match that is still running has a status of None and gets its frames later, by
    `harena.append` in the browser."""
    text = msgspec.json.encode(data).decode()
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    head, tail = _shell()
    return head + text + tail


@functools.cache
def policy() -> str:
    """The page's Content-Security-Policy, which it also carries itself: our two scripts, our style, nothing else."""
    css, boards, player = (_allow(_part(name)) for name in _PARTS)
    return f"default-src 'none'; script-src {boards} {player}; style-src {css}; base-uri 'none'; form-action 'none'"


@functools.cache
def _shell() -> tuple[str, str]:
    css, boards, player = (_part(name) for name in _PARTS)
    shell = _part("viewer.html")
    for name, part in {"csp": policy(), "css": css, "boards": boards, "player": player}.items():
        shell = shell.replace(f"{{{{{name}}}}}", part)
    head, tail = shell.split("{{data}}")
    return head, tail


def _part(name: str) -> str:
    return importlib.resources.files("harena.match.replay").joinpath("page", name).read_text("utf-8")


def _allow(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _thinned(frames: Iterable[ReplayFrame], seats: int, *, with_text: bool) -> tuple[list[bytes], int]:
    """The frames for the page, and how many steps lie between two. The last one is always there. Rewards and times are
    running sums, so that nothing is lost with a frame that is left out."""
    kept: list[bytes] = []
    stride, size, number, data = 1, 0, 0, b""
    used_us, totals = [0] * seats, [0.0] * seats
    for frame in frames:
        for seat in range(seats):
            used_us[seat] += frame.cpu_us.get(seat, 0)
            totals[seat] += frame.rewards.get(seat, 0.0)
        number = frame.number
        if number % stride and not frame.done:
            continue
        data = _encoded(frame, used_us, totals, with_text=with_text)
        if number % stride:
            continue
        kept.append(data)
        size += len(data)
        if len(kept) > MAX_FRAMES or (size > MAX_FRAME_BYTES and len(kept) > 2):
            stride, kept = stride * 2, kept[::2]
            size = sum(map(len, kept))
    if number % stride:
        kept.append(data)
    return kept, stride


def _encoded(frame: ReplayFrame, used_us: Sequence[int], totals: Sequence[float], *, with_text: bool) -> bytes:
    data: dict[str, Any] = {
        "step": frame.number,
        "actions": _brief(frame.actions),
        "totals": _brief(totals),
        "clocks": [us / 1e6 for us in used_us],
        "view": _brief(frame.view),
    }
    if with_text:
        data["text"] = frame.text
    return msgspec.json.encode(data)


def _brief(value: Any) -> Any:
    """Round to six digits, which are enough for drawing."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _brief(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_brief(item) for item in cast("Sequence[Any]", value)]
    return value


def _cut(log: str) -> str:
    """Logs are cut where they were kept; this is for who passes others."""
    data = log.encode("utf-8", "replace")
    if len(data) > MAX_LOG_BYTES:
        data = data[:MAX_LOG_BYTES] + b"\n[cut]"
    return data.decode("utf-8", "replace")
