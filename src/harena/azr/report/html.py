"""A training run as one HTML file that needs nothing else. Guarantees: no script at all, no request leaves the page
(its policy forbids both), and whatever a model wrote is text in it: escaped, its invisible characters shown. Reads
only the journal; a plot whose numbers are not there is left out.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from harena.azr.report import journal, plot
from harena.azr.report.plot import PlotPoint, shown

Record = Mapping[str, Any]
Pick = Callable[[Record], Mapping[str, float]]
"""The numbers of one plot from one step, by the name of their curve."""
UPDATE = {"policy_loss": None, "grad_norm": 0.0, "clip_fraction": 0.0, "drift": None, "kl": 0.0, "value_loss": 0.0}
"""Numbers of an update that are drawn, and where their axes begin."""
MAX_SAMPLES = 24
MAX_SAMPLE_CHARS = 4_000
MAX_BARS = 120
"""Iterations in a bar plot; of longer runs every n-th is drawn."""

CSS = """
:root { color-scheme: light dark; --ink: #1c1d20; --quiet: #5d6066; --line: #d9dbe0; --paper: #fff; --card: #f6f7f9;
  --blue: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e9ec; --quiet: #a0a4ac; --line: #3a3d44; --paper: #16171a; --card: #1e2024; --blue: #1a80c4; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 24px 20px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; }
h2 { font-size: 17px; margin: 36px 0 4px; }
h3 { font-size: 14px; margin: 0 0 6px; }
p { margin: 4px 0 12px; max-width: 75ch; }
.quiet { color: var(--quiet); font-size: 13px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 16px;
  align-items: start; margin-bottom: 16px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; min-width: 0; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
td.quiet { font-size: 12px; }
th, td { padding: 4px 7px 4px 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: var(--quiet); font-size: 12px; }
.scroll { overflow-x: auto; }
.words td:first-child { white-space: normal; }
.plot { display: block; width: 100%; height: auto; }
.grid { stroke: var(--line); stroke-width: 1; }
.tick, .label { font-size: 11px; fill: var(--quiet); }
.middle { text-anchor: middle; } .end { text-anchor: end; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.band { opacity: .15; stroke: none; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 6px 0 0; padding: 0;
  font-size: 12px; color: var(--quiet); }
.key { width: 10px; height: 10px; margin-right: 5px; }
.line.s0 { stroke: var(--blue); } .fill.s0, .dot.s0, .band.s0 { fill: var(--blue); }
.line.s1 { stroke: #d55e00; } .fill.s1, .dot.s1, .band.s1 { fill: #d55e00; }
.line.s2 { stroke: #009e73; } .fill.s2, .dot.s2, .band.s2 { fill: #009e73; }
.line.s3 { stroke: #cc79a7; } .fill.s3, .dot.s3, .band.s3 { fill: #cc79a7; }
.line.s4 { stroke: #8d7a00; } .fill.s4, .dot.s4, .band.s4 { fill: #8d7a00; }
.line.s5 { stroke: #56b4e9; } .fill.s5, .dot.s5, .band.s5 { fill: #56b4e9; }
.line.s6 { stroke: #e69f00; } .fill.s6, .dot.s6, .band.s6 { fill: #e69f00; }
.line.s7 { stroke: #7f7f7f; } .fill.s7, .dot.s7, .band.s7 { fill: #7f7f7f; }
pre { margin: 0; overflow-x: auto; font: 12.5px/1.45 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
"""


def write(folder: str | Path, output: str | Path | None = None) -> Path:
    """Makes the page of the run in `folder`, by default as report.html in it."""
    path = Path(output) if output else Path(folder, "report.html")
    text = page(journal.read(folder), name=Path(folder).resolve().name)
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise journal.RunJournalError(f"{path}: {error.strerror}") from error
    return path


def page(records: Sequence[Record], *, name: str = "") -> str:
    run = next((record for record in records if record["kind"] == "run"), cast("Record", {}))
    steps, evals, samples = (_of(records, kind) for kind in ("step", "eval", "sample"))
    body = [
        _head(name, run, steps),
        _held_out(evals),
        _self_play(steps),
        _machine(steps),
        _samples(samples),
        _settings(run),
    ]
    digest = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{shown(name)}: Absolute Zero</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n{''.join(body)}</body>\n</html>\n"
    )


def _of(records: Sequence[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind and isinstance(record.get("iteration"), int)]


# ---- sections ----


def _head(title: str, run: Record, steps: Sequence[Record]) -> str:
    names = ("model", "engine", "profile", "seed")
    parts = [f"{name} {shown(run[name])}" for name in names if run.get(name) not in (None, "")]
    parts.append(f"{len(steps)} iterations")
    counts = [_map(step, "rollouts") for step in steps]
    rollouts, tokens = (sum(int(_number(one.get(name, 0))) for one in counts) for name in ("count", "tokens"))
    parts.append(f"{rollouts:,} rollouts of {tokens:,} tokens learnt from")
    parts.append(f"{sum(_number(_map(step, 'time').get('total', 0.0)) for step in steps):,.0f} s")
    if isinstance(run.get("at"), int | float):
        parts.append(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run["at"])))
    return f'<header><h1>{shown(title)}: a run of self-play</h1><p class="quiet">{" · ".join(parts)}</p></header>'


def _held_out(evals: Sequence[Record]) -> str:
    if not evals:
        return "<h2>Held-out accuracy</h2><p>This run was not evaluated on a held-out set.</p>"
    suites = list(dict.fromkeys(name for record in evals for name in _map(record, "suites")))
    cards = "".join(_suite(name, evals) for name in suites)
    return (
        "<h2>Held-out accuracy</h2><p>On tasks that training never sees, answers checked in boxes. The bands are 95 % "
        "intervals of the measurement; gained and lost are tasks that only the last, and only the first model solves. "
        f"This, and not the solve rate of self-play, is progress.</p>{cards}"
    )


def _suite(name: str, evals: Sequence[Record]) -> str:
    curves: dict[str, list[PlotPoint]] = {}
    for record in evals:
        for part, score in _map(_map(record, "suites"), name).items():
            if isinstance(score, Mapping):
                point = _point(record["iteration"], cast("Record", score))
                curves.setdefault(part, []).append(point)
    names = ("", "tasks", "first", "95 %", "last", "95 %", "gained, lost")
    head = f"<tr>{''.join(f'<th>{one}</th>' for one in names)}</tr>"
    rows = "".join(
        f"<tr><td>{shown(part)}</td><td>{_tasks(name, part, evals)}</td>{_cells(points[0])}{_cells(points[-1])}"
        f"{_changes(part, evals)}</tr>"
        for part, points in curves.items()
        if points
    )
    cards = [
        _card(title, plot.lines(part, x_label="iteration", y_label="accuracy", within=(0.0, 1.0)))
        for title, part in _legible(shown(name), curves).items()
    ]
    table = f'<div class="card scroll"><h3>{shown(name)}, first and last</h3><table>{head}{rows}</table></div>'
    return f'<div class="cards">{"".join(cards)}{table}</div>'


def _legible(name: str, curves: Mapping[str, list[PlotPoint]]) -> dict[str, dict[str, list[PlotPoint]]]:
    """More curves than there are colours get a plot for each first word."""
    if len(curves) <= plot.COLOURS:
        return {name: dict(curves)}
    parts: dict[str, dict[str, list[PlotPoint]]] = {}
    for part, points in curves.items():
        first, _, rest = part.partition(" ")
        parts.setdefault(f"{name}: {shown(first)}", {})[rest or first] = points
    return parts


def _point(iteration: int, score: Record) -> PlotPoint:
    low, high = score.get("low"), score.get("high")
    known = isinstance(low, int | float) and isinstance(high, int | float)
    return PlotPoint(
        x=iteration, y=_number(score.get("value")), low=low if known else None, high=high if known else None
    )


def _tasks(suite: str, part: str, evals: Sequence[Record]) -> str:
    return shown(_map(_map(_map(evals[-1], "suites"), suite), part).get("n", ""))


def _changes(part: str, evals: Sequence[Record]) -> str:
    """Tasks are named `deduction-2-17`: kind, operations, number."""
    first, last = ({str(one) for one in evals[at].get("right") or ()} for at in (0, -1))
    if not first and not last:
        return "<td></td>"
    start = "" if part == "all" else part.removesuffix(" op").replace(" ", "-") + "-"
    gained, lost = (sum(one.startswith(start) for one in some) for some in (last - first, first - last))
    return f"<td>{gained}, {lost}</td>"


def _cells(point: PlotPoint) -> str:
    interval = "" if point.low is None or point.high is None else f"{point.low:.2f} – {point.high:.2f}"
    return f"<td>{point.y:.3f}</td><td class='quiet'>{interval}</td>"


def _self_play(steps: Sequence[Record]) -> str:
    charts = [
        _shares("Valid proposals", steps, _by_kind("propose", "valid")),
        _shares(
            "Solve rate in self-play",
            steps,
            _by_kind("propose", "share"),
            note="Of the tasks just proposed: how well the two roles are matched, not how good the model is.",
        ),
        _chart("Reward", steps, _by_role("reward"), y_label="mean reward"),
        _chart("Length of responses", steps, _by_role("length"), y_label="tokens", bottom=0.0),
        _shares(
            "Tasks to learn from",
            steps,
            _by_kind("propose", "learnable"),
            note="Of the tasks whose difficulty was measured, those solved sometimes and not always.",
        ),
        _shares(
            "Diversity of valid proposals",
            steps,
            _diversity,
            note="Unique programs, the mean distance of their syntax trees, and programs that were seen before.",
        ),
        _chart("Entropy of the policy", steps, _by_role("entropy"), y_label="nats a token", bottom=0.0),
        _shares("Answers of the wrong form", steps, _by_role("format_errors")),
        _chart("Tasks kept", steps, lambda step: _numbers(_map(step, "buffer")), y_label="tasks", bottom=0.0),
    ]
    return _section("Self-play", charts)


def _by_kind(role: str, field: str) -> Pick:
    def pick(step: Record) -> dict[str, float]:
        return {kind: _number(_map(_map(step, role), kind).get(field)) for kind in _map(step, role)}

    return pick


def _by_role(field: str) -> Pick:
    def pick(step: Record) -> dict[str, float]:
        return {
            f"{role} {kind}": number
            for role in ("propose", "solve")
            for kind, number in _by_kind(role, field)(step).items()
        }

    return pick


def _diversity(step: Record) -> dict[str, float]:
    found = _map(step, "diversity")
    repeated = [number for number in _by_kind("propose", "repeated")(step).values() if math.isfinite(number)]
    return {
        "unique": _number(found.get("unique_share")),
        "distance": _number(found.get("distance")),
        "seen before": sum(repeated) / len(repeated) if repeated else math.nan,
    }


def _machine(steps: Sequence[Record]) -> str:
    stride = -(-len(steps) // MAX_BARS) if steps else 1
    thin = steps[::stride]
    times = [(step["iteration"], _phases(step)) for step in thin]
    verdicts = [(step["iteration"], _verdicts(step, "propose")) for step in thin]
    answers = [(step["iteration"], _verdicts(step, "solve", "samples")) for step in thin]
    charts = [
        _card(
            "Time per phase",
            plot.stacked(times, x_label="iteration", y_label="seconds"),
            "Checks run while the model writes; the phases that begin with wait are what they add.",
        ),
        _reasons(steps),
        _card("What became of the proposals", plot.stacked(verdicts, x_label="iteration", y_label="proposals")),
        _card("What became of the answers", plot.stacked(answers, x_label="iteration", y_label="answers")),
        *(
            _chart(
                f"Update: {name}",
                steps,
                lambda step, name=name: {name: _number(_map(step, "update").get(name))},
                y_label=name,
                bottom=bottom,
            )
            for name, bottom in UPDATE.items()
        ),
    ]
    return _section("Machine", charts)


def _phases(step: Record) -> dict[str, float]:
    return {name: seconds for name, seconds in _numbers(_map(step, "time")).items() if name != "total"}


def _reasons(steps: Sequence[Record]) -> str:
    """Why proposals were no tasks, over the whole run."""
    kinds = list(dict.fromkeys(kind for step in steps for kind in _map(step, "propose")))
    counts: dict[str, dict[str, float]] = {}
    for step in steps:
        for kind in kinds:
            for reason, count in _numbers(_map(_map(_map(step, "propose"), kind), "invalid")).items():
                of_reason = counts.setdefault(reason, {})
                of_reason[kind] = of_reason.get(kind, 0.0) + count
    if not counts:
        return ""
    head = "".join(f"<th>{shown(name)}</th>" for name in ("no task because", *kinds))
    rows = "".join(
        f"<tr><td>{shown(reason)}</td>{''.join(f'<td>{found.get(kind, 0):.0f}</td>' for kind in kinds)}</tr>"
        for reason, found in sorted(counts.items(), key=lambda pair: -sum(pair[1].values()))
    )
    return (
        f'<div class="card scroll words"><h3>Why proposals were no tasks</h3><table><tr>{head}</tr>{rows}</table></div>'
    )


def _verdicts(step: Record, *roles: str) -> dict[str, float]:
    """Sum verdicts over all kinds. Answers that were not in the form asked for were never run."""
    counts: dict[str, float] = {}
    for found in (_map(_map(step, role), kind) for role in roles for kind in _map(step, role)):
        verdicts = _numbers(_map(found, "verdicts"))
        for name, count in verdicts.items():
            counts[name] = counts.get(name, 0.0) + count
        missing = _number(found.get("count")) - sum(verdicts.values())
        if missing > 0:
            counts["format"] = counts.get("format", 0.0) + missing
    return dict(sorted(counts.items(), key=lambda pair: (pair[0] != "ok", pair[0])))


def _section(title: str, charts: Iterable[str]) -> str:
    cards = "".join(charts)
    return f'<h2>{title}</h2><div class="cards">{cards}</div>' if cards else ""


def _chart(
    title: str,
    steps: Sequence[Record],
    pick: Pick,
    *,
    y_label: str,
    bottom: float | None = None,
    top: float | None = None,
    note: str = "",
) -> str:
    curves: dict[str, list[PlotPoint]] = {}
    for step in steps:
        for name, number in pick(step).items():
            if math.isfinite(number):
                curves.setdefault(name, []).append(PlotPoint(x=step["iteration"], y=number))
    return _card(title, plot.lines(curves, x_label="iteration", y_label=y_label, bottom=bottom, top=top), note)


def _shares(title: str, steps: Sequence[Record], pick: Pick, note: str = "") -> str:
    return _chart(title, steps, pick, y_label="share", bottom=0.0, top=1.0, note=note)


def _card(title: str, drawn: str, note: str = "") -> str:
    quiet = f'<p class="quiet">{note}</p>' if note else ""
    return f'<div class="card"><h3>{title}</h3>{quiet}{drawn}</div>' if drawn else ""


def _samples(samples: Sequence[Record]) -> str:
    if not samples:
        return ""
    chosen = list(samples)
    if len(samples) > MAX_SAMPLES:
        chosen = [*samples[: MAX_SAMPLES // 4], *samples[-MAX_SAMPLES * 3 // 4 :]]
    cards = "".join(_sample(sample) for sample in reversed(chosen))
    return (
        f'<h2>Sample proposals</h2><p class="quiet">{len(chosen)} of {len(samples)} written down, newest first.</p>'
        f'<div class="cards">{cards}</div>'
    )


def _sample(sample: Record) -> str:
    head = [f"iteration {sample['iteration']}", shown(sample.get("task", ""))]
    rate = sample.get("solve_rate")
    head.append(f"solved {rate:.0%}" if isinstance(rate, int | float) else shown(sample.get("verdict", "")))
    reward = sample.get("reward")
    head.append(f"reward {reward:.2g}" if isinstance(reward, int | float) else "")
    lines = [f"{name}: {_cut(str(sample[name]))}" for name in ("input", "output", "message") if sample.get(name)]
    text = shown(_cut(str(sample.get("program", ""))) + "\n\n" + "\n".join(lines))
    return f'<div class="card"><p class="quiet">{" · ".join(part for part in head if part)}</p><pre>{text}</pre></div>'


def _settings(run: Record) -> str:
    config = _map(run, "config")
    if not config:
        return ""
    rows = "".join(f"<tr><td>{shown(name)}</td><td>{shown(value)}</td></tr>" for name, value in _leaves(config))
    return f'<h2>Settings</h2><div class="card scroll"><table>{rows}</table></div>'


def _leaves(data: Record, prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(cast("Record", value), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SAMPLE_CHARS else text[:MAX_SAMPLE_CHARS] + " […]"


def _map(record: Record, name: str) -> Record:
    value = record.get(name)
    return cast("Record", value) if isinstance(value, Mapping) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _numbers(record: Record) -> dict[str, float]:
    return dict(journal.flat(record))
