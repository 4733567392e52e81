"""What programs and answers try, against real boxes: nothing of it reaches another program, the trainer, or a reward."""

from __future__ import annotations

import builtins
import math
import time

import pytest

from harena.azr.check.executor import Bounds, ProgramExecutor, ProgramJob
from harena.azr.check.verify import Attempt, Grade, TaskValidation, TaskVerdict, TaskVerifier, check_program
from harena.azr.tasks.kinds import InductionTask, Proposal, SolverAnswer, TaskKind, Triplet
from support import busy

HONEST = "def f(x):\n    return len([x]) + x"
ROOT = "import math\ndef f(x):\n    return math.sqrt(x)"
TASK = Triplet(program=HONEST, input="3", output="4")
INDUCTION = InductionTask(
    program="def f(x):\n    return x * 3 + 1",
    message="",
    pairs=(("1", "4"), ("2", "7"), ("5", "16"), ("10", "31")),
)


def proposal(program: str, given: str = "3") -> Proposal:
    return Proposal(kind=TaskKind.DEDUCTION, program=program, inputs=(given,))


def validate(verifier: TaskVerifier, *programs: str) -> list[TaskValidation]:
    return verifier.validate([proposal(program) for program in programs])


def solve(verifier: TaskVerifier, kind: TaskKind, *answers: str) -> list[Grade]:
    task = INDUCTION if kind is TaskKind.INDUCTION else TASK
    return verifier.grade([Attempt(task=task, answer=SolverAnswer(kind=kind, text=text)) for text in answers])


# ---- what broke in earlier executors ----


def test_replacing_builtins_len_changes_nothing_for_the_next_program_or_for_us(verifier: TaskVerifier) -> None:
    before = len
    hostile = "import builtins\ndef f(x):\n    builtins.len = lambda _: 99\n    return 1"
    hidden = "def f(x):\n    __builtins__['len'] = lambda _: 99\n    return 1"
    sneaky = "def f(x):\n    f.__globals__['__builtins__']['len'] = lambda _: 99\n    return len([1])"
    found = validate(verifier, HONEST, hostile, hidden, sneaky, HONEST)
    assert [one.verdict for one in (found[0], found[1], found[4])] == [
        TaskVerdict.OK,
        TaskVerdict.FORBIDDEN,
        TaskVerdict.OK,
    ]
    assert found[0].task == found[4].task == TASK
    assert builtins.len is before


def test_a_patched_math_sqrt_does_not_leak(verifier: TaskVerifier) -> None:
    patch = "import math\ndef f(x):\n    math.sqrt = lambda _: 42.0\n    return 1"
    found = validate(verifier, ROOT, patch, ROOT, patch, ROOT)
    outputs = [one.task.output for one in found[::2] if isinstance(one.task, Triplet)]
    assert outputs == [repr(math.sqrt(3))] * 3
    assert found[1].ok, "it may do that to itself"


def test_an_answer_is_never_evaluated_in_our_process(verifier: TaskVerifier, tmp_path: object) -> None:
    target = f"{tmp_path}/owned"
    code = f"__import__('os').system('touch {target}')"
    for kind in TaskKind:
        grades = solve(verifier, kind, code, f"[{code}]", f"{code})")
        assert not any(grade.right for grade in grades)
    assert not __import__("os").path.exists(target)


@pytest.mark.parametrize(
    "answer",
    [
        "1) or (True",
        "3) == f(3",
        "3)) or ((4",
        "*[3]",
        "x=3",
        "**{'x': 3}",
        "3 if True else 3",
        "3\n)\n+(4",
        "f(3)",
        "",
        "(lambda: 3)()",
        "[3 for _ in '1'][0]",
        "3 and 3",
        "1+2",
        "4 == 4",
    ],
)
def test_an_abduction_answer_that_is_code_earns_nothing(verifier: TaskVerifier, answer: str) -> None:
    [grade] = solve(verifier, TaskKind.ABDUCTION, answer)
    assert not grade.right


def test_long_outputs_are_refused_not_cut_short(verifier: TaskVerifier) -> None:
    for program in ("def f(x):\n    return 'a' * 600", "def f(x):\n    return list(range(1000))"):
        [one] = validate(verifier, program)
        assert one.verdict is TaskVerdict.SIZE
        assert one.task is None


