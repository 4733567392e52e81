"""`call`: a function of given source, JSON in and JSON out, in a process of its own."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from harena import Limits, Sandbox, SpecError, Verdict

ECHO = "def f(*args, **kwargs):\n    return [args, kwargs]\n"


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5, 2**70, "ü€😀\u0000\n", [], {}, [1, [2, {"a": [None]}]], {"k": {"": 1}}, "\ud800"],
    ids=ascii,
)
def test_values_come_back_as_they_went(box: Sandbox, value: Any) -> None:
    result = box.call(ECHO, "f", [value, 1], {"key": value})
    assert (result.verdict, result.value) == (Verdict.OK, [[value, 1], {"key": value}])


def test_large_values_come_back(box: Sandbox) -> None:
    wide = Limits(output_bytes=4_000_000)
    assert box.call("def f(n):\n    return 'x' * n", "f", [2_000_000], limits=wide).value == "x" * 2_000_000
    text = "y" * 2_000_000
    assert box.call("def f(s):\n    return len(s)", "f", [text]).value == len(text)


def test_prints_are_output_and_not_the_answer(box: Sandbox) -> None:
    result = box.call("import sys\ndef f():\n    print('said')\n    print('err', file=sys.stderr)\n    return 1", "f")
    assert (result.stdout, result.stderr, result.value) == (b"said\n", b"err\n", 1)


@pytest.mark.parametrize("source", ["object()", "{1, 2}", "b'x'", "float('nan')", "float('inf')", "[1, float('-inf')]"])
def test_answer_that_is_not_json_is_the_guests_failure(box: Sandbox, source: str) -> None:
    result = box.call(f"def f():\n    return {source}", "f")
    assert (result.verdict, result.exit_code, result.value) == (Verdict.EXIT, 1, None)
    assert b"Error" in result.stderr


def test_answer_that_strict_json_refuses_is_the_guests_failure(box: Sandbox) -> None:
    source = (
        "import sys\nsys.set_int_max_str_digits(0)\n"
        "def f(kind):\n    return 10**5000 if kind == 'digits' else deep()\n"
        "def deep():\n    value = []\n    for _ in range(900):\n        value = [value]\n    return value\n"
    )
    result = box.call(source, "f", ["digits"])
    assert (result.verdict, result.value) == (Verdict.EXIT, None)
    assert "4000 digits" in result.detail
    assert box.call(source, "f", ["deep"]).verdict is Verdict.OUTPUT


@pytest.mark.parametrize(
    ("value", "output_bytes"),
    [("'x' * 2000", 1000), ("[[]] * 400_000", 1_000_000), ("[[]] * 3_000_000", 20_000_000), ("deep", 20_000_000)],
)
def test_answer_is_bounded_before_it_is_taken_apart(box: Sandbox, value: str, output_bytes: int) -> None:
    """Three bytes of JSON become sixty in the host's memory."""
    source = f"deep = []\nfor _ in range(300): deep = [deep, 1]\ndef f():\n    return {value}\n"
    tracemalloc.start()
    try:
        result = box.call(source, "f", limits=Limits(output_bytes=output_bytes))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (result.verdict, result.value, result.exit_code) == (Verdict.OUTPUT, None, None)
    assert peak < 100_000_000


@pytest.mark.parametrize(
    "args", [[math.nan], [math.inf], [{1, 2}], [b"x"], [object()]], ids=["nan", "inf", "set", "bytes", "object"]
)
def test_arguments_that_are_not_json_are_the_callers_mistake(box: Sandbox, args: list[Any]) -> None:
    with pytest.raises(SpecError, match="not JSON"):
        box.call(ECHO, "f", args)
    with pytest.raises(SpecError, match="not JSON"):
        box.call(ECHO, "f", [], {"key": args})


@pytest.mark.parametrize("name", ["", "a.b", "f()", "1f", "f\n"])
def test_name_that_is_none_is_the_callers_mistake(box: Sandbox, name: str) -> None:
    with pytest.raises(SpecError, match="name of a function"):
        box.call(ECHO, name)


def test_missing_function_is_told(box: Sandbox) -> None:
    result = box.call("x = 1", "f")
    assert (result.verdict, result.exit_code, result.value) == (Verdict.EXIT, 1, None)
    assert b"defines no f" in result.stderr


def test_exception_is_told_with_its_traceback(box: Sandbox) -> None:
    result = box.call("def f(d):\n    return d['missing']", "f", [{}])
    assert (result.verdict, result.exit_code, result.value) == (Verdict.EXIT, 1, None)
    assert result.stderr.endswith(b"KeyError: 'missing'\n")


@pytest.mark.parametrize("source", ["raise ValueError('top')", "def f(:", "import no_such_module"])
def test_source_that_fails_is_told(box: Sandbox, source: str) -> None:
    result = box.call(source, "f")
    assert (result.verdict, result.exit_code) == (Verdict.EXIT, 1)
    assert b"Error" in result.stderr


def test_exit_instead_of_an_answer_is_told(box: Sandbox) -> None:
    assert box.call("import sys\ndef f():\n    sys.exit(5)", "f").exit_code == 5
    result = box.call("import os\ndef f():\n    os._exit(0)", "f")
    assert (result.verdict, result.value) == (Verdict.EXIT, None)
    assert "without an answer" in result.detail


def test_infinite_loop_is_ended(box: Sandbox) -> None:
    result = box.call("def f():\n    while True: pass", "f", limits=Limits(wall_s=0.3))
    assert (result.verdict, result.value) == (Verdict.TIME, None)


def test_too_much_memory_is_a_verdict(box: Sandbox) -> None:
    result = box.call("def f():\n    return 'x' * 10**10", "f", limits=Limits(memory_mb=64))
    assert (result.verdict, result.value) == (Verdict.MEMORY, None)


def test_nothing_stays_for_the_next_call_but_files(box: Sandbox) -> None:
    box.run("x = 1")
    source = (
        "import builtins\n"
        "def f():\n    seen = hasattr(builtins, 'x'), 'x' in globals()\n    builtins.x = 1\n    return seen"
    )
    assert box.call(source, "f").value == box.call(source, "f").value == [False, False]
    assert box.call("def f():\n    open('kept', 'w').write('1')", "f").ok
    assert box.read("kept") == b"1"


def test_calls_have_random_state_of_their_own(box: Sandbox) -> None:
    source = "import random\ndef f():\n    return random.random()"
    assert len({box.call(source, "f").value for _ in range(4)}) == 4


def test_limits_of_the_box_hold_unless_a_call_has_its_own(make_box: Callable[..., Sandbox]) -> None:
    box = make_box(limits=Limits(output_bytes=10))
    source = "def f():\n    print('x' * 20)"
    assert box.call(source, "f").verdict is Verdict.OUTPUT
    assert box.call(source, "f", limits=Limits()).ok
