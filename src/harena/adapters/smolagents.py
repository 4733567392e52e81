"""smolagents executor: the code of a CodeAgent runs in the persistent interpreter of a box.

    with HarenaExecutor(packages=("numpy",)) as executor:
        CodeAgent(tools=[], model=model, executor=executor).run("...")

Tools are sent as source and run in the box too, so a tool that needs the network or the host's files fails there. What
comes back is JSON; pickle is refused. Packages are those that are installed here and named: nothing is installed in a
box that runs.
"""

from __future__ import annotations

import json
import re
from typing import Any

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.serialization import SafeSerializer
from smolagents.utils import AgentError

from harena.sandbox.box import Sandbox
from harena.sandbox.spec import MB, Limits, Spec

ANSWER = "/workspace/.harena-answer"
MAX_ANSWER = 16 * MB
SENT_ALONG = ("pillow", "numpy")
"""What smolagents sends along with every tool imports these."""

# Runs in the box: keeps the value of the last expression, and the final answer, as text for the host.
WRAPPED = """
def __harena_run(source):
    import ast, json, sys
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    names = globals()
    answer = {{"final": None, "value": None}}
    try:
        exec(compile(tree, "<agent>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<agent>", "eval"), names)
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                value = repr(value)
            answer["value"] = value
    except BaseException as error:
        if type(error).__name__ != {final!r}:
            raise
        answer["final"] = str(error.args[0])
    with open({path!r}, "w") as file:
        json.dump(answer, file)
__harena_run({source!r})
"""


class HarenaExecutor(RemotePythonExecutor):
    def __init__(
        self,
        additional_imports: list[str] | None = None,
        logger: Any = None,
        *,
        packages: tuple[str, ...] = (),
        limits: Limits | None = None,
        spec: Spec | None = None,
        backend: str = "local",
    ) -> None:
        super().__init__(additional_imports or [], logger or AgentLogger(level=LogLevel.ERROR), allow_pickle=False)
        wanted = (*SENT_ALONG, *packages, *(name.partition(".")[0] for name in additional_imports or [] if name != "*"))
        self.box = Sandbox(spec or Spec(packages=wanted), limits=limits or Limits(wall_s=60), backend=backend)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        source = WRAPPED.format(final=self.FINAL_ANSWER_EXCEPTION, path=ANSWER, source=code)
        result = self.box.run(source)
        logs = result.stdout.decode("utf-8", "replace")
        if not result.ok:
            error = _tidy(result.stderr.decode("utf-8", "replace")) if result.verdict.value == "exit" else ""
            raise AgentError(f"{logs}\n{error or result.detail}", self.logger)
        answer: Any = json.loads(self.box.read(ANSWER, max_bytes=MAX_ANSWER))
        final = answer.get("final") if isinstance(answer, dict) else None
        if isinstance(final, str):
            return CodeOutput(output=SafeSerializer.loads(final, allow_pickle=False), logs=logs, is_final_answer=True)
        value = answer.get("value") if isinstance(answer, dict) else None
        return CodeOutput(output=value, logs=logs, is_final_answer=False)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Nothing is installed into a running box; an import that is missing there is the agent's error."""
        return additional_imports

    def cleanup(self) -> None:
        self.box.close()

    def __enter__(self) -> HarenaExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cleanup()


def _tidy(text: str) -> str:
    """The traceback without the frames of this wrapper."""
    return re.sub(r'  File "[^"]*", line \d+, in __harena_run\n(    .*\n)?', "", text)[-4000:]