@pytest.mark.parametrize(
    "program",
    [
        "def f(x):\n    return list({'a', 'b', 'c', 'd', 'e', 'f', 'g'})",
        "def f(x):\n    return id(x)",
        "def f(x):\n    return str(f)",
        "def f(x):\n    return hash('text')",
        "def f(x):\n    return [*{'k%d' % i: 0 for i in {'q', 'w', 'e', 'r', 't', 'y'} and {str(j) for j in range(9)} if False} , *{str(j) for j in range(9)}]",
        "def f(x):\n    return ''.join({'one', 'two', 'three', 'four', 'five', 'six'})",
        "import random\ndef f(x):\n    return random.random()",
        "def f(x):\n    return __import__('time').time_ns()",
        "def f(x):\n    return __import__('os').urandom(4)",
        "def f(x):\n    return list({'a', 'b'})[0]",
        "def f(x):\n    return set('ab').pop()",
        "def f(x):\n    return next(iter({'a': 1, 'b': 2}.keys() - {'c'}))",
        "def f(x):\n    return __import__('operator').itemgetter(0)([*vars(__import__('builtins'))['set'](['q', 'r'])])",
        "def f(x):\n    return max({'a': 1, 'b': 1}.keys() | {'c', 'd', 'e'}, key=lambda k: 0)",
        "def f(x):\n    return 'text'.__hash__() % 2",
        'import ast\ndef f(x):\n    return [*ast.literal_eval(chr(123) + \'"a", "b"}\')][0]',
        "def f(x):\n    return [*[t for t in ().__class__.__base__.__subclasses__() if t.__name__ == 's' 'et'][0](['q', 'r'])]",
        "from typing import Set\ndef f(x):\n    return [*Set.mro()[0](['q', 'r'])]",
        "import _random\ndef f(x):\n    return _random.Random().random()",
    ],
)
def test_what_differs_from_run_to_run_is_no_task(verifier: TaskVerifier, program: str) -> None:
    [one] = validate(verifier, program)
    assert one.verdict in (TaskVerdict.NONDETERMINISTIC, TaskVerdict.FORBIDDEN, TaskVerdict.ERROR)


def test_a_set_is_a_value_and_its_order_is_not(verifier: TaskVerifier) -> None:
    [one] = validate(verifier, "def f(x):\n    return {'a', 'b', 'c', 'd', 'e'}")
    assert isinstance(one.task, Triplet)
    assert one.task.output == "{'a', 'b', 'c', 'd', 'e'}"


def test_children_do_not_outlive_their_program(verifier: TaskVerifier) -> None:
    program = (
        "def f(x):\n    os = __import__('os')\n    if os.fork() == 0:\n        os.setsid()\n"
        "        while True:\n            pass\n    return x"
    )
    started = time.perf_counter()
    [one] = validate(verifier, program)
    # Whether the child takes the time that the program has differs from run to run, and is no matter here.
    assert one.ok or one.verdict in (TaskVerdict.TIME, TaskVerdict.ERROR, TaskVerdict.NONDETERMINISTIC)
    assert all(found.ok for found in validate(verifier, *[HONEST] * 20))
    assert time.perf_counter() - started < 60


@pytest.mark.serial
def test_many_infinite_loops_cost_about_one_timeout(verifier: TaskVerifier) -> None:
    loops = [
        "def f(x):\n    while True:\n        x += 1",
        "def f(x):\n    while True:\n        try:\n            x += 1\n        except:\n            pass",
        "def f(x):\n    return sum(i for i in iter(int, 1))",
    ]
    programs = [HONEST] * 60
    for number in range(26):
        programs[2 * number] = loops[number % 3]
    with busy.Span() as span:
        found = validate(verifier, *programs)
    assert sum(one.verdict is TaskVerdict.TIME for one in found) == 26
    assert sum(one.ok for one in found) == 34
    one_by_one_s = 26 * verifier.settings.bounds.wall_s
    assert span.took_s < span.limit(0.75 * one_by_one_s), "one after the other they would take all of it"


# ---- what else they might try ----

