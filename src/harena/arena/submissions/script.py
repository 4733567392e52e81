"""Self-reported scripts: `python3 -u submission.py ENV_ID` in a box of its own, which prints what it says it scored.

The score is the script's word and nobody else's: whoever shows it marks it so, and never ranks it with verified ones.
Promises: what the script does is a value (`ScriptRun`); what the platform fails at is raised, and says whether to try
again. Its output is read with caps; a script cannot make the reader slow, nor hand on anything but plain numbers and
short texts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import posixpath
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from harena.arena.submissions.evaluate import EvaluationCancelled, EvaluationStatus
from harena.errors import BoxError, SpecError
from harena.match.agent import packages as agent_packages
from harena.match.run.agent_log import printable
from harena.sandbox.box import Sandbox
from harena.sandbox.spec import MB, Limits, Result, Spec, Verdict

LIMITS = Limits(wall_s=300, cpu_s=150, memory_mb=512, processes=50, output_bytes=8 * MB)
"""Half a core: of 300 s it may use 150 s of processor time, when it likes, on however many cores it finds."""
WORKSPACE_MB = 128
"""The largest submission, and as much again for what it writes."""
MAX_SCORE = 1e12
"""Beyond it, also below zero, a score is a mistake or a joke."""
MAX_METRICS = 64
MAX_METRIC_NAME = 64
MAX_METRIC_TEXT = 200
READ_BYTES = 1 * MB
"""The end of the output, in which the score must be."""
MAX_LINE = 64 * 1024
MAX_LINES_TRIED = 1000
LOG_BYTES = 16 * 1024
MAX_ENV_ID = 200
LOOK_S = 0.1
RUN_AS = "submission.py"
"""The name under which the main file is run, beside its own, which other files may import."""
MAX_SERIES = 10_000
"""Numbers of a metric that is a list."""
HOW = 'print it as the last line, as JSON: print(json.dumps({"score": 12.5}))'

Metric = float | int | bool | str | list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCode:
    """A script as it travels; made by `intake.take_in`."""

    name: str
    main: str
    """The path of the file that is run."""
    files: dict[str, bytes]
    """Contents by relative path. They are laid out in the folder that the script runs in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptReport:
    """What a script printed about itself."""

    score: float | None
    problem: str = ""
    """Why there is no score."""
    metrics: dict[str, Metric] = field(default_factory=dict[str, Metric])
    returns: tuple[float, ...] = ()
    """Rewards of its episodes, where `metrics` is a list of them."""
    warnings: tuple[str, ...] = ()
    silent: bool = False
    """It ran to its end and printed no score at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    status: EvaluationStatus
    score: float | None
    """Its own word; None when it failed."""
    metrics: dict[str, Metric]
    reason: str
    """One sentence for its owner; empty when all went well."""
    log: str
    """The end of what it printed. For its owner only."""
    cpu_s: float
    wall_s: float
    peak_mb: float
    returns: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()
    silent: bool = False


def packages() -> tuple[str, ...]:
    """Installed distributions that scripts may import: what agents have, and Gymnasium where it is installed."""
    more = ("gymnasium",) if importlib.util.find_spec("gymnasium") is not None else ()
    return tuple(dict.fromkeys((*agent_packages.for_agents(), *more)))


def box_spec() -> Spec:
    """What is in a script's box; for a pool that keeps some ready."""
    return Spec(packages=packages(), workspace_mb=WORKSPACE_MB)


def new_box() -> Sandbox:
    return Sandbox(box_spec(), limits=LIMITS)


def run(
    code: ScriptCode,
    env_id: str,
    *,
    lease: Callable[[], Sandbox] = new_box,
    limits: Limits = LIMITS,
    cancelled: Callable[[], bool] | None = None,
) -> ScriptRun:
    """Runs it to its end. `lease` gives a fresh box of `box_spec`, as SandboxPool.lease does; it is closed afterwards.
    Raises Cancelled, and BoxError when the platform failed."""
    if not 0 < len(env_id) <= MAX_ENV_ID or not env_id.isprintable():
        raise SpecError(f"env_id {env_id[:80]!r}: 1 to {MAX_ENV_ID} printable characters")
    with lease() as box, _watched(box, cancelled):
        for path, data in code.files.items():
            box.write(path, data)
        main = code.main
        beside = posixpath.join(posixpath.dirname(main), RUN_AS)
        if beside not in code.files:  # another file of that name keeps it
            box.write(beside, code.files[main])
            main = beside
        main = f"./{main}" if main.startswith("-") else main  # else Python takes it for an option
        return _run_of(box.exec(["python3", "-u", main, env_id], limits=limits), limits)


@contextlib.contextmanager
def _watched(box: Sandbox, cancelled: Callable[[], bool] | None) -> Generator[None]:
    """Closes the box when it is called off: that ends whatever runs in it."""
    if cancelled is None:
        yield
        return
    called_off, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            if cancelled():
                called_off.set()
                box.close("the run was cancelled")
                return

    watcher = threading.Thread(target=watch, name="harena-script-watch", daemon=True)
    watcher.start()
    try:
        yield
    except BoxError:
        if not called_off.is_set():
            raise
    finally:
        over.set()
        watcher.join()
    if called_off.is_set():
        raise EvaluationCancelled("the run was cancelled")


