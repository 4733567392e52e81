"""A script's score is its own word: read with care, bounded in every way, and never more than that."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from harena.arena.submissions import script
from harena.arena.submissions.evaluate import EvaluationCancelled, EvaluationStatus
from harena.arena.submissions.script import LIMITS, ScriptCode, ScriptRun, read_report, run
from harena.errors import SpecError
from harena.sandbox.pool import SandboxPool
from harena.sandbox.spec import Limits

SHORT = Limits(wall_s=10, cpu_s=5, memory_mb=256, processes=50, output_bytes=1 << 20)


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(script.box_spec(), warm=1) as pool:
        yield pool


def ran(pool: SandboxPool, source: str, limits: Limits = SHORT, **files: str) -> ScriptRun:
    laid = {"submission.py": source.encode()} | {f"{name}.py": text.encode() for name, text in files.items()}
    return run(ScriptCode(name="s", main="submission.py", files=laid), "CartPole-v1", lease=pool.lease, limits=limits)


# How it is run


def test_a_script_gets_the_environment_and_reports_a_score(pool: SandboxPool) -> None:
    done = ran(
        pool,
        "import json, sys\nprint('training', sys.argv)\nprint(json.dumps({'score': 12.5, 'metrics': {'episodes': 7}}))\n",
    )
    assert (done.status, done.score, done.metrics, done.reason) == (EvaluationStatus.OK, 12.5, {"episodes": 7}, "")
    assert "['submission.py', 'CartPole-v1']" in done.log
    assert done.wall_s > 0


def test_files_lie_side_by_side(pool: SandboxPool) -> None:
    source = "import helper\nprint('{\"score\": %d}' % (helper.VALUE + len(open('helper.py').read())))\n"
    assert ran(pool, source, helper="VALUE = 3\n").score == 13


def test_output_is_not_held_back(pool: SandboxPool) -> None:
    done = ran(pool, "import os\nprint('so far')\nos._exit(3)\n")
    assert "so far" in done.log


def test_numpy_and_gymnasium_can_be_imported(pool: SandboxPool) -> None:
    pytest.importorskip("gymnasium")
    source = """
import json, sys
import gymnasium, numpy
env = gymnasium.make(sys.argv[1])
env.reset(seed=1)
over, total = False, 0.0
while not over:
    _, reward, ended, cut, _ = env.step(0)
    total, over = total + reward, ended or cut
