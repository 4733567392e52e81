"""Task data: the shapes of tasks, how each is stored, and when two programs are the same one.

What is special about a kind of task (its prompts, how it is read and checked) is in task_kinds.py.
"""

from __future__ import annotations

import ast
import enum
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from harena.azr.tasks import literals

ENTRY = "f"
"""The name of every task's function."""
MAX_PROGRAM_CHARS = 8_000


class TaskKind(enum.StrEnum):
    DEDUCTION = "deduction"
    """Program and input are given; the output is asked for."""
    ABDUCTION = "abduction"
    """Program and output are given; any input that gives the output is right."""
    INDUCTION = "induction"
    """Some inputs with their outputs and a message are given; a program is asked for, and judged on others."""


class Role(enum.StrEnum):
    PROPOSE = "propose"
    SOLVE = "solve"


@dataclass(frozen=True, slots=True, kw_only=True)
class Triplet:
    program: str
    input: str
    """The argument list as text, e.g. `[1, 2], 'a'`."""
    output: str
    """A literal."""

    @property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """Every input with its output."""
        return ((self.input, self.output),)

    @property
    def judged(self) -> tuple[tuple[str, str], ...]:
        """The inputs and outputs that decide whether an answer is right."""
        return self.examples

    @property
    def unique_by(self) -> tuple[str, ...]:
        """The texts that no two tasks of a buffer share."""
        return (normalised(self.program),)

    @property
    def content(self) -> tuple[str, ...]:
        """Every text of the task: its address is made of them."""
        return (self.program, self.input, self.output)

    def record(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"program": self.program, "input": self.input, "output": self.output}

    @classmethod
    def from_record(cls, fields: Mapping[str, Any]) -> Self:
        return cls(program=_text(fields["program"]), input=_text(fields["input"]), output=_text(fields["output"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class InductionTask:
    program: str
    """The one that made the outputs; a solver never sees it."""
    message: str
    pairs: tuple[tuple[str, str], ...]
    """Inputs and outputs as in a Triplet."""

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """The first half, for the solver; of an odd number the smaller one."""
        return self.pairs[: len(self.pairs) // 2]

    @property
    def hidden(self) -> tuple[tuple[str, str], ...]:
        return self.pairs[len(self.pairs) // 2 :]

    @property
    def examples(self) -> tuple[tuple[str, str], ...]:
        return self.pairs

    @property
    def judged(self) -> tuple[tuple[str, str], ...]:
        return self.hidden

    @property
    def unique_by(self) -> tuple[str, ...]:
        """Induction tasks are about programs that are known already, so the inputs count too."""
        return (normalised(self.program), *sorted(given for given, _ in self.pairs))

    @property
    def content(self) -> tuple[str, ...]:
        return (self.program, self.message, *(text for pair in self.pairs for text in pair))

    def record(self) -> dict[str, Any]:
        return {"program": self.program, "message": self.message, "pairs": [list(pair) for pair in self.pairs]}

    @classmethod
    def from_record(cls, fields: Mapping[str, Any]) -> Self:
        pairs = tuple(_pair(pair) for pair in fields["pairs"])
        if len(pairs) < 2:
            raise ValueError("fewer than two pairs: nothing is hidden")
        return cls(program=_text(fields["program"]), message=_text(fields["message"]), pairs=pairs)


Task = Triplet | InductionTask


def task_from_record(fields: Mapping[str, Any]) -> Task:
    """The task that `record` described. KeyError, TypeError or ValueError for anything else."""
    return InductionTask.from_record(fields) if "pairs" in fields else Triplet.from_record(fields)


def _pair(value: object) -> tuple[str, str]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a pair belongs")
    given, out = cast("list[object]", value)
    return _text(given), _text(out)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text belongs")
    value.encode()  # half of a surrogate pair is no text: no tokenizer takes it
    return value


IDENTITY = Triplet(program="def f(a):\n    return a", input="'Hello world'", output="'Hello world'")
"""Where every buffer starts."""


def identity_induction(inputs: int) -> InductionTask:
    """The same, as an induction task."""
    values = [*_SOME_VALUES[:inputs], *map(str, range(10, 10 + inputs - len(_SOME_VALUES)))]
    return InductionTask(
        program=IDENTITY.program, message="Gives back what it gets.", pairs=tuple((value, value) for value in values)
    )


_SOME_VALUES = ("1", "'a'", "[2]", "None", "(3, 4)", "-5", "'xyz'", "[]", "7.5", "True")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a proposer wrote, taken apart and nothing more: nobody has looked whether it runs."""

    kind: TaskKind
    program: str
    inputs: tuple[str, ...]
    """One argument list for deduction and abduction, several for induction."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverAnswer:
    """What a solver wrote: a literal (deduction), an argument list (abduction) or a program (induction), as text."""

    kind: TaskKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatError:
    """A completion that is not in the form that was asked for. A value: models do that all the time."""

    reason: str


@functools.lru_cache(maxsize=8192)
def normalised(program: str) -> str:
    """The program without what does not matter: names of its own, comments, docstrings and other constants that nobody
    uses, annotations, layout, `pass`, and what stands behind a `return`. Two programs that differ in nothing else get
    the same text; there are other ways to write the same program twice. One that does not parse is its own normal
    form."""
    try:
        tree = cast("ast.Module", literals.parse(program, max_chars=MAX_PROGRAM_CHARS))
        functions = frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        tree = cast("ast.Module", _Renamed(_own_names(tree), functions).visit(tree))
        return ast.unparse(tree)
    except (literals.LiteralError, RecursionError):
        return program


def digest(*texts: str) -> str:
    """An address for texts; the order counts."""
    summary = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        summary.update(len(data).to_bytes(8, "little") + data)
    return summary.hexdigest()


def program_digest(program: str) -> str:
    return digest(normalised(program))


def _own_names(tree: ast.Module) -> dict[str, str]:
    """Every name that the program binds, numbered in the order of the source."""
    places: dict[str, tuple[int, int]] = {}
    for node in ast.walk(tree):
        for name in _bound_by(node):
            place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
            places[name] = min(place, places.get(name, place))
    entry = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    order = sorted(places, key=lambda name: places[name])
    names = {name: f"v{number}" for number, name in enumerate(order)}
    return names | {entry[0]: ENTRY} if len(entry) == 1 else names


def _bound_by(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return (name,)
        case ast.MatchMapping(rest=str(name)):
            return (name,)
        case ast.alias(name=real, asname=str(name)) if name != real:
            return (name,)
        case _:
            return ()


_BLOCKS = frozenset(
    {
        ast.Module,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.ClassDef,
        ast.If,
        ast.For,
        ast.AsyncFor,
        ast.While,
        ast.With,
        ast.AsyncWith,
        ast.Try,
        ast.TryStar,
        ast.ExceptHandler,
        ast.match_case,
    }
)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str], functions: frozenset[str]) -> None:
        self._names = names
        self._functions = functions
        """Their arguments have names of the program's own, wherever they are called."""

    def visit(self, node: ast.AST) -> Any:
        if type(node) in _BLOCKS:
            for name in ("body", "orelse", "finalbody"):
                if statements := getattr(node, name, None):
                    setattr(node, name, _alive(statements) or ([] if name != "body" else [ast.Pass()]))
        return super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in self._functions:
            for keyword in node.keywords:
                keyword.arg = self._names.get(keyword.arg, keyword.arg) if keyword.arg else None
        return self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> ast.AST:
        node.name = self._names.get(node.name, node.name) if node.name else None
        return self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> ast.AST:
        node.name = self._names.get(node.name, node.name) if node.name else None
        return node

    def visit_MatchMapping(self, node: ast.MatchMapping) -> ast.AST:
        node.rest = self._names.get(node.rest, node.rest) if node.rest else None
        return self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> ast.AST:
        asname = node.asname if node.asname != node.name else None
        return ast.alias(name=node.name, asname=self._names.get(asname, asname) if asname else None)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(id=self._names.get(node.id, node.id), ctx=node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(arg=self._names.get(node.arg, node.arg))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        return (
            None if node.value is None else ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)
        )

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        node.returns = None
        return self._with_a_body(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        node.returns = None
        return self._with_a_body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self._with_a_body(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = self._names.get(node.name, node.name) if node.name else None
        return self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return ast.Global(names=[self._names.get(name, name) for name in node.names])

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        return ast.Nonlocal(names=[self._names.get(name, name) for name in node.names])

    def _with_a_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        """Annotations without a value are gone by now, and may have been all there was."""
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node


def _alive(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Those of a block that do something and can be reached. (What stands behind a `return` can still make a function
    a generator: then all of it stays.)"""
    found: list[ast.stmt] = []
    for number, one in enumerate(statements, 1):
        match one:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                found.append(one)
                rest = [node for later in statements[number:] for node in ast.walk(later)]
                return found if not any(map(_counts_unreached, rest)) else [*found, *statements[number:]]
            case _:
                found.append(one)
    return found


def _counts_unreached(node: ast.AST) -> bool:
    """Whether a statement changes its function without being reached: what it binds is local, what it yields makes a
    generator."""
    return isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal) or bool(_bound_by(node))