def _run_of(result: Result, limits: Limits) -> ScriptRun:
    report = read_report(result.stdout) if result.ok else ScriptReport(score=None, problem=_why(result, limits))
    return ScriptRun(
        status=EvaluationStatus.FAILED if report.score is None else EvaluationStatus.OK,
        score=report.score,
        metrics=report.metrics,
        reason=report.problem,
        log=_log(result),
        cpu_s=result.usage.cpu_s,
        wall_s=result.usage.wall_s,
        peak_mb=result.usage.peak_mb,
        returns=report.returns,
        warnings=report.warnings,
        silent=report.silent,
    )


def _why(result: Result, limits: Limits) -> str:
    match result.verdict:
        case Verdict.TIME if limits.cpu_s is not None and result.usage.cpu_s >= limits.cpu_s:
            return f"it used more than {limits.cpu_s:g} s of processor time, half a core for {limits.wall_s:g} s"
        case Verdict.TIME:
            return f"it ran for longer than {limits.wall_s:g} s"
        case Verdict.MEMORY:
            return f"it needed more than {limits.memory_mb} MiB of memory"
        case Verdict.PROCESSES:
            return f"it needed more than {limits.processes} processes and threads"
        case Verdict.OUTPUT:
            return f"it printed more than {limits.output_bytes // MB} MB; print less"
        case Verdict.SIGNAL:
            return f"it was ended by signal {result.signal}"
        case Verdict.EXIT:
            return f"it ended with exit code {result.exit_code}; a score counts only with exit code 0"
        case _:
            return result.detail


def _log(result: Result) -> str:
    parts = [_tail(result.stdout)]
    if result.stderr:
        parts.append(f"[stderr]\n{_tail(result.stderr)}")
    return "\n".join(part for part in parts if part)


def _tail(data: bytes) -> str:
    cut = data[-LOG_BYTES:]
    text = printable(cut.decode("utf-8", "replace")).rstrip("\n")
    return f"[… {len(data) - len(cut)} bytes left out …]\n{text}" if len(cut) < len(data) else text


# What it printed


def read_report(output: bytes) -> ScriptReport:
    """The last line that is a JSON object with a number as `score` decides, also when that number cannot be taken."""
    seen: Any = None
    for message in _objects(output):
        score = message.get("score")
        if isinstance(score, bool) or not isinstance(score, int | float):
            seen = score if seen is None else seen
            continue
        if not abs(score) <= MAX_SCORE:  # so that nan is refused too
            return ScriptReport(score=None, problem=f"its score is {_brief(score)}; a score lies within ±{MAX_SCORE:g}")
        given = message.get("metrics")
        if _is_series(given):
            return ScriptReport(score=float(score), returns=tuple(map(float, cast("list[float]", given))))
        metrics, warnings = _metrics(given)
        return ScriptReport(score=float(score), metrics=metrics, warnings=warnings)
    if seen is not None:
        return ScriptReport(score=None, problem=f"its score is {_brief(seen)}, which is not a number; {HOW}")
    return ScriptReport(score=None, problem=f"it printed no score; {HOW}", silent=True)


def _objects(output: bytes) -> Iterator[dict[str, Any]]:
    """Yield objects from the last line to the first. Untrusted output is parsed in small pieces, and not forever."""
    lines = output[-READ_BYTES:].splitlines()
    hopeful = (line for line in reversed(lines) if b'"score"' in line and len(line) <= MAX_LINE)
    for _, line in zip(range(MAX_LINES_TRIED), hopeful, strict=False):
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(message, dict):
            yield cast("dict[str, Any]", message)


def _metrics(given: object) -> tuple[dict[str, Metric], tuple[str, ...]]:
    """What fits is kept; a warning says what does not. A score stands without its metrics."""
    if given is None:
        return {}, ()
    if not isinstance(given, dict):
        return {}, (f"`metrics` is neither an object nor a list of up to {MAX_SERIES} numbers: left out",)
    kept: dict[str, Metric] = {}
    left_out = 0
    for name, value in cast("dict[str, object]", given).items():
        if len(kept) < MAX_METRICS and name.isprintable() and 0 < len(name) <= MAX_METRIC_NAME and _is_metric(value):
            kept[name] = cast(Metric, value)
        else:
            left_out += 1
    if not left_out:
        return kept, ()
    return kept, (
        f"{left_out} of the metrics were left out: at most {MAX_METRICS}, each a finite number, true, false, a list of "
        f"numbers or a text of {MAX_METRIC_TEXT} characters, with a name of at most {MAX_METRIC_NAME}",
    )


def _is_series(value: object) -> bool:
    """Whether it is a list of finite numbers, such as the rewards of episodes."""
    if not isinstance(value, list) or len(cast("list[object]", value)) > MAX_SERIES:
        return False
    numbers = cast("list[object]", value)
    return all(isinstance(one, int | float) and not isinstance(one, bool) and abs(one) <= MAX_SCORE for one in numbers)


def _is_metric(value: object) -> bool:
    if isinstance(value, list):
        return _is_series(cast("list[object]", value))
    if isinstance(value, str):
        return len(value) <= MAX_METRIC_TEXT and value.isprintable()
    return isinstance(value, int | float) and abs(value) <= MAX_SCORE


def _brief(value: object) -> str:
    """JSON can hold whole numbers of thousands of digits, and texts without end."""
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
