"""Programs that share a process, and one of them that means the others ill: every outcome is as if each were alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from harena.azr.check.executor import (
    IN_FLIGHT,
    STRAGGLERS,
    Bounds,
    ProgramExecutor,
    ProgramJob,
    ProgramOutcome,
    ProgramStatus,
    stragglers_for,
)
from harena.azr.check.plain import is_plain, nodes_of

COUNT = 6
"""Of each program in a bundle: enough for an honest one to come after a hostile one on both sides."""


@pytest.fixture(scope="module")
def impatient() -> Iterator[ProgramExecutor]:
    """Nothing that was slow in a shared process is run again, so that a neighbour's slowness would show."""
    with ProgramExecutor(bounds=Bounds(wall_s=5, cpu_s=0.2, memory_mb=128, patient=False)) as executor:
        yield executor


def beside(executor: ProgramExecutor, hostile: str, honest: str) -> set[ProgramOutcome]:
    """The outcomes of an honest program among hostile ones, as the verifier would run them."""
    programs = [hostile, honest] * COUNT
    jobs = [ProgramJob(program=one, calls=("3",), plain=is_plain(nodes_of(ast.parse(one)))) for one in programs]
    first, second = zip(*executor.run_twice(jobs), strict=True)
    return {*first[1::2], *second[1::2]}


def given(output: str) -> set[ProgramOutcome]:
    return {ProgramOutcome(status=ProgramStatus.OK, outputs=(output,))}


def test_who_belongs_to_an_abstract_class_is_not_for_a_program_to_say(impatient: ProgramExecutor) -> None:
    hostile = "from typing import Iterable\ndef f(x):\n    Iterable.register(int)\n    return x"
    honest = "from typing import Iterable\ndef f(x):\n    return isinstance(x, Iterable)"
    assert beside(impatient, hostile, honest) == given("False")
    by_module = "import typing\ndef f(x):\n    [typing.Sequence.mro()][0][0].register(int)\n    return x"
    honest = "import typing\ndef f(x):\n    return isinstance(x, typing.Sequence)"
    assert beside(impatient, by_module, honest) == given("False")


def test_what_typing_remembers_is_not_told_on(impatient: ProgramExecutor) -> None:
    hostile = "from typing import List\ndef f(x):\n    return str(List[1])"
    honest = "from typing import List\ndef f(x):\n    return str(List[True])"
    assert beside(impatient, hostile, honest) == given("'typing.List[True]'")


def test_a_compiled_pattern_is_no_message(impatient: ProgramExecutor) -> None:
    hostile = "import re\ndef f(x):\n    return re.compile('a', 2).flags"
    honest = "import re\ndef f(x):\n    try:\n        return re.compile('a', 2.0).flags\n    except TypeError:\n        return None"
    assert beside(impatient, hostile, honest) == given("None")


@pytest.mark.parametrize(
    "hostile",
    [
        "big = b'x' * 90_000_000\ndef f(x):\n    return x",
        "a = [b'x' * 90_000_000]\na.append(a)\ndef f(x):\n    [[] for _ in range(50000)]\n    return x",
        "def f(x):\n    a = [bytearray(90_000_000)]\n    a.append(a)\n    return x",
        "def f(x):\n    a = [b'x' * 90_000_000]\n    a.append(a)\n    return a",
        "def f(x):\n    a = [[b'x' * 90_000_000], []]\n    a.append(a)\n    return len(a) / 0",
    ],
    ids=["in its names", "in an old cycle", "never touched", "unfit", "with an error"],
)
def test_memory_that_a_program_leaves_behind_is_not_missing_to_the_next(
    impatient: ProgramExecutor, hostile: str
) -> None:
    honest = "def f(x):\n    try:\n        return len(b'x' * 60_000_000)\n    except Exception:\n        return 'too little memory'"
    assert beside(impatient, hostile, honest) == given("60000000")


@pytest.mark.parametrize("wait", [0, 300, 600])
def test_a_generator_does_not_end_in_the_time_of_the_next_program(impatient: ProgramExecutor, wait: int) -> None:
    hostile = f"""\
def f(x):
    def g():
        try:
            yield 1
        finally:
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
    a = [g()]
    next(a[0])
    a.append(a)
    [[] for _ in range({wait})]
    return x"""
    honest = "def f(x):\n    return len([[n] for n in range(900)]) + x"
    assert beside(impatient, hostile, honest) == given("903")


def test_programs_that_hold_memory_and_hang_do_not_take_more_than_the_host_has() -> None:
    for host_mb, boxes, memory_mb in ((24_000, 2, 256), (128_000, 16, 256), (16_000, 2, 512), (512_000, 64, 512)):
        at_once = boxes * (IN_FLIGHT + stragglers_for(host_mb, boxes=boxes, memory_mb=memory_mb))
        assert at_once * memory_mb < 0.8 * host_mb
    assert stragglers_for(24_000, boxes=2, memory_mb=256) == STRAGGLERS, (
        "a small machine need not wait for them in turns"
    )
    assert stragglers_for(2_000, boxes=2, memory_mb=256) == 4
