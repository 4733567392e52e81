"""How different the proposed programs are. Guarantees: pure functions of the texts and a random generator; texts are
parsed as syntax and never evaluated; whatever does not parse is counted as such, not raised.

The distance of two programs is the pq-gram distance of their syntax trees (p = 2, q = 2) over node types, operators and
called attributes: 0 for the same shape, 1 for nothing in common. It follows the tree edit distance closely and costs
little. Names and constants do not count: renaming variables makes no program new.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, cast

from harena.azr.tasks import literals

MAX_CHARS = 20_000
"""Longer texts are not parsed: a step measures hundreds of them."""
MAX_NODES = 4_000
MAX_DEPTH = 4
"""Levels of a literal that its type shows; deeper parts are `...`."""
PAIRS = 256
"""Pairs of programs whose distance is taken when there are more: the mean is steady to about 0.02."""

Profile = Counter[tuple[str, str, str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversity:
    programs: int
    parsed: int
    unique: int
    """Different syntax trees, whatever the names, comments and white space."""
    distance: float
    """Mean pq-gram distance of pairs of programs, equal ones among them; nan below two programs."""
    nodes: float
    """Mean size of a syntax tree."""
    input_types: dict[str, int] = field(default_factory=dict[str, int])
    output_types: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def unique_share(self) -> float:
        return self.unique / self.parsed if self.parsed else math.nan

    @property
    def type_entropy(self) -> float:
        """Bits, over the types of outputs: 0 when all are of one type."""
        return entropy(self.output_types.values())

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "unique_share": self.unique_share, "type_entropy": self.type_entropy}


def measure(items: Sequence[tuple[str, str, str]], *, rng: Random, pairs: int = PAIRS) -> Diversity:
    """Measure the diversity of (program, input, output) texts."""
    trees = [tree for program, _, _ in items if (tree := parse(program)) is not None]
    shapes = [ast_shape(tree) for tree in trees]
    return Diversity(
        programs=len(items),
        parsed=len(trees),
        unique=len(set(shapes)),
        distance=mean_distance([profile(tree) for tree in trees], rng=rng, pairs=pairs),
        nodes=sum(len(list(ast.walk(tree))) for tree in trees) / len(trees) if trees else math.nan,
        input_types=dict(Counter(literal_type(text) for _, text, _ in items).most_common()),
        output_types=dict(Counter(literal_type(text) for _, _, text in items).most_common()),
    )


def parse(text: str) -> ast.AST | None:
    """None for what is too long, too large or no Python."""
    try:
        tree = literals.parse(text, max_chars=MAX_CHARS)
    except literals.LiteralError:
        return None
    for count, _ in enumerate(ast.walk(tree)):
        if count > MAX_NODES:
            return None
    return tree


def ast_shape(tree: ast.AST) -> tuple[str, ...]:
    """Labels in the order of the text, with a mark where a node ends; names numbered by their first use."""
    names: dict[str, str] = {}
    shape: list[str] = []
    todo: list[ast.AST | None] = [tree]
    while todo:
        node = todo.pop()
        if node is None:
            shape.append(")")
            continue
        shape.append(_label(node) + _named(node, names))
        children = _children(node)
        if children:
            todo.append(None)
            todo += reversed(children)
    return tuple(shape)


def _named(node: ast.AST, names: dict[str, str]) -> str:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
            return f" {names.setdefault(name, str(len(names)))}"
        case ast.Constant(value=int(value)):
            return f" {value:x}"  # decimal digits have a limit, and take long
        case ast.Constant(value=value):
            return f" {value!r}"
        case _:
            return ""


def _label(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f".{node.attr}"
    if isinstance(node, ast.Constant):
        return type(node.value).__name__
    return type(node).__name__


def _children(node: ast.AST) -> list[ast.AST]:
    return [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]


def profile(tree: ast.AST) -> Profile:
    """Its pq-grams: each node with its parent, beside each pair of neighbouring children."""
    grams: Profile = Counter()
    todo: list[tuple[str, ast.AST]] = [("*", tree)]
    while todo:
        parent, node = todo.pop()
        label, children = _label(node), _children(node)
        row = ["*", *map(_label, children), "*"] if children else ["*", "*"]
        grams.update((parent, label, left, right) for left, right in itertools.pairwise(row))
        todo += [(label, child) for child in children]
    return grams


def distance(one: Profile, other: Profile) -> float:
    total = one.total() + other.total()
    return 1 - 2 * (one & other).total() / total if total else 0.0


def mean_distance(profiles: Sequence[Profile], *, rng: Random, pairs: int = PAIRS) -> float:
    count = len(profiles)
    if count < 2:
        return math.nan
    if count * (count - 1) // 2 <= pairs:
        chosen = [(a, b) for a in range(count) for b in range(a)]
    else:
        chosen = [tuple(rng.sample(range(count), 2)) for _ in range(pairs)]
    return math.fsum(distance(profiles[a], profiles[b]) for a, b in chosen) / len(chosen)


def entropy(counts: Iterable[int]) -> float:
    """Bits."""
    values = [count for count in counts if count > 0]
    total = sum(values)
    return math.fsum(-count / total * math.log2(count / total) for count in values) if total else 0.0


def literal_type(text: str) -> str:
    """The type of a literal, from its syntax: `list[int]`, `tuple[str, int]`; `?` for what is no literal. Several
    arguments, `1, 'a'`, are a tuple."""
    try:
        tree = literals.parse(text.strip(), mode="eval", max_chars=MAX_CHARS)
    except literals.LiteralError:
        return "?"
    return _type(cast("ast.Expression", tree).body, MAX_DEPTH)


def _type(node: ast.expr, depth: int) -> str:
    match node:
        case ast.Constant(value=value):
            return "None" if value is None else type(value).__name__
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant() as operand):
            return _type(operand, depth)
        case ast.List(elts=items) | ast.Set(elts=items):
            name = "list" if isinstance(node, ast.List) else "set"
            return f"{name}[{_one_type(items, depth)}]" if items else name
        case ast.Tuple(elts=items):
            return f"tuple[{_types(items, depth)}]" if items else "tuple"
        case ast.Dict(keys=keys, values=values):
            known = [key for key in keys if key is not None]
            return f"dict[{_one_type(known, depth)}, {_one_type(values, depth)}]" if known else "dict"
        case ast.Call(func=ast.Name(id="set"), args=[], keywords=[]):
            return "set"
        case _:
            return "?"


def _one_type(items: Sequence[ast.expr], depth: int) -> str:
    if depth == 0:
        return "..."
    kinds = dict.fromkeys(_type(item, depth - 1) for item in items[:64])
    return next(iter(kinds)) if len(kinds) == 1 else "mixed"


def _types(items: Sequence[ast.expr], depth: int) -> str:
    if depth == 0 or len(items) > 6:
        return "..."
    return ", ".join(_type(item, depth - 1) for item in items)
