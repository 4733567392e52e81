"""What reached a limit does not count, whatever its program caught; what depends on the moment or on memory is no task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harena.azr.check.executor import Bounds, ProgramExecutor, ProgramJob, ProgramStatus
from harena.azr.check.verify import Attempt, TaskVerdict, TaskVerifier, check_program
from harena.azr.tasks.kinds import InductionTask, Proposal, SolverAnswer, TaskKind, Triplet

SWALLOWS = {
    "bare except": "    try:\n        while x != 0:\n            x -= 2\n        return 0\n    except:\n        return -1",
    "BaseException": "    try:\n        while x != 0:\n            x -= 2\n    except BaseException:\n        return -1",
    "return in finally": "    try:\n        while x != 0:\n            x -= 2\n    finally:\n        return -1",
    "break in finally": "    while True:\n        try:\n            while x != 0:\n                x -= 2\n        finally:\n            break\n    return -1",
    "in a generator": "    def g(v):\n        while v != 0:\n            v -= 2\n        return v\n    try:\n        return sum(g(v) for v in [x])\n    except:\n        return -1",
    "in a sort's key": "    def key(v):\n        while v != 0:\n            v -= 2\n        return v\n    try:\n        return len(sorted([x], key=key)) - 2\n    except:\n        return -1",
    "except star": "    r = 0\n    try:\n        while x != 0:\n            x -= 2\n    except* BaseException:\n        r = -1\n    return r",
    "twice": "    for _ in range(2):\n        try:\n            while x != 0:\n                x -= 2\n        except:\n            pass\n    return -1",
    "one long call": "    try:\n        v = 7 ** (400000 * x)\n    except:\n        pass\n    return -1",
}


def program(body: str) -> str:
    return f"def f(x):\n{body}"


@pytest.fixture(scope="module")
def impatient() -> Iterator[ProgramExecutor]:
    with ProgramExecutor(bounds=Bounds(wall_s=60, cpu_s=0.02, patient=False)) as executor:
        yield executor


@pytest.mark.parametrize("name", SWALLOWS)
def test_a_swallowed_timeout_is_a_timeout(impatient: ProgramExecutor, name: str) -> None:
    checked = check_program(program(SWALLOWS[name]))
    assert getattr(checked, "plain", False), "the case is for programs that share a process"
    given = "3" if name == "one long call" else "1"
    jobs = [
        ProgramJob(program=program(SWALLOWS[name]), calls=(given,), plain=True),
        ProgramJob(program="def f(x):\n    return x", calls=("1",), plain=True),
    ]
    found = impatient.run_twice(jobs)
    assert [outcome.status for outcome in found[0]] == [ProgramStatus.TIME] * 2
    assert [outcome.status for outcome in found[1]] == [ProgramStatus.OK] * 2, "its neighbour is not to blame"


def test_an_answer_that_never_ends_earns_nothing(verifier: TaskVerifier) -> None:
    task = Triplet(program=program(SWALLOWS["bare except"]), input="'text'", output="-1")
    answers = [
        Attempt(task=task, answer=SolverAnswer(kind=TaskKind.ABDUCTION, text=text)) for text in ("1", "-2", "'text'")
    ]
    assert [grade.verdict for grade in verifier.grade(answers)] == [TaskVerdict.TIME, TaskVerdict.TIME, TaskVerdict.OK]


def test_a_program_that_hangs_once_is_no_task(verifier: TaskVerifier) -> None:
    once = "def f(x, seen=[]):\n    try:\n        while not seen:\n            pass\n    except:\n        seen.append(1)\n    return 5"
    [found] = verifier.validate([Proposal(kind=TaskKind.DEDUCTION, program=once, inputs=("1",))])
    assert found.verdict is TaskVerdict.TIME


def test_a_swallowed_timeout_is_no_induction_answer(verifier: TaskVerifier) -> None:
    task = InductionTask(program="", message="", pairs=(("1", "-1"), ("3", "-1"), ("5", "-1"), ("7", "-1")))
    answer = SolverAnswer(kind=TaskKind.INDUCTION, text=program(SWALLOWS["return in finally"]))
    [grade] = verifier.grade([Attempt(task=task, answer=answer)])
    assert grade.verdict is TaskVerdict.TIME


@pytest.mark.parametrize("prefix", ["", "class A:\n    pass\n"], ids=["shared", "alone"])
@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("    try:\n        return len([0] * 10 ** 11)\n    except Exception:\n        return -1", TaskVerdict.MEMORY),
        ("    try:\n        return len([0] * 10 ** 11)\n    finally:\n        return -1", TaskVerdict.MEMORY),
        (
            "    r = 0\n    try:\n        [0] * 10 ** 11\n    except* Exception:\n        r = -1\n    return r",
            TaskVerdict.MEMORY,
        ),
        (
            "    def g(n):\n        return g(n + 1)\n    try:\n        return g(0)\n    except Exception:\n        return -1",
            TaskVerdict.ERROR,
        ),
        (
            "    def g(n):\n        try:\n            return g(n + 1)\n        except:\n            return 7\n    return g(0)",
            TaskVerdict.ERROR,
        ),
        ("    try:\n        return [][x]\n    except IndexError:\n        return -1", TaskVerdict.OK),
        (
            "    try:\n        return x // 0\n    except Exception as e:\n        return str(e)\n    finally:\n        x = 2",
            TaskVerdict.OK,
        ),
    ],
)
def test_other_limits_that_a_program_caught_count_too(
    verifier: TaskVerifier, prefix: str, body: str, verdict: TaskVerdict
) -> None:
    [found] = verifier.validate([Proposal(kind=TaskKind.DEDUCTION, program=prefix + program(body), inputs=("1",))])
    assert found.verdict is verdict


PAIRS = (("1", "0"), ("2", "0"), ("3", "3"), ("4", "1"), ("5", "4"), ("6", "1"))
"""Hidden are the last three."""


@pytest.mark.parametrize(
    "answer",
    [
        "def f(x, it=iter([1, 4, 1])):\n    return next(it)",
        "def f(x, it=iter([1, 4, 1] * 9)):\n    return next(it)",
        "seen = []\ndef f(x):\n    seen.append(x)\n    return [1, 4, 1][(len(seen) - 1) % 3]",
        "import json\ndef f(x):\n    json.n = getattr(json, 'n', -1) + 1\n    return [1, 4, 1][json.n % 3]",
        "import math\ndef f(x):\n    math.n = vars(math).get('n', -1) + 1\n    return [1, 4, 1, 1, 4, 1][math.n]",
    ],
    ids=["an iterator", "a long iterator", "a list", "a module", "a module, there and back"],
)
def test_an_induction_answer_that_counts_its_calls_earns_nothing(verifier: TaskVerifier, answer: str) -> None:
    task = InductionTask(program="", message="", pairs=PAIRS)
    assert [out for _, out in task.hidden] == ["1", "4", "1"]
    [grade] = verifier.grade([Attempt(task=task, answer=SolverAnswer(kind=TaskKind.INDUCTION, text=answer))])
    assert not grade.right


@pytest.mark.parametrize("head", ["", "class A:\n    pass\n"], ids=["plain", "alone"])
def test_an_answer_that_computes_is_right_however_often_it_is_asked(verifier: TaskVerifier, head: str) -> None:
    task = InductionTask(program="", message="", pairs=PAIRS)
    answer = (
        head
        + "cache = {}\ndef f(x):\n    if x not in cache:\n        cache[x] = {4: 1, 5: 4, 6: 1}.get(x)\n    return cache[x]"
    )
    [grade] = verifier.grade([Attempt(task=task, answer=SolverAnswer(kind=TaskKind.INDUCTION, text=answer))])
    assert grade.right, grade


LOOKS_AROUND = {
    "the year": "import email.utils\ndef f(x):\n    return email.utils.localtime().year",
    "the date": "import email.utils\ndef f(x):\n    return email.utils.formatdate()[:16]",
    "the day by an attribute": "import email.utils as e\ndef f(x):\n    return e.time.strftime('%a %b')",
    "a coarse clock": "import email.utils as e\ndef f(x):\n    return int(e.time.time() // 86400)",
    "hours since the start": "import email.utils as e\ndef f(x):\n    return int(e.time.monotonic() // 3600)",
    "the pid": "import email.utils as e\ndef f(x):\n    return e.os.getpid()",
    "the pid's parity": "import email.utils as e\ndef f(x):\n    return e.os.getpid() % 2",
    "the parent": "import email.utils as e\ndef f(x):\n    return e.os.getppid()",
    "the host": "import email.utils as e\ndef f(x):\n    return e.os.uname().nodename",
    "the environment": "import email.utils as e\ndef f(x):\n    return sorted(e.os.environ)",
    "the time zone": "import email.utils as e\ndef f(x):\n    return e.time.timezone",
    "the folder": "import email.utils as e\ndef f(x):\n    return e.os.getcwd()",
    "the age of a folder": "import email.utils as e\ndef f(x):\n    return int(e.os.stat('.').st_mtime // 86400)",
    "processes": "import email.utils as e\ndef f(x):\n    return len([n for n in e.os.listdir('/proc') if n.isdigit()])",
    "processor time": "import email.utils as e\ndef f(x):\n    return int(e.os.times().user)",
    "cores": "import email.utils as e\ndef f(x):\n    return e.os.cpu_count()",
}


def test_what_a_program_sees_around_it_is_no_output(verifier: TaskVerifier) -> None:
    found = verifier.validate(
        [Proposal(kind=TaskKind.DEDUCTION, program=one, inputs=("1",)) for one in LOOKS_AROUND.values()]
    )
    verdicts = dict(zip(LOOKS_AROUND, [one.verdict for one in found], strict=True))
    assert verdicts == dict.fromkeys(LOOKS_AROUND, TaskVerdict.NONDETERMINISTIC)


def test_a_program_with_ordinary_imports_is_still_a_task(verifier: TaskVerifier) -> None:
    programs = [
        "import email.utils\ndef f(x):\n    return email.utils.formatdate(86400.0)",
        "import email.utils\ndef f(x):\n    return email.utils.parsedate_to_datetime('Mon, 20 Nov 1995 19:12:08 -0500').year",
        "import statistics\nclass A:\n    pass\ndef f(x):\n    return statistics.mean([1, 2, 3])",
        "import json, textwrap\ndef f(x):\n    return json.dumps(textwrap.wrap('a b c', 3))",
    ]
    found = verifier.validate([Proposal(kind=TaskKind.DEDUCTION, program=one, inputs=("1",)) for one in programs])
    assert [one.verdict for one in found] == [TaskVerdict.OK] * len(programs), found
