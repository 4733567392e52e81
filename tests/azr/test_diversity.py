"""Diversity: what counts as another program, and that hostile text only ever counts as text."""

from __future__ import annotations

import math
from random import Random

import pytest

from harena.azr.tasks import diversity

IDENTITY = "def f(a):\n    return a"
RENAMED = "def f(x):  # the same\n    return x\n"
LOOP = "def f(items):\n    total = 0\n    for item in items:\n        total += item * 2\n    return total"
HOSTILE = [
    "",
    "def f(:",
    "\0",
    "(" * 500,
    "-" * 9000 + "1",
    "x" * 30_000,
    "[" * 90 + "]" * 90,
    "0x" + "f" * 9000,
    r"'\d'",
]


def measure(*programs: str) -> diversity.Diversity:
    return diversity.measure([(program, "1", "[1]") for program in programs], rng=Random(0))


def tree(text: str) -> diversity.ast.AST:
    parsed = diversity.parse(text)
    assert parsed is not None
    return parsed


def test_names_comments_and_white_space_make_no_program_new() -> None:
    found = measure(IDENTITY, RENAMED, LOOP)
    assert (found.programs, found.parsed, found.unique) == (3, 3, 2)


def test_other_constants_make_a_program_new() -> None:
    assert measure("def f(a):\n    return a + 1", "def f(a):\n    return a + 2").unique == 2


def test_swapped_variables_make_a_program_new() -> None:
    assert measure("def f(a, b):\n    return a - b", "def f(a, b):\n    return b - a").unique == 2


def test_distance_is_zero_for_the_same_shape_and_symmetric() -> None:
    one, other = diversity.profile(tree(IDENTITY)), diversity.profile(tree(LOOP))
    assert diversity.distance(one, diversity.profile(tree(RENAMED))) == 0
    assert diversity.distance(one, other) == diversity.distance(other, one)
    assert 0.5 < diversity.distance(one, other) <= 1


def test_a_small_change_is_nearer_than_a_large_one() -> None:
    near = LOOP.replace("* 2", "+ 2")
    of = [diversity.profile(tree(text)) for text in (LOOP, near, IDENTITY)]
    assert 0 < diversity.distance(of[0], of[1]) < diversity.distance(of[0], of[2])


def test_one_program_again_and_again_has_no_distance_and_no_entropy() -> None:
    found = measure(*[IDENTITY] * 40)
    assert (found.unique, found.distance, found.type_entropy) == (1, 0, 0)


def test_sampled_pairs_depend_on_the_generator_alone() -> None:
    programs = [f"def f(a):\n    return {'a + ' * n}1" for n in range(60)]
    assert measure(*programs) == measure(*programs)
    assert 0 < measure(*programs).distance < 1


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_counted_not_raised(text: str) -> None:
    found = diversity.measure([(text, text, text)], rng=Random(0))
    assert found.programs == 1
    assert math.isnan(found.distance)


def test_huge_trees_are_left_out() -> None:
    assert diversity.parse("[" + "1," * 9000 + "]") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1", "int"),
        ("-1.5", "float"),
        ("True", "bool"),
        ("None", "None"),
        ("'a'", "str"),
        ("b''", "bytes"),
        ("[]", "list"),
        ("[1, 2]", "list[int]"),
        ("[1, 'a']", "list[mixed]"),
        ("{1}", "set[int]"),
        ("set()", "set"),
        ("(1, 'a')", "tuple[int, str]"),
        ("1, 'a'", "tuple[int, str]"),
        ("{'a': [1]}", "dict[str, list[int]]"),
        ("[[[[[[1]]]]]]", "list[list[list[list[list[...]]]]]"),
        ("f(1)", "?"),
        ("1 +", "?"),
        ("", "?"),
    ],
)
def test_types_are_read_from_the_syntax(text: str, name: str) -> None:
    assert diversity.literal_type(text) == name


def test_entropy_is_in_bits() -> None:
    assert diversity.entropy([1, 1, 1, 1]) == 2
    assert diversity.entropy([]) == diversity.entropy([7]) == 0
