"""Which programs are plain: Python that can do nothing but compute with values of its own. Promises: a plain program
has no way to change, or to look at, anything of the interpreter that another in the same process could notice.

A list of what is allowed; all else makes a program not plain, which costs it nothing but speed: it then gets a process
of its own. No attribute is assigned, no class is made, no attribute starts with an underscore and no name with two, of
builtins and modules only what is named here can be reached, and a module is no value that could be passed on. What
`typing` has is for annotations alone: it remembers what it was asked, and leads to abstract classes that can be told
who belongs to them. No generator has an end of its own to run, which might come in the time of another program. Time
and memory are limited elsewhere. The wall around the host is the box, for plain programs as for all others.
"""

from __future__ import annotations

import ast
import builtins
import cmath
import itertools
import math
from collections.abc import Sequence
from typing import cast

_BUILTIN_NAMES = """
    abs all any ascii bin bool bytearray bytes callable chr complex dict divmod enumerate filter float format frozenset
    hex int isinstance iter len list map max min next oct ord pow print range repr reversed round set slice sorted str
    sum tuple zip True False None NotImplemented Ellipsis
    ArithmeticError AssertionError BaseException Exception IndexError KeyError LookupError NotImplementedError
    OverflowError RecursionError RuntimeError StopIteration TypeError ValueError ZeroDivisionError
"""
_BUILTINS = frozenset(_BUILTIN_NAMES.split())
_OTHER_BUILTINS = frozenset(dir(builtins)) - _BUILTINS
"""A program that binds one of these may still mean the real one somewhere else: it is not plain."""

_MODULE_NAMES = {
    "collections": "Counter OrderedDict defaultdict deque",
    "functools": "cache cmp_to_key lru_cache partial reduce",
    "heapq": "heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest",
    "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
    "operator": "add and_ eq floordiv ge gt le lt mod mul ne neg or_ sub truediv xor",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits punctuation whitespace",
    "re": "compile escape findall finditer fullmatch match search split sub subn",
    "typing": "Any Callable Dict Iterable Iterator List Optional Sequence Set Tuple Union",
}
_MODULES: dict[str, frozenset[str]] = {
    **{name: frozenset(names.split()) for name, names in _MODULE_NAMES.items()},
    # These are written in C and hold nothing but functions and constants.
    **{module.__name__: frozenset(n for n in dir(module) if n[0] != "_") for module in (cmath, itertools, math)},
}

_FORBIDDEN_ATTRIBUTES = frozenset(
    {
        "format",
        "format_map",  # read attributes whose names are in a text
        "obj",  # of an AttributeError: whatever it was
        "with_traceback",
    }
)
_FRAME_PREFIXES = ("gi_", "cr_", "ag_", "f_", "tb_", "co_")

_FORBIDDEN_NODES = (
    ast.ClassDef,
    ast.AsyncFunctionDef,
    ast.AsyncFor,
    ast.AsyncWith,
    ast.Await,
    ast.With,
    ast.MatchClass,
)


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Every node once. What ast.walk gives, in another order and in half the time: each program is looked at."""
    found: list[ast.AST] = [tree]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [item for item in cast("list[object]", value) if isinstance(item, ast.AST)]
    return found


def is_plain(nodes: Sequence[ast.AST]) -> bool:
    """Check the nodes of a tree that was parsed from source, not one that was put together."""
    modules: set[str] = set()
    bound: set[str] = set()
    names: list[ast.Name] = []
    attributes: list[ast.Attribute] = []
    for node in nodes:
        if isinstance(node, ast.Name):
            names.append(node)
        elif isinstance(node, ast.Attribute):
            attributes.append(node)
        if isinstance(node, _FORBIDDEN_NODES) or not _binds_plainly(node, modules, bound):
            return False
    kinds = set(map(type, nodes))
    if modules & bound or bound & _OTHER_BUILTINS or _ends_a_generator(kinds):
        return False
    if not kinds.isdisjoint((ast.Import, ast.ImportFrom)) and not _has_typing_in_annotations_only(nodes):
        return False
    bases = {id(node.value) for node in attributes}
    return all(_name_is_plain(node, modules, bound, bases) for node in names) and all(
        _attribute_is_plain(node, modules) for node in attributes
    )


def _ends_a_generator(kinds: set[type[ast.AST]]) -> bool:
    """Whether a generator that nobody asks any more may still have something to do."""
    return not kinds.isdisjoint((ast.Yield, ast.YieldFrom)) and not kinds.isdisjoint((ast.Try, ast.TryStar))


_ANNOTATION_NODES = (
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Tuple,
    ast.List,
    ast.Constant,
    ast.BinOp,
    ast.BitOr,
    ast.Load,
)


def _has_typing_in_annotations_only(nodes: Sequence[ast.AST]) -> bool:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "typing":
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Import) and any(alias.name == "typing" for alias in node.names):
            names.add("typing")
    if not names:
        return True
    annotated: set[int] = set()
    for node in nodes:
        for name in ("annotation", "returns"):
            inside = getattr(node, name, None)
            if isinstance(inside, ast.expr):
                parts = nodes_of(inside)
                if not all(isinstance(part, _ANNOTATION_NODES) for part in parts):
                    return False
                annotated.update(map(id, parts))
    used = [node for node in nodes if isinstance(node, ast.Name) and node.id in names]
    return all(id(node) in annotated for node in used)


_SETS = frozenset(
    {
        "set",
        "frozenset",
        "hash",
        "id",
        "eval",
        "exec",
        "getattr",
        "globals",
        "vars",
        "literal_eval",
        "__import__",
        "__builtins__",
    }
)
_SET_METHODS = frozenset(
    {
        "keys",
        "items",
        "union",
        "intersection",
        "difference",
        "symmetric_difference",
        "literal_eval",
        "mro",
        "__hash__",
        "__subclasses__",
        "__globals__",
        "__dict__",
        "__base__",
        "__bases__",
        "__mro__",
    }
)


def may_depend_on_hashes(nodes: Sequence[ast.AST]) -> bool:
    """Whether a program may meet a set, whose order differs between interpreters, or hide that it does. Of arguments
    the caller knows."""
    for node in nodes:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name) if name in _SETS:
                return True
            case ast.Attribute(attr=name) if name in _SET_METHODS:
                return True
            case _:
                pass
    return False


def _binds_plainly(node: ast.AST, modules: set[str], bound: set[str]) -> bool:
    match node:
        case ast.Import():
            modules.update(alias.asname or alias.name for alias in node.names)
            # An alias is not followed: the module must go by its own name.
            return all(alias.name in _MODULES and alias.asname in (None, alias.name) for alias in node.names)
        case ast.ImportFrom():
            bound.update(alias.asname or alias.name for alias in node.names)
            allowed = _MODULES.get(node.module or "", frozenset[str]()) if node.level == 0 else frozenset[str]()
            return all(alias.name in allowed and not (alias.asname or "").startswith("_") for alias in node.names)
        case ast.Name(ctx=ast.Store() | ast.Del()):
            bound.add(node.id)
            return not node.id.startswith("__")
        case ast.arg():
            bound.add(node.arg)
            return not node.arg.startswith("__")
        case ast.FunctionDef():
            bound.add(node.name)
            return not node.name.startswith("__")
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            bound.add(name)
            return not name.startswith("__")
        case ast.MatchMapping(rest=str(name)):
            bound.add(name)
            return not name.startswith("__")
        case ast.Global() | ast.Nonlocal():
            return not any(name.startswith("__") for name in node.names)
        case _:
            return True


def _name_is_plain(node: ast.Name, modules: set[str], bound: set[str], bases: set[int]) -> bool:
    if node.id in modules:
        return isinstance(node.ctx, ast.Load) and id(node) in bases
    return node.id in bound or node.id in _BUILTINS


def _attribute_is_plain(node: ast.Attribute, modules: set[str]) -> bool:
    name = node.attr
    if not isinstance(node.ctx, ast.Load) or name.startswith(("_", *_FRAME_PREFIXES)) or name in _FORBIDDEN_ATTRIBUTES:
        return False
    if isinstance(node.value, ast.Name) and node.value.id in modules:
        return name in _MODULES[node.value.id]
    return True
