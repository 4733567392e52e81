"""SWE-ReX deployment and runtime: sessions are shells in one box, with commands and files beside them.

    deployment = HarenaDeployment(image="python:3.12-slim")
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())

A session keeps its variables, folder and background jobs. Interactive programs (`is_interactive_command`, `expect`) and
interrupts are refused by name: a command that takes too long is ended by its timeout, and its session with it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    BashAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    Command,
    CommandResponse,
    CreateBashSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    IsAliveResponse,
    Observation,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)

from harena.errors import HarenaError, Unsupported
from harena.sandbox.aio import AsyncSandbox, AsyncShell
from harena.sandbox.network import Network
from harena.sandbox.spec import MB, Limits, Result, Spec, Verdict

NO_TIMEOUT_S = 86400.0
MAX_READ = 256 * MB


class HarenaRuntime(AbstractRuntime):
    def __init__(self, box: AsyncSandbox, limits: Limits) -> None:
        self.box = box
        self._limits = limits
        self._shells: dict[str, AsyncShell] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        try:
            await self.box.ping()
        except HarenaError as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=True)

    # ---- sessions ----

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        if request.session in self._shells:
            raise SessionExistsError(f"session {request.session} exists already")
        shell = await self.box.shell(["bash"], limits=self._limits)
        self._shells[request.session] = shell
        output = ""
        for path in request.startup_source:
            done = await shell.exec(f"source {_quoted(path)}", timeout_s=request.startup_timeout + 60)
            output += _text(done)
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: Action) -> Observation:
        if not isinstance(action, BashAction) or action.is_interactive_command or action.expect:
            raise Unsupported("sessions of Harena run commands to their end: no interrupts and no interactive programs")
        shell = self._shells.get(action.session)
        if shell is None or not shell.alive:
            raise SessionDoesNotExistError(f"session {action.session!r} does not exist, or has ended")
        result = await shell.exec(action.command, timeout_s=action.timeout or NO_TIMEOUT_S)
        if result.verdict is Verdict.TIME:
            raise CommandTimeoutError(f"timeout after {action.timeout} seconds while running {action.command!r:.200}")
        code = None if action.check == "ignore" else result.exit_code
        if action.check == "raise" and code != 0:
            what = f"{action.error_msg or 'command failed'} (exit code {code}): {action.command!r:.200}"
            raise NonZeroExitCodeError(f"{what}: {_text(result)[-2000:]}")
        return BashObservation(output=_text(result).rstrip("\n"), exit_code=code)

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        shell = self._shells.pop(request.session, None)
        if shell is None:
            raise SessionDoesNotExistError(f"session {request.session!r} does not exist")
        await shell.close()
        return CloseBashSessionResponse()

    # ---- commands and files ----

    async def execute(self, command: Command) -> CommandResponse:
        if command.shell:
            line = command.command if isinstance(command.command, str) else " ".join(command.command)
            argv = ["sh", "-c", line]
        else:
            argv = [command.command] if isinstance(command.command, str) else list(command.command)
        if command.merge_output_streams:
            argv = ["sh", "-c", 'exec "$@" 2>&1', "sh", *argv]
        limits = dataclasses.replace(self._limits, wall_s=command.timeout or NO_TIMEOUT_S)
        result = await self.box.exec(argv, env=command.env, cwd=command.cwd, limits=limits)
        if result.verdict is Verdict.TIME:
            raise CommandTimeoutError(f"timeout after {command.timeout} seconds while running {command.command!r:.200}")
        code = (
            result.exit_code
            if result.exit_code is not None
            else result.verdict.shell_code or 128 + (result.signal or 0)
        )
        if command.check and code != 0:
            message = f"{command.error_msg or 'command failed'} (exit code {code}): {_text(result)[-2000:]}"
            raise NonZeroExitCodeError(message)
        stderr = result.stderr if result.started else result.stderr + result.detail.encode()
        return CommandResponse(stdout=_decoded(result.stdout), stderr=_decoded(stderr), exit_code=code)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        data = await self.box.read(request.path, max_bytes=MAX_READ)
        return ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        await self.box.write(request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        source = Path(request.source_path)
        if source.is_dir():
            await self.box.upload(source, request.target_path)
        else:
            await self.box.write(request.target_path, source.read_bytes(), mode=source.stat().st_mode & 0o777)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        self._shells.clear()
        await self.box.close()
        return CloseResponse()


class HarenaDeployment(AbstractDeployment):
    def __init__(
        self,
        *,
        image: str | None = None,
        allow: tuple[str, ...] = (),
        memory_mb: int = 4096,
        processes: int = 512,
        workspace_mb: int = 2048,
        backend: str = "local",
        logger: Any = None,
    ) -> None:
        """image: None shows the host's /usr, read-only. allow: what the box may reach; nothing by default."""
        network = Network(allow=allow) if allow else None
        self._spec = Spec(image=image, workspace_mb=workspace_mb, network=network)
        self._limits = Limits(memory_mb=memory_mb, processes=processes, wall_s=NO_TIMEOUT_S, output_bytes=64 * MB)
        self._backend = backend
        self._hooks = CombinedDeploymentHook()
        self._runtime: HarenaRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="it was not started")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        self._hooks.on_custom_step("Starting box")
        box = await AsyncSandbox.create(self._spec, backend=self._backend, limits=self._limits)
        self._runtime = HarenaRuntime(box, self._limits)

    async def stop(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    @property
    def runtime(self) -> AbstractRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


def _text(result: Result) -> str:
    return _decoded(result.stdout + result.stderr)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)
