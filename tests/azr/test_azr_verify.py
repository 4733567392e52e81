"""Validation and grading on real boxes."""

from __future__ import annotations

import ast
import tracemalloc

import pytest

from harena.azr.check.executor import Bounds, ProgramExecutor, ProgramJob, ProgramStatus
from harena.azr.check.plain import is_plain, nodes_of
from harena.azr.check.verify import Attempt, Checked, TaskValidation, TaskVerdict, TaskVerifier, check_program
from harena.azr.tasks.kinds import InductionTask, Proposal, SolverAnswer, TaskKind, Triplet
from harena.errors import SpecError


def checked(program: str, *inputs: str, kind: TaskKind = TaskKind.DEDUCTION) -> Proposal:
    return Proposal(kind=kind, program=program, inputs=inputs)


def test_a_valid_proposal_becomes_a_task_with_the_output_that_was_seen(verifier: TaskVerifier) -> None:
    [one] = verifier.validate([checked("def f(a, b):\n    return [a, b] * 2", "1 ,'x'")])
    assert one.task == Triplet(program="def f(a, b):\n    return [a, b] * 2", input="1, 'x'", output="[1, 'x', 1, 'x']")


def test_an_induction_proposal_becomes_pairs(verifier: TaskVerifier) -> None:
    [one] = verifier.validate([checked("def f(x):\n    return x * x", "2", "3", "-4", "0", kind=TaskKind.INDUCTION)])
    assert isinstance(one.task, InductionTask)
    assert one.task.pairs == (("2", "4"), ("3", "9"), ("-4", "16"), ("0", "0"))
    assert one.task.shown == one.task.pairs[:2]
    assert one.task.hidden == one.task.pairs[2:]


def test_a_function_of_another_name_is_renamed(verifier: TaskVerifier) -> None:
    fibonacci = "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)"
    [one] = verifier.validate([checked(fibonacci, "10")])
    assert isinstance(one.task, Triplet)
    assert one.task.program.startswith("def f(n)")
    assert one.task.output == "55"


