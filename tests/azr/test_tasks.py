from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harena.azr.tasks import kinds as tasks
from harena.azr.tasks import literals
from harena.azr.tasks.kinds import InductionTask, TaskKind
from harena.azr.tasks.literals import LiteralError
from harena.azr.tasks.task_kinds import TASK_KINDS, kinds_of

SAME = (
    ("def f(x):\n    return x + 1", "def f(value):\n  return value+1  # adds"),
    ("def f(x):\n    return x", 'def f(x: int) -> int:\n    """Text."""\n    return x'),
    ("def f(x):\n    y = x\n    return y", "def g(a):\n\n    b: int = a\n\n    return b"),
    ("def f(l):\n    return [i for i in l]", "def f(items):\n    return [one for one in items]"),
    (
        "def f(x):\n    try:\n        return x\n    except ValueError as e:\n        return e",
        "def f(y):\n    try:\n        return y\n    except ValueError as z:\n        return z",
    ),
    ("def f(x):\n    return x", "def f(x):\n    pass\n    'new'\n    0\n    return x\n    return x + 1\n    print(x)"),
    ("def f(x):\n    return x", "'new'\n...\ndef f(x):\n    return x\n1"),
    (
        "def f(x):\n    while x:\n        break",
        "def f(x):\n    while x:\n        break\n        print(x)\n    else:\n        pass",
    ),
    (
        "def f(x):\n    def g(a, b=1):\n        return a - b\n    return g(x, b=2)",
        "def f(x):\n    def h(c, d=1):\n        return c - d\n    return h(x, d=2)",
    ),
    ("import math as m\ndef f(x):\n    return m.pi", "import math as q\ndef f(x):\n    return q.pi"),
    ("import math as math\ndef f(x):\n    return math.pi", "import math\ndef f(x):\n    return math.pi"),
    (
        "def f(x):\n    match x:\n        case [a, *b]:\n            return a, b\n        case {'k': c, **d}:\n            return c, d",
        "def f(x):\n    match x:\n        case [p, *q]:\n            return p, q\n        case {'k': r, **s}:\n            return r, s",
    ),
)
DIFFERENT = (
    ("def f(x):\n    return x + 1", "def f(x):\n    return x + 2"),
    ("def f(x, y):\n    return x - y", "def f(x, y):\n    return y - x"),
    ("def f(x):\n    return len(x)", "def f(x):\n    return sum(x)"),
    ("def f(x):\n    return x.upper()", "def f(x):\n    return x.lower()"),
    ("def f(x):\n    return x", "def f(x):\n    return x\n    yield x"),
    ("y = 1\ndef f(x):\n    return y", "y = 1\ndef f(x):\n    return y\n    y = 2"),
    ("def f(x):\n    return dict(a=x)", "def f(x):\n    return dict(b=x)"),
    ("def f(x):\n    x\n    return 1", "def f(x):\n    return 1"),
    ("def f(x):\n    for i in x:\n        continue\n    return 1", "def f(x):\n    return 1"),
)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_names_comments_and_layout_do_not_matter(one: str, other: str) -> None:
    assert tasks.normalised(one) == tasks.normalised(other)
    assert tasks.program_digest(one) == tasks.program_digest(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_a_program_does_matters(one: str, other: str) -> None:
    assert tasks.normalised(one) != tasks.normalised(other)


@pytest.mark.parametrize(
    "program", ["def f(", "x" * 10_000, "(" * 500, "def f(x):\n    return " + "-" * 4000 + "1", "", "\0"]
)
def test_what_cannot_be_parsed_is_its_own_normal_form(program: str) -> None:
    assert tasks.normalised(program) == program or program == ""


def test_a_digest_keeps_texts_apart() -> None:
    assert tasks.digest("ab", "c") != tasks.digest("a", "bc") != tasks.digest("abc")


def test_the_hidden_half_is_never_the_smaller_one() -> None:
    task = InductionTask(program="", message="", pairs=tuple((str(n), "0") for n in range(5)))
    assert (len(task.shown), len(task.hidden)) == (2, 3)
    assert task.shown + task.hidden == task.pairs
    assert len(tasks.identity_induction(13).pairs) == 13


# ---- literals ----

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=4), inner, max_size=3)
        | st.sets(st.integers() | st.text(max_size=4), max_size=4)
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_value_is_read_back_as_it_was_shown(value: object) -> None:
    text = literals.show(value)
    assert literals.same(literals.read(text), value)
    assert literals.show(literals.read(text)) == text
    assert literals.read_arguments(literals.show_arguments((value, 1))) == (value, 1)


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_reading_any_text_gives_a_value_or_our_error(text: str) -> None:
    for read in (literals.read, literals.read_arguments):
        with contextlib.suppress(LiteralError):
            read(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "True"),
        ("1", "1.0"),
        ("0.0", "-0.0"),
        ("[1]", "(1,)"),
        ("'1'", "b'1'"),
        ("{1: 2}", "{1: 2.0}"),
        ("{1}", "{True}"),
        ("{1: 0}", "{True: 0}"),
        ("[1, 2]", "[2, 1]"),
        ("0.1", "0.10000000000000002"),
        ("None", "False"),
        ("{}", "set()"),
    ],
)
def test_values_that_python_or_a_reader_may_take_for_equal_are_not_the_same(one: str, other: str) -> None:
    assert not literals.same(literals.read(one), literals.read(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [("{1: 2, 3: 4}", "{3: 4, 1: 2}"), ("{'a', 'b'}", "{'b', 'a'}"), ("1e2", "100.0"), ("0x10", "16"), ("'a'", '"a"')],
)
def test_how_a_value_is_written_does_not_count(one: str, other: str) -> None:
    assert literals.same(literals.read(one), literals.read(other))


@pytest.mark.parametrize(
    "text",
    [
        "1e999",
        "-1e999",
        "nan",
        "inf",
        "...",
        "f()",
        "[x]",
        "lambda: 0",
        "1 + 1",
        "-'a'",
        "not 1",
        "{[]}",
        "{[]: 1}",
        "{**{}}",
        "[*[]]",
        "9" * 5000,
        "0x" + "f" * 2000,
        "[" * 40 + "]" * 40,
        "(" * 3000,
        "-" * 9000 + "1",
        "'a",
        "a" * 20_000,
        "f'{1}'",
        "1 if 1 else 2",
        "`1`",
        "\0",
        "1j",
        "1 + 2j",
        "-True",
        "\ud800",
    ],
)
def test_what_is_no_literal_is_refused(text: str) -> None:
    with pytest.raises(LiteralError):
        literals.read(text)


def test_a_value_without_a_literal_is_not_shown() -> None:
    for value in (math.nan, math.inf, 1j, object(), frozenset({1}), [object()], 1 << 5000, range(3)):
        with pytest.raises(LiteralError):
            literals.show(value)


def test_every_kind_has_its_class_and_its_share_of_pretraining() -> None:
    assert tuple(TASK_KINDS) == tuple(TaskKind)
    assert all(one.kind is kind for kind, one in TASK_KINDS.items())
    shares = [share for one in TASK_KINDS.values() for share in one.pretrain_shares.values()]
    assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", TaskKind)
def test_a_task_of_each_kind_is_stored_and_comes_back(kind: TaskKind) -> None:
    task = TASK_KINDS[kind].identity(4)
    assert tasks.task_from_record(task.record()) == task
    assert kind in kinds_of(task)
    assert set(task.judged) <= set(task.examples)
