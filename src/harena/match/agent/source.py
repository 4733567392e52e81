"""Inspects the Python source of an agent without running it. load.py runs this file as a child process, which limits
what a source that attacks the parser can use. Standard library only.

One JSON object comes in on stdin; lines of JSON go out: first what the entry file has, then one warning each. Both have
a kind by which the reader decides (load.SourceFault, load.AdviceKind); the text is for people and names no file.
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
MAX_FOUND = 3000
NETWORK = frozenset(
    {"socket", "ssl", "requests", "urllib", "urllib3", "http", "httpx", "aiohttp", "ftplib", "smtplib", "websockets"}
)
PROCESSES = frozenset({"subprocess", "multiprocessing"})


def own_modules(paths: Mapping[str, object]) -> list[str]:
    """Names under which files of the agent can be imported, from any of its folders."""
    names: set[str] = set()
    for path in paths:
        if path.endswith((".py", ".so")):
            *folders, last = path.split("/")
            names.update(folders)
            names.add(last.partition(".")[0])
    return sorted(names)


def examine(data: bytes, path: str) -> dict[str, Any]:
    """Kind, name and method of what the entry file has, or the fault for which it cannot work."""
    found = {"kind": "", "name": "", "method": "", "fault": "", "line": 0, "error": ""}
    try:
        tree = parse(data, path)
    except SyntaxError as error:
        text = f": {error.text.strip()[:80]}" if error.text else ""
        return found | {"fault": "syntax", "line": error.lineno or 0, "error": f"{error.msg}{text}"}
    except ValueError as error:
        return found | {"fault": "syntax", "error": f"not Python source ({error})"}
    names = top_level_names(tree)
    for kind, name in (("class", "Agent"), ("factory", "create_agent"), ("function", "act"), ("function", "agent")):
        if name in names:
            return found | {"kind": kind, "name": name} | method_of(names[name])
    if "*" in names:
        return found
    functions = [line for line in names.values() if isinstance(line, ast.FunctionDef)]
    if functions and _is_kaggle_agent(functions[-1]):
        return found | {"kind": "function", "name": functions[-1].name}
    close = [name for name in names if name.lower() in ("agent", "act", "create_agent", "createagent", "get_action")]
    hint = f"; found {close[0]}, which is not one of these names" if close else ""
    return found | {
        "fault": "no_agent",
        "error": "no agent in it: define `class Agent` with a method `act(self, observation)`, "
        f"or `create_agent()`, or a function `act(observation)`{hint}",
    }


def _is_kaggle_agent(line: ast.FunctionDef) -> bool:
    """Whether kaggle-environments would take it: the last function, of an observation and perhaps a configuration."""
    names = [argument.arg for argument in (*line.args.posonlyargs, *line.args.args)]
    required = names[: len(names) - len(line.args.defaults)]
    return len(required) == 2 or required in (["observation"], ["obs"])


def parse(data: bytes, path: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(data, path)


def top_level_names(tree: ast.Module) -> dict[str, ast.stmt]:
    """Names bound at the top level of the module, also within if, try and with; "*" if an import may bind anything."""
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


def method_of(line: ast.stmt) -> dict[str, Any]:
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
    return {"fault": "no_agent", "line": line.lineno, "error": "class Agent has no method act(self, observation)"}


def advice(kind: str, path: str, text: str, *, line: int = 0, module: str = "") -> dict[str, Any]:
    return {"kind": kind, "path": path, "line": line, "text": text, "module": module}


def advise_all(files: Mapping[str, bytes], request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Warnings on the entry file and on what it imports: a training script beside it may do as it likes."""
    for path in sorted(files):
        name = path.removesuffix(".py")
        if name in sys.stdlib_module_names:
            text = f"hides Python's own module {name} from the whole agent; rename it"
            yield advice("hides_module", path, text, module=name)
    pending, done = [request["entry"]], set[str]()
    while pending:
        path = pending.pop(0)
        done.add(path)
        try:
            tree = parse(files[path], path)
        except (SyntaxError, ValueError) as error:
            if path != request["entry"]:
                yield advice("syntax", path, f"has a syntax error, importing it will fail: {error}")
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


def advise(tree: ast.Module, path: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    guarded = _guarded(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if request["refused"] and (name := _refused_name(node, request["refused"])):
            yield advice("refused", path, f"uses {name}, which is not allowed here", line=line, module=name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in _modules(node):
                kind, text = _on_import(module, request, node in guarded)
                if kind:
                    yield advice(kind, path, f"imports {module}: {text}", line=line, module=module)
            if isinstance(node, ast.ImportFrom) and node.level and path == request["entry"]:
                text = "the entry file is not in a package; write `import helper`, not `from . import helper`"
                yield advice("relative_import", path, text, line=line)
        elif isinstance(node, ast.Call):
            text = _on_call(ast.unparse(node.func)) if isinstance(node.func, ast.Name | ast.Attribute) else ""
            if text:
                yield advice("call", path, text, line=line)
        elif isinstance(node, ast.FunctionDef) and node.name in (*METHODS, "agent", "act_batch"):
            yield from _prints(node, path)


def _refused_name(node: ast.AST, refused: list[str]) -> str:
    """The name on the list that this import or expression uses; empty when there is none. A name that stands for
    something else after an assignment is not followed: this is lint for honest authors."""
    used: list[str] = []
    if isinstance(node, ast.Import):
        used = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        used = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        used = [node.id]
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        used = [ast.unparse(node)]
    for name in refused:
        for found in used:
            if found in (name, f"builtins.{name}") or (isinstance(node, ast.stmt) and found.startswith(f"{name}.")):
                return name
    return ""


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if node.module and not node.level else []


def _guarded(tree: ast.Module) -> set[ast.AST]:
    """Imports within a try, whose failure the agent handles."""
    return {
        node for line in ast.walk(tree) if isinstance(line, ast.Try) for part in line.body for node in ast.walk(part)
    }


def _on_import(module: str, request: dict[str, Any], guarded: bool) -> tuple[str, str]:
    """Kind and text of the advice; empty when there is none."""
    top = module.partition(".")[0]
    if top in request["known"]:
        return "", ""
    if any(module == name or module.startswith(f"{name}.") for name in request["forbidden"]):
        if top in NETWORK:
            return "forbidden_import", "there is no network in the box"
        if top in PROCESSES:
            return "forbidden_import", "other processes of an agent share its clock, its memory and its one core"
        return "forbidden_import", "not wanted here"
    if top in sys.stdlib_module_names or guarded:
        return "", ""
    text = "the box has the standard library and numpy only; put the package beside the agent, or do without it"
    return "missing_import", text


def _on_call(name: str) -> str:
    if name in ("os.system", "os.popen"):
        return f"{name}: other processes of an agent share its clock, its memory and its one core"
    if name == "input":
        return "input: nobody is there to answer"
    return ""


def _prints(function: ast.FunctionDef, path: str) -> Iterator[dict[str, Any]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            text = "prints on every move: only the head and the tail of the log are kept"
            yield advice("prints", path, text, line=node.lineno)
            return


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.load(sys.stdin.buffer)
    files = {path: text.encode("latin-1") for path, text in request["files"].items()}
    print(json.dumps(examine(files[request["entry"]], request["entry"])), flush=True)
    found = list(itertools.islice(advise_all(files, request), MAX_FOUND))
    found.sort(key=lambda one: one["kind"] != "refused")  # warnings must not push an error out
    for one in found[:MAX_WARNINGS]:
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
