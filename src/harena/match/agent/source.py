"""Reads the Python source of an agent without running it. Run by agents.py as a child process, which bounds what a
source made to exhaust the parser can take; standard library only, and the file is its own program.

One JSON object comes in on stdin; lines of JSON go out: first what the entry file has, then one warning each.
"""

from __future__ import annotations

import ast
import itertools
import json
import resource
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

CPU_S = 5
MEMORY_BYTES = 1 << 30
METHODS = ("act", "get_action", "predict")
MAX_WARNINGS = 30
NETWORK = frozenset(
    {"socket", "ssl", "requests", "urllib", "urllib3", "http", "httpx", "aiohttp", "ftplib", "smtplib", "websockets"}
)
PROCESSES = frozenset({"subprocess", "multiprocessing"})


def own_modules(paths: Mapping[str, object]) -> list[str]:
    """The names under which files of the agent can be imported, from whichever folder of it."""
    names: set[str] = set()
    for path in paths:
        if path.endswith((".py", ".so")):
            *folders, last = path.split("/")
            names.update(folders)
            names.add(last.partition(".")[0])
    return sorted(names)


def examine(data: bytes, path: str) -> dict[str, str]:
    """Kind, name and method of what the entry file has, or the error that it cannot work."""
    found = {"kind": "", "name": "", "method": "", "error": ""}
    try:
        tree = parse(data, path)
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        text = f": {error.text.strip()[:80]}" if error.text else ""
        return found | {"error": f"{path}{line}: {error.msg}{text}"}
    except ValueError as error:
        return found | {"error": f"{path}: not Python source ({error})"}
    names = top_level_names(tree)
    for kind, name in (("class", "Agent"), ("factory", "create_agent"), ("function", "act"), ("function", "agent")):
        if name in names:
            return found | {"kind": kind, "name": name} | method_of(names[name], path)
    if "*" in names:
        return found
    close = [name for name in names if name.lower() in ("agent", "act", "create_agent", "createagent", "get_action")]
    hint = f"; found {close[0]}, which is not one of these names" if close else ""
    return found | {
        "error": f"{path}: no agent in it: define `class Agent` with a method `act(self, observation)`, "
        f"or `create_agent()`, or a function `act(observation)`{hint}"
    }


def parse(data: bytes, path: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(data, path)


def top_level_names(tree: ast.Module) -> dict[str, ast.stmt]:
    """What the module's own lines bind, also within if, try and with; "*" where an import may bind anything."""
    names: dict[str, ast.stmt] = {}
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        line = pending.pop(0)
        if isinstance(line, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[line.name] = line
        elif isinstance(line, ast.Import | ast.ImportFrom):
            names.update({alias.asname or alias.name.partition(".")[0]: line for alias in line.names})
        else:
            names.update({node.id: line for node in _assigned(line)})
            for field in ("body", "orelse", "finalbody"):
                pending += getattr(line, field, [])
            for handler in getattr(line, "handlers", []):
                pending += handler.body
    return names


def _assigned(line: ast.stmt) -> Iterator[ast.Name]:
    targets: list[ast.expr] = []
    if isinstance(line, ast.Assign):
        targets = line.targets
    elif isinstance(line, ast.AnnAssign) and line.value is not None:
        targets = [line.target]
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node


def method_of(line: ast.stmt, path: str) -> dict[str, str]:
    if not isinstance(line, ast.ClassDef):
        return {}
    defined = {part.name for part in line.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    for part in line.body:
        if isinstance(part, ast.Assign | ast.AnnAssign):
            defined |= {node.id for node in _assigned(part)}
    for method in METHODS:
        if method in defined:
            return {"method": method}
    stored = {node.attr for node in ast.walk(line) if isinstance(node, ast.Attribute)}
    if line.bases or line.keywords or line.decorator_list:
        return {}
    if defined & {"__getattr__", "__call__"} or stored & set(METHODS):
        return {}
    return {"error": f"{path} line {line.lineno}: class Agent has no method act(self, observation)"}


def advise_all(files: Mapping[str, bytes], request: dict[str, Any]) -> Iterator[str]:
    """Warnings on the entry file and on what it imports: a training script beside it may do as it likes."""
    for path in sorted(files):
        name = path.removesuffix(".py")
        if name in sys.stdlib_module_names:
            yield f"{path}: hides Python's own module {name} from the whole agent; rename it"
    pending, done = [request["entry"]], set[str]()
    while pending:
        path = pending.pop(0)
        done.add(path)
        try:
            tree = parse(files[path], path)
        except (SyntaxError, ValueError) as error:
            if path != request["entry"]:
                yield f"{path}: has a syntax error, importing it will fail: {error}"
            continue
        yield from advise(tree, path, request)
        names = _names_imported(tree)
        pending += [other for other in files if other not in done and other not in pending and _stem(other) in names]


def _stem(path: str) -> str:
    return path.removesuffix("/__init__.py").removesuffix(".py").rpartition("/")[2]


def _names_imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(part for alias in node.names for part in alias.name.split("."))
        if isinstance(node, ast.ImportFrom) and node.module:
            names.update(node.module.split("."))
    return names


def advise(tree: ast.Module, path: str, request: dict[str, Any]) -> Iterator[str]:
    guarded = _guarded(tree)
    for node in ast.walk(tree):
        where = f"{path} line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in _modules(node):
                advice = _on_import(module, request, node in guarded)
                if advice:
                    yield f"{where}: imports {module}: {advice}"
            if isinstance(node, ast.ImportFrom) and node.level and path == request["entry"]:
                yield f"{where}: the entry file is not in a package; write `import helper`, not `from . import helper`"
        elif isinstance(node, ast.Call):
            advice = _on_call(ast.unparse(node.func)) if isinstance(node.func, ast.Name | ast.Attribute) else ""
            if advice:
                yield f"{where}: {advice}"
        elif isinstance(node, ast.FunctionDef) and node.name in (*METHODS, "agent", "act_batch"):
            yield from _prints(node, path)


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if node.module and not node.level else []


def _guarded(tree: ast.Module) -> set[ast.AST]:
    """Imports within a try: the agent has thought of their failing."""
    return {
        node for line in ast.walk(tree) if isinstance(line, ast.Try) for part in line.body for node in ast.walk(part)
    }


def _on_import(module: str, request: dict[str, Any], guarded: bool) -> str:
    top = module.partition(".")[0]
    if top in request["known"]:
        return ""
    if any(module == name or module.startswith(f"{name}.") for name in request["forbidden"]):
        if top in NETWORK:
            return "there is no network in the box"
        if top in PROCESSES:
            return "other processes of an agent share its clock, its memory and its one core"
        return "not wanted here"
    if top in sys.stdlib_module_names or guarded:
        return ""
    return "the box has the standard library and numpy only; put the package beside the agent, or do without it"


def _on_call(name: str) -> str:
    if name in ("os.system", "os.popen"):
        return f"{name}: other processes of an agent share its clock, its memory and its one core"
    if name == "input":
        return "input: nobody is there to answer"
    return ""


def _prints(function: ast.FunctionDef, path: str) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"{path} line {node.lineno}: prints on every move: only the head and the tail of the log are kept"
            return


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.load(sys.stdin.buffer)
    files = {path: text.encode("latin-1") for path, text in request["files"].items()}
    print(json.dumps(examine(files[request["entry"]], request["entry"])), flush=True)
    for warning in itertools.islice(advise_all(files, request), MAX_WARNINGS):
        print(json.dumps(warning), flush=True)


if __name__ == "__main__":
    main()