STEALING = {
    "frames": "def f(x):\n    import sys\n    return sys._getframe(1).f_locals",
    "frames without an import": "def f(x):\n    g = (i for i in [1])\n    return str(g.gi_frame.f_back)",
    "the harness": "def f(x):\n    return [v for v in __import__('sys').modules['__main__'].__dict__.values()]",
    "garbage": "def f(x):\n    return [o for o in __import__('gc').get_objects() if type(o) is str and 'hidden' in o]",
    "standard input": "def f(x):\n    return open(0).read()",
    "always equal": "class A:\n    def __eq__(self, o):\n        return True\ndef f(x):\n    return A()",
    "an int that is always equal": "class A(int):\n    def __eq__(self, o):\n        return True\ndef f(x):\n    return A(3)",
    "a text that is not one": "class A(str):\n    def __repr__(self):\n        return '16'\ndef f(x):\n    return A('')",
    "a lying repr": "class A:\n    def __repr__(self):\n        return '16'\ndef f(x):\n    return A()",
    "a generator": "def f(x):\n    yield 16",
    "a lambda": "def f(x):\n    return lambda: 16",
    "nothing": "def f(x):\n    pass",
    "printing": 'def f(x):\n    print(\'["ok", ["16", "31"]]\')',
    "printing and leaving": "def f(x):\n    import builtins\n    print('16')\n    raise SystemExit(0)",
    "leaving": "def f(x):\n    __import__('os')._exit(0)",
    "being killed": "def f(x):\n    __import__('os').kill(__import__('os').getpid(), 9)",
    "at exit": "def f(x):\n    __import__('atexit').register(print, 16)\n    raise KeyboardInterrupt",
    "another json": "def f(x):\n    __import__('json').dumps = lambda *a: '[\"ok\", [16, 31]]'\n    return None",
    "a forged report": (
        'def f(x):\n    o = __import__(\'os\')\n    s = b\'["ok", ["16", "16"]]\'\n    for fd in range(1, 20):\n'
        "        try:\n            o.write(fd, len(s).to_bytes(4, 'little') + s)\n        except OSError:\n            pass\n"
        "    o._exit(0)"
    ),
    "another print": "def f(x):\n    __builtins__['print'] = None\n    return None",
    "recursion": "def f(x):\n    return f(x)",
    "deep values": "def f(x):\n    v = []\n    for _ in range(100000):\n        v = [v]\n    return v",
    "a value in itself": "def f(x):\n    v = []\n    v.append(v)\n    return v",
    "huge ints": "def f(x):\n    return 10 ** 5000",
    "a long way to an int": "def f(x):\n    return 10 ** 10 ** 9",
    "gigantic texts": "def f(x):\n    return 'a' * 10 ** 12",
    "gigantic lists": "def f(x):\n    v = [0]\n    while True:\n        v += v",
    "not a number": "def f(x):\n    return float('nan')",
    "infinity": "def f(x):\n    return 1e999",
    "minus infinity": "def f(x):\n    return -1e999",
    "a set of lists": "def f(x):\n    return {[x]}",
    "an exception as a value": "def f(x):\n    return ValueError(16)",
    "a raised answer": "def f(x):\n    raise ValueError(16)",
    "floats": "def f(x):\n    return float(x * 3 + 1)",
    "booleans": "def f(x):\n    return True",
    "forking": "def f(x):\n    while True:\n        __import__('os').fork()",
    "threads": "def f(x):\n    t = __import__('threading')\n    t.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\n    return 16",
    "the source of a task": "def f(x):\n    return __import__('inspect').getsource(f)",
    "the disk": "def f(x):\n    return [open('/proc/%d/environ' % p).read() for p in range(1, 9)]",
    "two functions": "def g(x):\n    return x\ndef f(x):\n    return 16",
    "no function": "f = 16",
    "a class as f": "class f:\n    pass",
    "not Python": "def f(x) return 16",
    "a NUL": "def f(x):\n    return 16\0",
    "deep brackets": "def f(x):\n    return " + "(" * 3000 + ")" * 3000,
    "many signs": "def f(x):\n    return " + "-" * 5000 + "1",
    "long": "def f(x):\n    return 1\n" + "#" * 10_000,
    "surrogates": "def f(x):\n    return '\ud800'",
}


