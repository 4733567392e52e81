"""Runs the cells of a notebook as a kernel does, without Jupyter: in one namespace, and the value of a last expression is
shown as HTML if it can show itself so. Run as a program: notebook in, what its cells showed as JSON out.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def shown(notebook: Path, folder: Path) -> list[str | None]:
    """What each code cell shows: HTML, else the text of the value, else None. The notebook must run to its end."""
    out = folder / "shown.json"
    env = {**os.environ, "HARENA_CONFIG": str(folder / "config")}
    command = [sys.executable, __file__, str(notebook), str(out)]
    # A file, not a pipe: a server that a failed notebook leaves behind would keep a pipe open.
    with open(folder / "errors.txt", "w+") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        errors.seek(0)
        assert process.returncode == 0, errors.read()
    return json.loads(out.read_text())


def run_cell(source: str, names: dict[str, object]) -> str | None:
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "<cell>", "exec", dont_inherit=True), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval", dont_inherit=True), names)  # noqa: S307 - our own notebook
    if value is None:
        return None
    return value._repr_html_() if hasattr(type(value), "_repr_html_") else repr(value)


def main(notebook: str, out: str) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    cells = json.loads(Path(notebook).read_text())["cells"]
    found = [run_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
