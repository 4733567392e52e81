"""The report: one file that asks for nothing, in which a model's text stays text. Looked at in a real browser."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harena.azr.report import html as report
from harena.azr.report import plot
from harena.azr.report.journal import RunJournal
from harena.azr.report.plot import PlotPoint

KINDS = ("deduction", "abduction", "induction")
HOSTILE = "def f(a):\n    return '</pre><script>document.title = \"owned\"</script><img src=x onerror=alert(1)>' \x1b[2J\u202e"


OF_KIND = {"count": 12, "reward": -0.1, "length": 30.0, "entropy": 0.3, "format_errors": 0.1}
STEP: dict[str, Any] = {
    "propose": {
        kind: {
            **OF_KIND,
            "valid": 0.5,
            "share": 0.4,
            "repeated": 0.2,
            "verdicts": {"ok": 6, "error": 3},
            "invalid": {"form: n <b>": 1, "error": 3},
        }
        for kind in KINDS
    },
    "solve": {kind: {**OF_KIND, "right": 0.4, "length": math.nan} for kind in KINDS},
    "diversity": {"unique_share": 0.9, "distance": 0.5, "programs": 12},
    "time": {"propose": 0.5, "wait_validate": 0.1, "update": 1.0, "total": 1.6},
    "buffer": {"deduction": 12, HOSTILE: 1},
    "update": {"policy_loss": 0.1, "grad_norm": 0.5},
}


def score(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 40}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunJournal(tmp_path) as log:
        log.write("run", model="<b>tiny</b>", profile="laptop", seed=7, config={"update": {"clip": 0.2}})
        log.write("eval", iteration=0, suites={"tiny": {kind: score(0.3) for kind in KINDS}})
        for iteration in (1, 2, 3):
            log.write("step", iteration=iteration, **STEP)
            log.write(
                "sample", iteration=iteration, task=HOSTILE, program=HOSTILE, input="1", output="2", solve_rate=0.25
            )
        log.write("eval", iteration=3, suites={"tiny": {kind: score(0.45) for kind in KINDS}})
    return tmp_path


def test_the_page_shows_first_and_last_held_out_accuracy_with_intervals(run: Path) -> None:
    text = report.write(run).read_text()
    assert text.count("<td>0.300</td>") == text.count("<td>0.450</td>") == 3
    assert "0.35 – 0.55" in text


def test_tasks_that_were_gained_and_lost_are_counted_by_part(tmp_path: Path) -> None:
    parts = {"deduction": score(0.3), "deduction 2 op": score(0.3), "all": score(0.3)}
    first, last = (
        ["deduction-1-0", "deduction-2-0", "induction-1-0"],
        ["deduction-2-0", "deduction-2-1", "abduction-1-3"],
    )
    with RunJournal(tmp_path) as log:
        for iteration, right in enumerate((first, last)):
            log.write("eval", iteration=iteration, suites={"tiny": parts}, right=right)
    text = report.write(tmp_path).read_text()
    assert re.findall(r"<td>(\d+, \d+)</td>", text) == ["1, 1", "1, 0", "2, 2"]


def test_reasons_are_summed_over_the_run_the_most_frequent_first(run: Path) -> None:
    text = report.write(run).read_text()
    table = text.partition("Why proposals were no tasks")[2].partition("</table>")[0]
    rows = re.findall(r"<tr><td>(.*?)</td><td>(\d+)</td><td>(\d+)</td><td>(\d+)</td></tr>", table)
    assert rows == [("error", "9", "9", "9"), ("form: n &lt;b&gt;", "3", "3", "3")]


def test_what_a_model_wrote_is_escaped_wherever_it_appears(run: Path) -> None:
    text = report.write(run).read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "<b>tiny" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\u{202e}" in text


def test_the_page_holds_no_script_style_attribute_or_address(run: Path) -> None:
    text = report.write(run).read_text()
    for tag in re.findall(r"<[^>]*>", text):
        assert not re.search(r"\s(style|on\w+|href|src)\s*=", re.sub(r'"[^"]*"', "", tag)), tag
    assert "default-src 'none'" in text


def test_every_plot_is_well_formed(run: Path) -> None:
    plots = re.findall(r'<svg class="plot".*?</svg>', report.write(run).read_text(), flags=re.S)
    assert len(plots) >= 8
    for text in plots:
        ElementTree.fromstring(text)
        assert "nan" not in text
        assert "inf" not in text.replace("info", "")


@pytest.mark.services
def test_a_browser_runs_nothing_in_it(run: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium not installed (apt-get install chromium)")
    path = report.write(run)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={run}/profile", "--dump-dom"]
    shown = subprocess.run([chromium, *flags, path.as_uri()], check=True, capture_output=True, text=True, timeout=60)
    assert f"<title>{run.name}: Absolute Zero</title>" in shown.stdout
    assert "&lt;script&gt;" in shown.stdout
    assert "Refused" not in shown.stderr


def test_a_run_without_steps_still_has_a_page(tmp_path: Path) -> None:
    with RunJournal(tmp_path) as log:
        log.write("run", model="tiny")
    assert "not evaluated" in report.write(tmp_path).read_text()


def test_a_report_goes_where_it_is_asked_to(run: Path, tmp_path: Path) -> None:
    assert report.write(run, tmp_path / "page.html").name == "page.html"
    with pytest.raises(report.journal.RunJournalError, match="nowhere"):
        report.write(run, tmp_path / "nowhere" / "page.html")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, 30, [0, 10, 20, 30]), (-0.5, 0.5, [-0.4, -0.2, 0, 0.2, 0.4])],
)
def test_ticks_are_round_numbers_within(low: float, high: float, expected: list[float]) -> None:
    assert plot.ticks(low, high) == expected


def test_ticks_of_iterations_are_whole() -> None:
    assert plot.ticks(0.96, 2.04, least=1.0) == [1, 2]


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1e-9], [math.nan, 1.0], [-3.0, 1e6]])
def test_any_numbers_can_be_drawn(values: list[float]) -> None:
    curve: Any = [PlotPoint(x=x, y=y, low=y, high=y) for x, y in enumerate(values)]
    ElementTree.fromstring(plot.lines({"a": curve}, x_label="x", y_label="<y>").partition("<ul")[0])


def test_nothing_to_draw_is_no_plot() -> None:
    assert plot.lines({"a": [PlotPoint(x=1, y=math.nan)]}, x_label="x", y_label="y") == ""
    assert plot.stacked([(1, {})], x_label="x", y_label="y") == ""
