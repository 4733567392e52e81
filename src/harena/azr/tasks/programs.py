"""Random small Python programs of known difficulty, with inputs and outputs: what the small model reads first.

Promises: a closed grammar over int, str, list, bool, tuple and dict, so every program ends and touches nothing; graded
by the number of operations; the same seed, the same programs; a program is held out or not by a hash of what it does,
which neither names nor layout change, so training never sees a held-out one. Programs run here, in this process: they
are ours. Text that a model wrote must never be handed to this module.

One file: more than half of it is the list of operations.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from harena.errors import SpecError

MAX_OPS = 4
HELD_OUT_SHARE = 16
"""One program in so many is held out."""
MAX_OUTPUT_CHARS = 40
MAX_INT = 100_000
_ATTEMPTS = 400


@dataclass(frozen=True, slots=True)
class ProgramOp:
    """{x} the value so far, {b} the second argument, {y} a fresh name; {c} {k} {m} {i} small ints, {s} {w} texts."""

    takes: str
    gives: str
    form: str
    word: str
    cost: int = 1
    other: str = ""
    """Type of the second argument, where the form has {b}."""

    @property
    def is_block(self) -> bool:
        return "\n" in self.form


def _ops(takes: str, gives: str, *rows: tuple[str, str]) -> list[ProgramOp]:
    return [ProgramOp(takes, gives, form, word) for form, word in rows]


def _two(takes: str, gives: str, other: str, *rows: tuple[str, str]) -> list[ProgramOp]:
    return [ProgramOp(takes, gives, form, word, other=other) for form, word in rows]


def _blocks(takes: str, gives: str, *rows: tuple[str, str]) -> list[ProgramOp]:
    return [ProgramOp(takes, gives, form, word, cost=2) for form, word in rows]


# A trailing "!" marks a form that binds loosely and needs parentheses inside another one.
CATALOG: tuple[ProgramOp, ...] = (
    *_ops(
        "int",
        "int",
        ("{x} + {c}!", "add"),
        ("{x} - {c}!", "subtract"),
        ("{x} * {k}!", "multiply"),
        ("{x} // {k}!", "divide"),
        ("{x} % {m}!", "remainder"),
        ("abs({x})", "absolute"),
        ("{c} - {x}!", "subtract from"),
        ("max({x}, {c})", "at least"),
        ("min({x}, {c})", "at most"),
        ("{x} * {x}!", "square"),
        ("-{x}!", "negate"),
    ),
    *_ops("int", "bool", ("{x} > {c}!", "greater"), ("{x} % {k} == 0!", "divisible"), ("{x} == {c}!", "equal")),
    *_ops("int", "str", ("str({x})", "to text"), ("'{w}' * ({x} % {m})!", "repeat"), ("'{w}' + str({x})!", "label")),
    *_ops(
        "int",
        "ints",
        ("list(range({x} % {m}))", "count up"),
        ("[{x}, {x} + {i}]", "pair up"),
        ("[{x}] * {k}!", "repeat"),
        ("[int(d) for d in str(abs({x}))]", "digits"),
    ),
    *_ops("int", "pair", ("({x}, {x} + {c})", "pair"), ("divmod({x}, {m})", "divide with remainder")),
    *_two(
        "int",
        "int",
        "int",
        ("{x} + {b}!", "add both"),
        ("{x} - {b}!", "difference"),
        ("{x} * {b}!", "product"),
        ("max({x}, {b})", "larger"),
        ("min({x}, {b})", "smaller"),
    ),
    *_two("int", "bool", "int", ("{x} < {b}!", "less")),
    *_two("int", "str", "str", ("{b} + str({x})!", "label"), ("{b} * ({x} % {m})!", "repeat")),
    *_two(
        "int",
        "ints",
        "ints",
        ("{b} + [{x}]!", "append"),
        ("[v + {x} for v in {b}]", "add to each"),
        ("[v for v in {b} if v > {x}]", "keep larger"),
    ),
    *_ops(
        "str",
        "str",
        ("{x}.upper()", "upper"),
        ("{x}[::-1]", "reverse"),
        ("{x}[{i}:]", "drop first"),
        ("{x}[:-{i}]", "drop last"),
        ("{x}[:{k}]", "keep first"),
        ("{x} + '{w}'!", "append"),
        ("'{w}' + {x}!", "prepend"),
        ("{x} * 2!", "double"),
        ("{x}.replace('{s}', '{w}')", "replace"),
        ("''.join(sorted({x}))", "sort letters"),
        ("{x}[::2]", "every second"),
        ("{x}.capitalize()", "capitalize"),
        ("{x}.swapcase()", "swap case"),
        ("{x} + {x}[::-1]!", "mirror"),
    ),
    *_ops(
        "str",
        "int",
        ("len({x})", "length"),
        ("{x}.count('{s}')", "count"),
        ("{x}.find('{s}')", "find"),
        ("len(set({x}))", "distinct"),
    ),
    *_ops(
        "str",
        "bool",
        ("'{s}' in {x}!", "contains"),
        ("{x} == {x}[::-1]!", "palindrome"),
        ("{x}.startswith('{s}')", "starts with"),
    ),
    *_ops(
        "str", "strs", ("list({x})", "letters"), ("sorted(set({x}))", "distinct letters"), ("{x}.split('{s}')", "split")
    ),
    *_ops("str", "dict", ("{{ch: {x}.count(ch) for ch in {x}}}", "count letters")),
    *_two("str", "str", "str", ("{x} + {b}!", "join"), ("{b} + {x}!", "join before")),
    *_two("str", "str", "int", ("{x} * ({b} % {m})!", "repeat"), ("{x}[{b} % {m}:]", "drop")),
    *_two("str", "int", "str", ("{x}.count({b})", "count"), ("len({x} + {b})", "joint length")),
    *_ops(
        "ints",
        "ints",
        ("sorted({x})", "sort"),
        ("{x}[::-1]", "reverse"),
        ("[v + {c} for v in {x}]", "add to each"),
        ("[v * {k} for v in {x}]", "multiply each"),
        ("[v for v in {x} if v > {c}]", "keep larger"),
        ("[v for v in {x} if v % 2 == 0]", "keep even"),
        ("{x}[{i}:]", "drop first"),
        ("{x}[:-{i}]", "drop last"),
        ("{x} + [{c}]!", "append"),
        ("sorted(set({x}))", "distinct"),
        ("{x}[::2]", "every second"),
        ("[abs(v) for v in {x}]", "absolute"),
        ("sorted({x}, reverse=True)", "sort down"),
        ("[v % {m} for v in {x}]", "remainders"),
        ("[v * v for v in {x}]", "squares"),
        ("[v - min({x}) for v in {x}]", "shift to zero"),
    ),
    *_ops(
        "ints",
        "int",
        ("sum({x})", "sum"),
        ("len({x})", "length"),
        ("max({x})", "largest"),
        ("min({x})", "smallest"),
        ("{x}[0]", "first"),
        ("{x}[-1]", "last"),
        ("{x}.count({c})", "count"),
        ("max({x}) - min({x})!", "range"),
        ("len(set({x}))", "distinct"),
    ),
    *_ops(
        "ints",
        "bool",
        ("{c} in {x}!", "contains"),
        ("{x} == sorted({x})!", "is sorted"),
        ("all(v > {c} for v in {x})", "all larger"),
    ),
    *_ops("ints", "strs", ("[str(v) for v in {x}]", "to texts")),
    *_ops("ints", "pair", ("(min({x}), max({x}))", "bounds"), ("({x}[0], len({x}))", "first and length")),
    *_ops("ints", "dict", ("{{v: v * {k} for v in {x}}}", "table"), ("{{v: {x}.count(v) for v in {x}}}", "count each")),
    *_two(
        "ints",
        "ints",
        "int",
        ("[v + {b} for v in {x}]", "add to each"),
        ("[v * {b} for v in {x}]", "multiply each"),
        ("[v for v in {x} if v < {b}]", "keep smaller"),
        ("{x} + [{b}]!", "append"),
    ),
    *_two(
        "ints",
        "int",
        "int",
        ("{x}.count({b})", "count"),
        ("sum({x}) * {b}!", "scaled sum"),
        ("{x}[{b} % len({x})]", "pick"),
    ),
    *_two(
        "ints",
        "ints",
        "ints",
        ("{x} + {b}!", "join"),
        ("[v for v in {x} if v in {b}]", "common"),
        ("[u + v for u, v in zip({x}, {b})]", "add pairwise"),
    ),
    *_ops(
        "strs",
        "strs",
        ("sorted({x})", "sort"),
        ("{x}[::-1]", "reverse"),
        ("[w.upper() for w in {x}]", "upper each"),
        ("[w + '{w}' for w in {x}]", "append to each"),
        ("sorted({x}, key=len)", "sort by length"),
        ("{x}[{i}:]", "drop first"),
        ("[w for w in {x} if '{s}' in w]", "keep with"),
        ("[w[::-1] for w in {x}]", "reverse each"),
        ("[w[:{i}] for w in {x}]", "cut each"),
    ),
    *_ops(
        "strs",
        "str",
        ("'{w}'.join({x})", "join"),
        ("''.join({x})", "join"),
        ("{x}[0]", "first"),
        ("max({x}, key=len)", "longest"),
    ),
    *_ops("strs", "int", ("len({x})", "length"), ("sum(len(w) for w in {x})", "total length")),
    *_ops("strs", "ints", ("[len(w) for w in {x}]", "lengths"), ("[w.count('{s}') for w in {x}]", "counts")),
    *_ops("strs", "dict", ("{{w: len(w) for w in {x}}}", "table of lengths")),
    *_ops(
        "pair",
        "int",
        ("{x}[0] + {x}[1]!", "sum"),
        ("{x}[0] - {x}[1]!", "difference"),
        ("max({x})", "larger"),
        ("{x}[1]", "second"),
    ),
    *_ops("pair", "pair", ("{x}[::-1]", "swap"), ("({x}[1], {x}[0] + {x}[1])", "next pair")),
    *_ops(
        "pair", "ints", ("list({x})", "to list"), ("sorted({x})", "sort"), ("[v * {k} for v in {x}]", "multiply each")
    ),
    *_ops(
        "dict",
        "int",
        ("len({x})", "size"),
        ("sum({x}.values())", "sum of values"),
        ("max({x}.values())", "largest value"),
    ),
    *_ops("dict", "ints", ("sorted({x}.values())", "sorted values"), ("list({x}.values())", "values")),
    *_ops(
        "sdict", "strs", ("sorted({x})", "sorted keys"), ("[k for k, v in {x}.items() if v > {c}]", "keys of larger")
    ),
    *_ops(
        "sdict",
        "dict",
        ("{{k: v + {c} for k, v in {x}.items()}}", "add to values"),
        ("{{v: k for k, v in {x}.items()}}", "invert"),
    ),
    *_ops(
        "sdict", "int", ("{x}.get('{s}', {c})", "look up"), ("len({x})", "size"), ("sum({x}.values())", "sum of values")
    ),
    *_ops("bool", "bool", ("not {x}!", "negate")),
    *_ops("bool", "int", ("int({x})", "to number"), ("{c} if {x} else {k}!", "choose")),
    *_ops("bool", "str", ("'{s}' if {x} else '{w}'!", "choose")),
    *_blocks(
        "ints",
        "int",
        ("{y} = 0\nfor v in {x}:\n    {y} += v * {k}", "weighted sum"),
        ("{y} = {c}\nfor v in {x}:\n    {y} = v - {y}", "fold"),
        ("{y} = 0\nfor v in {x}:\n    if v > {c}:\n        {y} += 1", "count larger"),
        ("{y} = 0\nfor i, v in enumerate({x}):\n    {y} += i * v", "sum by place"),
    ),
    *_blocks(
        "ints",
        "ints",
        ("{y} = []\nfor v in {x}:\n    if v > {c}:\n        {y}.append(v * {k})", "keep and multiply"),
        ("{y} = []\ntotal = 0\nfor v in {x}:\n    total += v\n    {y}.append(total)", "running sum"),
        ("if len({x}) > {k}:\n    {y} = {x}[{i}:]\nelse:\n    {y} = {x} + [{c}]", "trim or grow"),
    ),
    *_blocks(
        "int",
        "int",
        ("if {x} > {c}:\n    {y} = {x} - {k}\nelse:\n    {y} = {x} * {k}", "branch"),
        ("if {x} % 2 == 0:\n    {y} = {x} // 2\nelse:\n    {y} = {x} * 3 + 1", "collatz"),
        ("{y} = {x}\nwhile {y} > {m}:\n    {y} = {y} // {k}", "shrink"),
        ("{y} = {x}\nfor i in range({k}):\n    {y} += i", "add range"),
    ),
    *_blocks(
        "str",
        "str",
        ("{y} = ''\nfor ch in {x}:\n    {y} = ch + {y} + '{s}'", "weave"),
        ("if '{s}' in {x}:\n    {y} = {x}.upper()\nelse:\n    {y} = {x} + '{w}'", "branch"),
        ("{y} = ''\nfor ch in {x}:\n    if ch != '{s}':\n        {y} += ch", "remove"),
    ),
    *_blocks("str", "int", ("{y} = 0\nfor ch in {x}:\n    if ch in 'aeiou':\n        {y} += 1", "count vowels")),
)

_BY_TYPE: dict[str, list[ProgramOp]] = {}
for _op in CATALOG:
    _BY_TYPE.setdefault(_op.takes, []).append(_op)

ARGUMENTS = ("int", "int", "str", "str", "ints", "ints", "ints", "strs", "pair", "sdict", "bool")
NAMES: dict[str, tuple[str, ...]] = {
    "int": ("a", "n", "x", "k"),
    "str": ("a", "s", "p", "t"),
    "ints": ("a", "xs", "nums"),
    "strs": ("a", "ws", "words"),
    "pair": ("a", "p", "t"),
    "sdict": ("a", "d", "m"),
    "bool": ("a", "q"),
}
WORDS = (
    "cat",
    "dog",
    "sun",
    "apple",
    "tree",
    "code",
    "loop",
    "map",
    "level",
    "noon",
    "abc",
    "xyz",
    "hello",
    "a b",
    "data",
    "zero",
)
LETTERS = "abcdeilnorst"


def _word(rng: Random) -> str:
    if rng.random() < 0.4:
        return rng.choice(WORDS)
    return "".join(rng.choices(LETTERS, k=rng.randint(1, 6)))


def _int(rng: Random) -> int:
    return rng.randint(-9, 20) if rng.random() < 0.85 else rng.randint(-60, 120)


_INPUTS: dict[str, Callable[[Random], Any]] = {
    "int": _int,
    "str": _word,
    "ints": lambda rng: [rng.randint(-5, 15) for _ in range(rng.choice((0, 1, 2, 3, 3, 4, 4, 5, 6)))],
    "strs": lambda rng: [_word(rng) for _ in range(rng.choice((1, 2, 2, 3, 4)))],
    "pair": lambda rng: (_int(rng), _int(rng)),
    "sdict": lambda rng: {rng.choice(LETTERS): rng.randint(-5, 15) for _ in range(rng.choice((1, 2, 3, 4)))},
    "bool": lambda rng: rng.random() < 0.5,
}

_BUILTINS = {
    f.__name__: f for f in (abs, all, divmod, enumerate, int, len, list, max, min, range, set, sorted, str, sum, zip)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    program: str
    inputs: tuple[str, ...]
    """Argument lists as text, `[1, 2], 'a'`."""
    outputs: tuple[str, ...]
    message: str
    """A few words on what it does, constants left out."""
    ops: int
    key: str
    """What it does, whatever its names and layout: a digest."""


def is_held_out(key: str) -> bool:
    return int(key[:8], 16) % HELD_OUT_SHARE == 0


def draw(rng: Random, *, ops: int, inputs: int = 1, held_out: bool = False) -> Example:
    """A program of exactly `ops` operations with `inputs` distinct argument lists, on the asked side of the split."""
    if not 1 <= ops <= MAX_OPS:
        raise SpecError(f"ops must be between 1 and {MAX_OPS}, not {ops}")
    for _ in range(_ATTEMPTS):
        example = _attempt(rng, ops, inputs, held_out)
        if example is not None:
            return example
    raise SpecError(f"no program of {ops} operations with {inputs} distinct inputs found: ask for fewer inputs")


def _attempt(rng: Random, ops: int, inputs: int, held_out: bool) -> Example | None:
    first = rng.choice(ARGUMENTS)
    if first == "bool" and (inputs > 2 or ops == 1):
        return None  # too few inputs, and too few programs, to be told apart
    chain = _chain(rng, first, ops)
    if chain is None:
        return None
    other = next((op.other for op in chain if op.other), "")
    forms = [_fill(rng, op.form) for op in chain]
    key = _key(forms)
    if is_held_out(key) != held_out:
        return None
    program = _layout(rng, chain, forms, first, other)
    pairs = _evaluate(rng, program, first, other, inputs)
    if pairs is None:
        return None
    return Example(
        program=program,
        inputs=tuple(pairs),
        outputs=tuple(pairs.values()),
        message=", ".join(op.word for op in chain),
        ops=ops,
        key=key,
    )


def _key(forms: list[str]) -> str:
    """Nest the operations in one text without types and brackets: programs with the same syntax tree share it,
    whatever types they were drawn for and however their operations were cut (`x % 3 == 0` is one operation or two)."""
    text = "{x}"
    for form in forms:
        text = form.rstrip("!").replace("{x}", text)
    text = re.sub(r"\b(ch|w)\b", "v", text)  # the forms' own loop variables
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _chain(rng: Random, first: str, ops: int) -> list[ProgramOp] | None:
    chain: list[ProgramOp] = []
    now, left, other = first, ops, ""
    while left:
        op = rng.choice(_BY_TYPE[now])
        if op.cost > left or (op.other and other not in ("", op.other)):
            if rng.random() < 0.2:
                return None
            continue
        if chain and op.form == chain[-1].form:
            continue
        chain.append(op)
        other = other or op.other
        now, left = op.gives, left - op.cost
    return chain


def _fill(rng: Random, form: str) -> str:
    """Puts constants in; leaves {x}, {b} and {y} for the layout."""
    for slot, low, high in (("{c}", 0, 12), ("{k}", 2, 5), ("{m}", 3, 9), ("{i}", 1, 3)):
        if slot in form:
            form = form.replace(slot, str(rng.randint(low, high)))
    if "{s}" in form:
        form = form.replace("{s}", rng.choice(LETTERS))
    if "{w}" in form:
        form = form.replace("{w}", "".join(rng.choices(LETTERS + "-_!", k=rng.choice((1, 1, 2)))))
    return form


def _layout(rng: Random, chain: list[ProgramOp], forms: list[str], first: str, other: str) -> str:
    """Nested expressions or one step a line, as the coin says; names at random."""
    arg = rng.choice(NAMES[first])
    second = rng.choice([name for name in (*NAMES[other], "b") if name != arg]) if other else ""
    nest = rng.random()
    lines: list[str] = []
    now, is_loose = arg, False
    fresh = iter([name for name in ("x", "y", "z", "r", "u") if name not in (arg, second)])
    for place, (op, form) in enumerate(zip(chain, forms, strict=True)):
        text = form.rstrip("!")
        repeats = text.count("{x}") > 1
        if not now.isidentifier() and (op.is_block or repeats or rng.random() > nest):
            name = next(fresh) if place < 4 else "x"
            lines.append(f"{name} = {now}")
            now, is_loose = name, False
        operand = f"({now})" if is_loose and not _wraps(text) else now
        if op.is_block:
            name = next(fresh)
            lines += text.format(x=operand, b=second, y=name).split("\n")
            now, is_loose = name, False
        else:
            now, is_loose = text.format(x=operand, b=second), form.endswith("!")
    head = f"def f({arg}, {second}):" if second else f"def f({arg}):"
    return "\n".join([head, *(f"    {line}" for line in lines), f"    return {now}"])


def _wraps(text: str) -> bool:
    """Whether the operand is the whole argument of a call, where it needs no parentheses."""
    at = text.find("{x}")
    return at > 0 and text[at - 1] == "(" and text[at + 3 : at + 4] in (")", ",")


def _evaluate(rng: Random, program: str, first: str, other: str, inputs: int) -> dict[str, str] | None:
    scope: dict[str, Any] = {"__builtins__": _BUILTINS}
    exec(program, scope)
    function = scope["f"]
    pairs: dict[str, str] = {}
    tries = inputs * 2 + 3
    while len(pairs) < inputs and tries:
        tries -= 1
        values = [_INPUTS[first](rng)]
        if other:
            values.append(_INPUTS[other](rng))
        text = ", ".join(map(repr, values))
        if text in pairs:
            continue
        try:
            output = function(*values)
        except (IndexError, ValueError, ZeroDivisionError, TypeError):
            continue
        if not _is_small(output):
            continue
        pairs[text] = repr(output)
    if len(pairs) < inputs or (inputs > 3 and len(set(pairs.values())) < 3):
        return None
    return pairs


def _is_small(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= MAX_INT
    return len(value) <= MAX_OUTPUT_CHARS and len(repr(value)) <= MAX_OUTPUT_CHARS