def test_an_induction_answer_that_does_not_solve_earns_nothing(verifier: TaskVerifier) -> None:
    grades = solve(verifier, TaskKind.INDUCTION, *STEALING.values(), INDUCTION.program)
    earned = [name for name, grade in zip(STEALING, grades, strict=False) if grade.right]
    assert earned == []
    assert grades[-1].right, "and the honest answer among them still does"


def test_the_same_as_proposals_harm_nobody(verifier: TaskVerifier) -> None:
    programs = [program for one in STEALING.values() for program in (one, HONEST)]
    found = validate(verifier, *programs)
    assert all(one.task == TASK for one in found[1::2])


DECEIVING = (
    "4.0",
    "True",
    "'4'",
    "(4,)",
    "[4]",
    "{4}",
    "4j",
    "04",
    "0x4 or 4",
    "float('nan')",
    "1e999",
    "-1e999",
    "nan",
    "...",
    "__import__('os')",
    "4 #\n",
    "[" * 500,
    "-" * 5000 + "4",
    "9" * 5000,
    "'" + "a" * 20000 + "'",
    "",
)


def test_a_deduction_answer_is_right_by_type_and_value_only(verifier: TaskVerifier) -> None:
    grades = solve(verifier, TaskKind.DEDUCTION, *DECEIVING, "4", " 4 ", "+4", "0x4")
    assert [text for text, grade in zip(DECEIVING, grades, strict=False) if grade.right] == ["4 #\n"]
    assert all(grade.right for grade in grades[-4:])


def test_a_program_that_changes_its_input_changes_only_its_own(verifier: TaskVerifier) -> None:
    task = InductionTask(
        program="", message="", pairs=(("[0]", "0"), ("[1, 2]", "2"), ("[1, 2, 3]", "3"), ("[9]", "1"))
    )
    answer = SolverAnswer(
        kind=TaskKind.INDUCTION, text="def f(v):\n    n = len(v)\n    v.append(0)\n    v *= 3\n    return n"
    )
    [grade] = verifier.grade([Attempt(task=task, answer=answer)])
    assert grade.right


def test_state_between_calls_is_noticed(verifier: TaskVerifier) -> None:
    counting = "n = [0]\ndef f(x):\n    n[0] += 1\n    return n[0]"
    default = "def f(x, seen=[]):\n    seen.append(x)\n    return len(seen)"
    once = "n = [0]\ndef f(x):\n    n[0] += 1\n    return n[0] > 1"
    found = validate(verifier, counting, default, once)
    assert {one.verdict for one in found} == {TaskVerdict.NONDETERMINISTIC}


def test_a_bomb_that_waits_for_many_calls_does_not_go_off(verifier: TaskVerifier) -> None:
    bomb = "n = [0]\ndef f(x):\n    n[0] += 1\n    return x if n[0] < 3 else 7"
    [one] = verifier.validate([proposal(bomb, "7")])
    assert one.ok
    wrong = [Attempt(task=one.task, answer=SolverAnswer(kind=TaskKind.ABDUCTION, text=str(n))) for n in range(100, 140)]
    assert not any(grade.right for grade in verifier.grade(wrong)), "every attempt is the first call of a fresh program"


def test_a_program_cannot_be_told_by_its_neighbours(verifier: TaskVerifier) -> None:
    leave = "def f(x):\n    try:\n        open('/tmp/gold', 'w').write('x')\n    except OSError:\n        pass\n    return 1"
    look = "def f(x):\n    try:\n        return open('/tmp/gold').read()\n    except OSError:\n        return 'nothing'"
    found = validate(verifier, *[leave, look] * 5)
    assert {one.task.output for one in found[1::2] if isinstance(one.task, Triplet)} == {"'nothing'"}


def test_without_sharing_even_programs_taken_for_plain_have_a_process_of_their_own() -> None:
    patch = "def f(x):\n    __builtins__['len'] = lambda _: 99\n    return 1"
    jobs = [ProgramJob(program=program, calls=("3",), plain=True) for program in (HONEST, patch, HONEST, patch, HONEST)]
    with ProgramExecutor(bounds=Bounds(share=False)) as executor:
        outcomes = executor.run(jobs)
    assert [outcome.outputs for outcome in outcomes] == [("4",), ("1",), ("4",), ("1",), ("4",)]