@pytest.mark.parametrize(
    ("program", "inputs", "verdict"),
    [
        ("def f(x) return x", ("1",), TaskVerdict.SYNTAX),
        ("x = 1", ("1",), TaskVerdict.FUNCTION),
        ("def f(x):\n    return x\ndef g(x):\n    return x", ("1",), TaskVerdict.FUNCTION),
        ("def g(x):\n    f = x\n    return f", ("1",), TaskVerdict.FUNCTION),
        ("import os\ndef f(x):\n    return x", ("1",), TaskVerdict.FORBIDDEN),
        ("def f(x):\n    from os.path import join\n    return x", ("1",), TaskVerdict.FORBIDDEN),
        ("import _io\ndef f(x):\n    return x", ("1",), TaskVerdict.FORBIDDEN),
        ("from __future__ import annotations\ndef f(x):\n    return 1 / 0", ("1",), TaskVerdict.ERROR),
        ("def f(x):\n    return x", ("y",), TaskVerdict.INPUT),
        ("def f(x):\n    return x", ("",), TaskVerdict.INPUT),
        ("def f(x):\n    return x", ("1", "1"), TaskVerdict.INPUT),
        ("def f(x):\n    return x / 0", ("1",), TaskVerdict.ERROR),
        ("def f(x, y):\n    return x", ("1",), TaskVerdict.ERROR),
        ("def f(x):\n    while True: pass", ("1",), TaskVerdict.TIME),
        ("def f(x):\n    return [0] * 10 ** 10", ("1",), TaskVerdict.MEMORY),
        ("def f(x):\n    return 'a' * 1000", ("1",), TaskVerdict.SIZE),
        ("def f(x):\n    return object()", ("1",), TaskVerdict.TYPE),
        ("def f(x):\n    return float('inf')", ("1",), TaskVerdict.TYPE),
        ("def f(x):\n    return frozenset(x)", ("[1]",), TaskVerdict.TYPE),
        ("async def f(x):\n    return x", ("1",), TaskVerdict.TYPE),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_each_way_to_be_no_task_has_its_verdict(
    verifier: TaskVerifier, program: str, inputs: tuple[str, ...], verdict: TaskVerdict
) -> None:
    [one] = verifier.validate([checked(program, *inputs)])
    assert (one.verdict, one.task) == (verdict, None)


def test_grades_of_the_three_kinds(verifier: TaskVerifier) -> None:
    task = Triplet(program="def f(x):\n    return x % 5", input="7", output="2")
    induction = InductionTask(
        program="def f(x):\n    return x + 1", message="", pairs=(("1", "2"), ("5", "6"), ("9", "10"))
    )
    wanted = [
        (task, TaskKind.DEDUCTION, "2", True),
        (task, TaskKind.DEDUCTION, "3", False),
        (task, TaskKind.ABDUCTION, "7", True),
        (task, TaskKind.ABDUCTION, "12", True),
        (task, TaskKind.ABDUCTION, "8", False),
        (task, TaskKind.ABDUCTION, "'x'", False),
        (induction, TaskKind.INDUCTION, "def f(x):\n    return x - -1", True),
        (induction, TaskKind.INDUCTION, "def g(y):\n    return y + 1", True),
        (induction, TaskKind.INDUCTION, "def f(x):\n    return 6 if x == 5 else 0", False),
    ]
    attempts = [Attempt(task=task, answer=SolverAnswer(kind=kind, text=text)) for task, kind, text, _ in wanted]
    assert [grade.right for grade in verifier.grade(attempts)] == [right for *_, right in wanted]


def test_submitted_batches_come_back_in_their_order(verifier: TaskVerifier) -> None:
    futures = [verifier.submit_validate([checked(f"def f(x):\n    return x + {n}", "1")]) for n in range(5)]
    tasks = [future.result(30)[0].task for future in futures]
    assert [task.output for task in tasks if isinstance(task, Triplet)] == ["1", "2", "3", "4", "5"]
    assert verifier.submit_grade([]).result(30) == []


def test_hundreds_of_programs_in_one_call_keep_their_places(verifier: TaskVerifier) -> None:
    programs = [
        checked(f"def f(x):\n    return {'__import__' if n % 50 == 7 else 'str'}(x + {n})", "1") for n in range(300)
    ]
    found = verifier.validate(programs)
    for n, one in enumerate(found):
        assert (
            one.verdict is TaskVerdict.ERROR
            if n % 50 == 7
            else isinstance(one.task, Triplet) and one.task.output == f"'{n + 1}'"
        )


def test_an_executor_needs_bounds_that_a_box_can_keep() -> None:
    for bad in ({"wall_s": 0}, {"cpu_s": 0}, {"memory_mb": 1}, {"max_chars": 0}):
        with pytest.raises(SpecError):
            Bounds(**bad)


def test_a_slow_plain_program_is_given_its_time_alone() -> None:
    slow = "def f(n):\n    t = 0\n    for i in range(n):\n        t += i % 7\n    return t"
    with ProgramExecutor(bounds=Bounds(wall_s=20, cpu_s=0.005)) as executor:
        jobs = [
            ProgramJob(program=slow, calls=("2000000",), plain=True),
            ProgramJob(program=slow, calls=("7",), plain=True),
        ]
        long, short = executor.run(jobs)
    assert long.status is ProgramStatus.OK
    assert short.outputs == ("21",)


PLAIN = (
    "def f(x):\n    return x + 1",
    "import math\ndef f(x):\n    return math.floor(x)",
    "from collections import Counter\ndef f(s):\n    return dict(Counter(s))",
    "def f(l):\n    out = []\n    for i, v in enumerate(l):\n        out.append((i, v))\n    return sorted(out, key=lambda p: -p[0])",
    "def f(s):\n    try:\n        return int(s)\n    except ValueError as error:\n        return str(error)",
    "from typing import List\ndef f(x: List[int]) -> int:\n    return sum(x)",
    "import typing\ndef f(x: typing.Dict[str, typing.List[int]], y: 'int | None' = None) -> typing.Optional[int]:\n    z: typing.Any = x\n    return z",
    "def f(x):\n    def g():\n        yield x\n    return next(g())",
    "def f(x):\n    match x:\n        case [a, *rest]:\n            return rest\n        case _:\n            return a if (a := x) else 0",
)
NOT_PLAIN = (
    "def f(x):\n    return x.__class__",
    "def f(x):\n    return '{0.__class__}'.format(x)",
    "def f(x):\n    return getattr(x, 'real')",
    "def f(x):\n    return eval('1')",
    "if 0:\n    eval = 1\ndef f(x):\n    return eval('1')",
    "def f(x, eval=None):\n    return x",
    "import math\ndef f(x):\n    math.pi = 3\n    return x",
    "import math as m\ndef f(x):\n    return m.pi",
    "import math\ndef f(x):\n    return [math][0]",
    "import math\ndef f(x):\n    return math.__loader__",
    "import re\ndef f(x):\n    return re.enum.sys",
    "from re import enum\ndef f(x):\n    return enum",
    "from math import *\ndef f(x):\n    return sqrt(x)",
    "import functools\ndef f(x):\n    return functools.update_wrapper",
    "import operator\ndef f(x):\n    return operator.attrgetter('__class__')(x)",
    "import string\ndef f(x):\n    return string.Formatter()",
    "import copy\ndef f(x):\n    return copy.copy(x)",
    "import collections.abc\ndef f(x):\n    return x",
    "from . import x\ndef f(x):\n    return x",
    "class A:\n    pass\ndef f(x):\n    return x",
    "def f(x):\n    return type('A', (), {})",
    "def f(x):\n    g = (i for i in x)\n    return g.gi_frame",
    "def f(x):\n    try:\n        x.y\n    except AttributeError as e:\n        return e.obj",
    "def f(x):\n    match x:\n        case object(__class__=c):\n            return c",
    "def f(x):\n    global __builtins__\n    return x",
    "def f(x):\n    x.y = 1\n    return x",
    "def f(x):\n    return open(0)",
    "def f(x):\n    del x.y\n    return x",
    "async def f(x):\n    return x",
    "def f(x):\n    return unknown(x)",
    "from typing import Sequence\ndef f(x):\n    return isinstance(x, Sequence)",
    "from typing import Sequence\ndef f(x: Sequence.register(int)):\n    return x",
    "from typing import Sequence\ndef f(x: (s := Sequence)):\n    return x",
    "import typing\ndef f(x):\n    return typing.List[x]",
    "def f(x):\n    def g():\n        try:\n            yield x\n        finally:\n            x.clear()\n    return next(g())",
)


@pytest.mark.parametrize("program", PLAIN)
def test_ordinary_programs_are_plain(program: str) -> None:
    assert is_plain(nodes_of(ast.parse(program)))


@pytest.mark.parametrize("program", NOT_PLAIN)
def test_what_could_reach_the_interpreter_is_not_plain(program: str) -> None:
    assert not is_plain(nodes_of(ast.parse(program)))


def test_check_program_says_more_than_yes_or_no() -> None:
    assert check_program("def g(x):\n    return x") == Checked(
        program="def f(x):\n    return x", plain=True, hashes=False
    )
    found = check_program("import socket\ndef f(x):\n    return x")
    assert isinstance(found, TaskValidation)
    assert found.detail == "imports socket"


def test_an_impatient_executor_takes_slow_for_too_slow() -> None:
    loops = (
        "def f(x):\n    while True:\n        x += 1",
        "def f(x):\n    while True:\n        try:\n            x += 1\n        except BaseException:\n            pass",
        "def f(x):\n    return 10 ** 10 ** 8 % 7",
    )
    jobs = [
        ProgramJob(program=program, calls=("1",), plain=True)
        for loop in loops
        for program in (loop, "def f(x):\n    return x")
    ]
    with ProgramExecutor(bounds=Bounds(wall_s=60, cpu_s=0.02, patient=False)) as executor:
        found = executor.run(jobs)
    assert [one.status for one in found] == [ProgramStatus.TIME, ProgramStatus.OK] * 3


def test_hash_seeds_are_what_they_are_said_to_be() -> None:
    program = "def f(x):\n    return hash(x) % 1000003"
    jobs = [ProgramJob(program=program, calls=("'text'",), plain=plain) for plain in (True, False)]
    with ProgramExecutor() as executor:
        one, same, other = executor.run_with_seeds(jobs, (1, 1, 2))
        assert executor.run_with_seeds([], (1, 2)) == []
    assert {outcome.status for outcome in (*one, *same, *other)} == {ProgramStatus.OK}
    assert one == same != other
    assert one[0] == one[1]


@pytest.mark.parametrize("program", ["def f(x):\n    return id(x)", "def f(x):\n    g = id\n    return [g(x)]"])
def test_addresses_are_no_tasks_also_where_they_never_change(program: str) -> None:
    found = check_program(program)
    assert isinstance(found, TaskValidation)
    assert found.verdict is TaskVerdict.NONDETERMINISTIC


@pytest.mark.parametrize("program", ["def f(id):\n    return id + 1", "def f(x):\n    id = x + 1\n    return id"])
def test_id_is_a_name_like_any_other(program: str, verifier: TaskVerifier) -> None:
    [one] = verifier.validate([checked(program, "3")])
    assert isinstance(one.task, Triplet)
    assert one.task.output == "4"


def test_a_program_that_uses_sets_well_is_a_task(verifier: TaskVerifier) -> None:
    programs = (
        "def f(l):\n    return len(set(l))",
        "def f(l):\n    return sorted({*l, 'z'})",
        "def f(l):\n    return {c.upper() for c in l}",
    )
    found = verifier.validate([checked(program, "['b', 'a', 'b']") for program in programs])
    assert [one.task.output for one in found if isinstance(one.task, Triplet)] == ["2", "['a', 'b', 'z']", "{'A', 'B'}"]


def test_the_order_of_a_set_that_is_given_is_noticed(verifier: TaskVerifier) -> None:
    [one] = verifier.validate([checked("def f(s):\n    return [*s][0]", "{'a', 'b'}")])
    assert one.verdict is TaskVerdict.NONDETERMINISTIC


def test_what_is_too_long_to_be_a_program_is_not_kept_in_memory() -> None:
    tracemalloc.start()
    try:
        for number in range(50):
            assert isinstance(check_program(str(number) * 200_000), TaskValidation)
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()
