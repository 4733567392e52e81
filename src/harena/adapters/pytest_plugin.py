"""pytest plugin: `@pytest.mark.boxed` runs a test, with its fixtures, in a box instead of in pytest's own process.

    @pytest.mark.boxed(packages=("numpy",), show=("src",), wall_s=10, memory_mb=256)
    def test_solution(): ...

The box shows the folder of the test's file, read-only as /tests, and the folders of `show`, which it also imports from.
A limit that is hit fails that test alone. pytest itself imports the file on the host to find its tests: import what you
do not trust inside the test. A test that passes says so itself, so this protects the machine, not the result.

Every test runs in a new process; tests with the same options share a box, and its files.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

if TYPE_CHECKING:
    from harena.sandbox.box import Sandbox
    from harena.sandbox.spec import Result

TESTS = "/tests"
SHOWN = "/shown"
OUTCOMES = ("passed", "failed", "skipped")
LIMITS = ("wall_s", "cpu_s", "memory_mb", "processes", "output_bytes")
MAX_TEXT = 20_000
"""Characters of a failure that are shown; they come from the guest."""

IN_THE_BOX = """
import os, sys
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
def run(test, paths):
    import pytest
    reports = []
    class Collect:
        def pytest_configure(self, config):
            config.addinivalue_line("markers", "boxed: runs in a box")
        def pytest_runtest_logreport(self, report):
            reports.append([report.when, report.outcome, report.longreprtext, report.capstdout, report.capstderr])
    sys.path[:0] = paths
    sys.dont_write_bytecode = True
    options = ["-q", "-c", "/dev/null", "--rootdir=/tests", "--import-mode=importlib", "-p", "no:cacheprovider"]
    code = pytest.main([*options, test], plugins=[Collect()])
    return {"code": int(code), "reports": reports}
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "boxed(packages=(), show=(), wall_s=60, memory_mb=512, ...): run the test in an isolated box of Harena",
    )
    config.stash[_BOXES] = {}


def pytest_unconfigure(config: pytest.Config) -> None:
    for box in config.stash.get(_BOXES, {}).values():
        box.close()


_BOXES: pytest.StashKey[dict[object, Sandbox]] = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    marker = item.get_closest_marker("boxed")
    if marker is None:
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, dict(marker.kwargs)):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item: pytest.Item, options: dict[str, Any]) -> list[pytest.TestReport]:
    from harena.errors import HarenaError

    begun = time.time()
    try:
        box, limits, paths = _box(item, options)
        name = item.nodeid.partition("::")[2]
        result = box.call(IN_THE_BOX, "run", [f"{TESTS}/{item.path.name}::{name}", paths], limits=limits)
        outcomes = _outcomes(result)
    except HarenaError as error:
        outcomes = [("setup", "failed", f"{type(error).__name__}: {error}", "", "")]
    return [_report(item, begun, *outcome) for outcome in outcomes]


def _box(item: pytest.Item, options: dict[str, Any]) -> tuple[Sandbox, Any, list[str]]:
    from harena.errors import SpecError
    from harena.sandbox.box import Sandbox
    from harena.sandbox.spec import Limits, Mount, Spec

    unknown = set(options) - {*LIMITS, "packages", "show"}
    if unknown:
        raise SpecError(f"boxed has no option {min(unknown)!r}; there is packages, show, {', '.join(LIMITS)}")
    given: dict[str, Any] = {"wall_s": 60.0, **{name: options[name] for name in LIMITS if name in options}}
    limits = Limits(**given)
    packages, show = tuple(options.get("packages", ())), tuple(map(str, options.get("show", ())))
    folder = item.path.parent
    mounts = {TESTS: folder} | {f"{SHOWN}/{number}": item.config.rootpath / one for number, one in enumerate(show)}
    key = (folder, packages, show, limits)
    boxes = item.config.stash[_BOXES]
    if key not in boxes or not boxes[key].alive:
        boxes[key] = Sandbox(
            Spec(
                packages=("pytest", *packages),
                preload=("pytest",),
                mounts=tuple(Mount(source=str(source), target=target) for target, source in mounts.items()),
            ),
            limits=limits,
        )
    return boxes[key], limits, [path for path in mounts if path != TESTS]


Outcome = tuple[str, str, str, str, str]
"""When, what, the failure, stdout and stderr."""


def _outcomes(result: Result) -> list[Outcome]:
    """Read what the box says of the test, through a closed schema."""
    if not result.ok:
        log = (result.stdout + result.stderr).decode("utf-8", "replace")[-MAX_TEXT:]
        return [("call", "failed", f"the box ended the test: {result.verdict.value}: {result.detail}\n{log}", "", "")]
    value: Any = result.value
    rows = cast(list[Any], value.get("reports")) if isinstance(value, dict) else None
    if not isinstance(rows, list) or len(rows) > 100:
        return [("call", "failed", "the box sent no report of the test", "", "")]
    found: list[Outcome] = []
    for row in rows:
        is_good = isinstance(row, list) and len(cast(list[Any], row)) == 5 and all(isinstance(w, str) for w in row)
        if not is_good or row[0] not in ("setup", "call", "teardown") or row[1] not in OUTCOMES:
            return [("call", "failed", "the box sent a report that cannot be understood", "", "")]
        found.append(cast(Outcome, tuple(text[:MAX_TEXT] for text in row)))
    if not any(when == "call" or outcome != "passed" for when, outcome, *_ in found):
        log = (result.stdout + result.stderr).decode("utf-8", "replace")[-MAX_TEXT:]
        return [("call", "failed", f"the test did not run in the box\n{log}", "", "")]
    return found


def _report(
    item: pytest.Item, begun: float, when: str, outcome: str, text: str, stdout: str, stderr: str
) -> pytest.TestReport:
    path, line, _ = item.location
    shown: Any = text or None
    if outcome == "skipped":
        shown = (os.fspath(Path(path)), line or 0, text or "skipped in the box")
    ended = time.time()
    streams = (("Captured stdout", stdout), ("Captured stderr", stderr))
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=cast(Literal["passed", "failed", "skipped"], outcome),
        longrepr=shown,
        when=cast(Literal["setup", "call", "teardown"], when),
        sections=[(f"{title} (in the box)", content) for title, content in streams if content],
        duration=ended - begun if when == "call" else 0.0,
        start=begun,
        stop=ended,
    )