# ---- what is the same every time only because it is asked in the same way ----


@pytest.mark.parametrize(
    "program",
    [
        "def f(x, seen={}):\n    return seen.setdefault(x, len(seen))",
        "n = [0]\ndef f(x):\n    n[0] += 1\n    return min(n[0], 9 - n[0])",
        "first = []\ndef f(x):\n    first.append(x)\n    return first[0]",
    ],
    ids=["the order of first calls", "there and back", "the first of all calls"],
)
def test_what_depends_on_the_order_of_the_calls_is_no_task(verifier: TaskVerifier, program: str) -> None:
    wanted = Proposal(kind=TaskKind.INDUCTION, program=program, inputs=("1", "2", "3", "4"))
    [one] = verifier.validate([wanted])
    assert one.verdict is TaskVerdict.NONDETERMINISTIC


def test_how_deep_a_program_may_recurse_is_no_output(verifier: TaskVerifier) -> None:
    depth = "def f(x):\n    def g(n):\n        try:\n            return g(n + 1)\n        except RecursionError:\n            return n\n    return g(0)"
    alone = "class A:\n    pass\n" + depth
    found = validate(verifier, depth, alone, "def f(x):\n    return x if x > 300 else f(x + 1)")
    assert [one.verdict for one in found] == [TaskVerdict.ERROR, TaskVerdict.ERROR, TaskVerdict.OK]


def test_a_coin_that_is_thrown_for_other_inputs_is_seldom_solved_by_trying(verifier: TaskVerifier) -> None:
    [one] = validate(verifier, "def f(x):\n    return x == 3 or (__import__('os').urandom(1) < b'\\x80')")
    assert isinstance(one.task, Triplet)
    tries = [Attempt(task=one.task, answer=SolverAnswer(kind=TaskKind.ABDUCTION, text=str(n))) for n in range(3, 203)]
    honest, *lucky = verifier.grade(tries)
    assert honest.right
    assert sum(grade.right for grade in lucky) < 60, "of 199: one run in two is right, three in a row are"


def test_neither_is_the_order_of_a_set(verifier: TaskVerifier) -> None:
    """Each program orders another set, as its interpreter's hash seed has it."""
    programs = (
        f"def f(x):\n    return x == 3 or list({{'a{n}', 'b{n}', 'c{n}', 'd{n}'}})[0] == 'a{n}'" for n in range(300)
    )
    tasks = [one.task for one in validate(verifier, *programs) if isinstance(one.task, Triplet)]
    assert len(tasks) == 300
    grades = verifier.grade(
        [Attempt(task=task, answer=SolverAnswer(kind=TaskKind.ABDUCTION, text="4")) for task in tasks]
    )
    assert sum(grade.right for grade in grades) < 45, (
        "of 300: one in four has its element first, one in 16 on both sides"
    )


def test_inputs_that_differ_in_the_order_of_a_dict_are_the_same_input(verifier: TaskVerifier) -> None:
    inputs = ("{'a': 1, 'b': 2}", "{'c': 1}", "{'b': 2, 'a': 1}", "{'d': 1}")
    [one] = verifier.validate(
        [Proposal(kind=TaskKind.INDUCTION, program="def f(d):\n    return len(d)", inputs=inputs)]
    )
    assert one.verdict is TaskVerdict.INPUT


def test_a_task_that_hides_nothing_is_solved_by_nobody(verifier: TaskVerifier) -> None:
    nothing = InductionTask(program="def f(x):\n    return x", message="", pairs=())
    [grade] = verifier.grade(
        [Attempt(task=nothing, answer=SolverAnswer(kind=TaskKind.INDUCTION, text="def f(x):\n    return 1"))]
    )
    assert not grade.right


@pytest.mark.parametrize(
    "program",
    [
        "def f(x):\n    g = lambda id: 0\n    return id(None) % 7",
        "def f(x):\n    [0 for id in ()]\n    return id(x)",
        "def f(x):\n    return ｉｄ(x)",
    ],
)
def test_an_address_is_asked_for_also_beside_a_name_of_ones_own(program: str) -> None:
    found = check_program(program)
    assert isinstance(found, TaskValidation)
    assert found.verdict is TaskVerdict.NONDETERMINISTIC