print(json.dumps({"score": total}))
"""
    assert ran(pool, source).score in (8.0, 9.0, 10.0)


def test_a_main_file_that_looks_like_an_option_is_run(pool: SandboxPool) -> None:
    code = ScriptCode(name="s", main="-c.py", files={"-c.py": b"print('{\"score\": 1}')"})
    assert run(code, "X", lease=pool.lease, limits=SHORT).score == 1


def test_the_limits_are_those_of_the_contract() -> None:
    assert (LIMITS.wall_s, LIMITS.memory_mb, LIMITS.processes) == (300, 512, 50)
    assert LIMITS.cpu_s == LIMITS.wall_s / 2


def test_a_box_is_not_used_twice(pool: SandboxPool) -> None:
    look = "import os\nprint('{\"score\": %d}' % len(os.listdir('.')))\nopen('left', 'w').write('x')\n"
    assert [ran(pool, look).score for _ in range(2)] == [1, 1]


# How it fails


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("print('{\"score\": 5}'); raise SystemExit(1)", "exit code 1"),
        ("print('{\"score\": 5}'); 1/0", "exit code 1"),
        ("print('hello')", "printed no score"),
        ("import os; print('{\"score\": 5}', flush=True); os.kill(os.getpid(), 11)", "signal 11"),
        ("print('{\"score\": 5}', flush=True)\nx = bytearray(1 << 29)", "256 MiB"),
        ("print('{\"score\": 5}')\nprint('x' * (2 << 20))", "more than 1 MB"),
        ("import socket\nsocket.create_connection(('1.1.1.1', 53), 1)", "exit code 1"),
    ],
)
def test_what_fails_says_why(pool: SandboxPool, source: str, words: str) -> None:
    done = ran(pool, source)
    assert (done.status, done.score) == (EvaluationStatus.FAILED, None)
    assert words in done.reason


def test_wall_and_processor_time_are_bounded(pool: SandboxPool) -> None:
    sleeping = ran(pool, "import time; time.sleep(60)", Limits(wall_s=0.5, cpu_s=5))
    assert "longer than 0.5 s" in sleeping.reason
    burning = ran(pool, "while True: pass", Limits(wall_s=60, cpu_s=0.3))
    assert "0.3 s of processor time" in burning.reason


def test_processes_are_bounded(pool: SandboxPool) -> None:
    source = "import os, time\nfor _ in range(60):\n    if not os.fork():\n        time.sleep(9); os._exit(0)\nprint('{\"score\": 1}')"
    assert "50 processes" in ran(pool, source).reason


def test_the_end_of_the_log_is_kept_without_what_a_terminal_obeys(pool: SandboxPool) -> None:
    done = ran(pool, "print('\\x1b[31m' + 'x' * 50000 + 'near the end')\nraise ValueError('the cause')")
    assert "near the end" in done.log
    assert done.log.rstrip().endswith("ValueError: the cause")
    assert "\x1b" not in done.log
    assert len(done.log) < 2 * script.LOG_BYTES + 200


def test_it_can_be_called_off(pool: SandboxPool) -> None:
    called_off = threading.Event()
    threading.Timer(0.3, called_off.set).start()
    code = ScriptCode(name="s", main="a.py", files={"a.py": b"import time; time.sleep(60)"})
    started = time.monotonic()
    with pytest.raises(EvaluationCancelled):
        run(code, "X", lease=pool.lease, limits=Limits(wall_s=60), cancelled=called_off.is_set)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("env_id", ["", "x" * 201, "a\0b", "a\nb"])
def test_a_strange_environment_is_refused_before_anything_starts(env_id: str) -> None:
    def no_box() -> Any:
        raise AssertionError

    with pytest.raises(SpecError, match="env_id"):
        run(ScriptCode(name="s", main="a.py", files={}), env_id, lease=no_box)


# What it printed


def test_the_last_line_with_a_number_counts() -> None:
    lines = [b'{"score": 1}', b"noise", b'{"score": 2}', b'{"loss": 3}', b'{"score": "4"}', b'{"score": true}', b"[1]"]
    assert read_report(b"\n".join(lines)).score == 2
    assert read_report(b'{"score": 1}\r\n{"score": -3e2}\r\n').score == -300
    assert read_report(b'  {"score": 7}  ').score == 7


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e13", "-1e13", "1e999", "9" * 400, "-" + "9" * 4000]
)
def test_a_score_that_cannot_be_is_refused_and_an_earlier_one_does_not_step_in(value: str) -> None:
    report = read_report(f'{{"score": 5}}\n{{"score": {value}}}\n'.encode())
    assert report.score is None
    assert "score" in report.problem
    assert len(report.problem) < 200


@pytest.mark.parametrize("value", ["true", "null", '"12"', "[1]", '{"a": 1}', '"' + "x" * 9999 + '"'])
def test_what_is_no_number_is_no_score(value: str) -> None:
    report = read_report(f'{{"score": {value}}}'.encode())
    assert report.score is None
    assert "print(json.dumps" in report.problem
    assert len(report.problem) < 200


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"score": 1',
        b'"score"',
        b'[{"score": 1}]',
        b'{"score": ' + b"9" * 5000 + b"}",
        b'{"score": ' + b"[" * 30000 + b"}",
        b'{"score": 1, "x": "' + b"x" * script.MAX_LINE + b'"}',
        b'{"score": 1\xff}',
        b"\xff\xfe\x00",
    ],
)
def test_junk_is_no_score(line: bytes) -> None:
    assert read_report(line).score is None


def test_a_flood_of_almost_scores_is_read_in_no_time() -> None:
    flood = b'{"score": [[[[\n' * (8 << 20 >> 4)
    started = time.process_time()
    assert read_report(b'{"score": 1}\n' + flood).score is None
    assert time.process_time() - started < 1


def test_metrics_are_numbers_and_short_texts() -> None:
    good = {"loss": 0.5, "steps": 10, "done": True, "note": "fine"}
    report = read_report(json.dumps({"score": 1, "metrics": good}).encode())
    assert (report.metrics, report.warnings) == (good, ())


@pytest.mark.parametrize(
    "metrics",
    [
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": {"b": 1}}',
        '{"a": null}',
        '{"": 1}',
        '{"a\\n": 1}',
        '{"a": "\\u001b[31m"}',
        '{"a": "\\ud800"}',
        '{"\\ud800": 1}',
        f'{{"{"n" * 65}": 1}}',
        f'{{"a": "{"x" * 201}"}}',
        f'{{"a": {"9" * 400}}}',
        "[1, null]",
        "[true]",
        '{"a": [1, "x"]}',
        '"text"',
    ],
)
def test_metrics_that_do_not_fit_are_left_out_and_the_score_stands(metrics: str) -> None:
    report = read_report(f'{{"score": 3, "metrics": {metrics}}}'.encode())
    assert (report.score, report.metrics) == (3, {})
    assert len(report.warnings) == 1


def test_metrics_have_a_largest_number() -> None:
    report = read_report(json.dumps({"score": 1, "metrics": {f"m{at}": at for at in range(100)}}).encode())
    assert len(report.metrics) == script.MAX_METRICS
    assert "36 of the metrics" in report.warnings[0]
