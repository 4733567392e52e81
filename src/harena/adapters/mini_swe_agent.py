"""mini-swe-agent environment: each command of the agent runs in a box.

    mini --environment-class harena.adapters.mini_swe_agent.HarenaEnvironment -t "..."

Commands are independent, as mini-swe-agent expects: files stay, variables and the working folder do not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict

from harena.errors import HarenaError
from harena.sandbox.box import Sandbox
from harena.sandbox.network import Network
from harena.sandbox.spec import WORKSPACE, Limits, Spec, Verdict

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class HarenaEnvironmentConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    image: str | None = None
    """OCI image; None shows the host's /usr, read-only."""
    cwd: str = WORKSPACE
    env: dict[str, str] = {}
    timeout: int = 30
    allow: tuple[str, ...] = ()
    """What the box may reach, such as "packages.example:443"."""
    memory_mb: int = 2048
    processes: int = 256
    workspace_mb: int = 1024
    interpreter: tuple[str, ...] = ("bash", "-c")


class HarenaEnvironment:
    def __init__(self, *, config_class: type = HarenaEnvironmentConfig, **kwargs: Any) -> None:
        self.config = config_class(**kwargs)
        config = self.config
        network = Network(allow=config.allow) if config.allow else None
        self._limits = Limits(memory_mb=config.memory_mb, processes=config.processes, output_bytes=16 << 20)
        self.box = Sandbox(
            Spec(image=config.image, workspace_mb=config.workspace_mb, env=config.env, network=network),
            limits=self._limits,
        )

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        wall_s = timeout or self.config.timeout
        argv = [*self.config.interpreter, f"exec 2>&1\n{action.get('command', '')}"]
        limits = dataclasses.replace(self._limits, wall_s=wall_s)
        try:
            result = self.box.exec(argv, cwd=cwd or self.config.cwd, limits=limits)
        except HarenaError as error:
            return _failed("", error)
        text = (result.stdout + result.stderr).decode("utf-8", "replace")
        if result.verdict is Verdict.TIME:
            return _failed(text, TimeoutError(result.detail))
        code = result.exit_code if result.exit_code is not None else -1
        reason = "" if result.exit_code is not None else result.detail
        output = {"output": text, "returncode": code, "exception_info": reason}
        self._check_finished(output)
        return output

    def _check_finished(self, output: dict[str, Any]) -> None:
        lines = str(output["output"]).lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == SUBMIT and output["returncode"] == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """What prompts may name: nothing of the host's environment, since a prompt goes to a model."""
        system = {"system": "Linux", "node": "box", "release": "", "version": "", "machine": ""}
        return recursive_merge(self.config.model_dump(), system, kwargs)

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def cleanup(self) -> None:
        self.box.close()


def _failed(text: str, error: Exception) -> dict[str, Any]:
    return {
        "output": text,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }
