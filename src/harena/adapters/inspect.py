"""inspect_ai sandbox provider: `--sandbox harena`, or `Task(sandbox=("harena", "python:3.12-slim"))`.

inspect_ai finds it by the entry point of this package. The configuration is the name of an image, or `HarenaConfig`.
Each sample has a box of its own. `user` selects a user of the image; a box without an image has one user. A failure of
the platform is SandboxUnavailableError, never the output of a command.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from harena.adapters.users import UserSwitch
from harena.errors import BoxError, BoxFileTooLarge, SpecError, Unsupported
from harena.sandbox.aio import AsyncSandbox
from harena.sandbox.network import Network
from harena.sandbox.spec import WORKSPACE, Limits, Result, Spec, Verdict

NOT_EXECUTABLE = 126
"""Exit code of a command that exists but may not be executed."""
DAY_S = 86400


class HarenaConfig(BaseModel):
    """Options of the boxes of a task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = None
    """OCI image; None shows the host's /usr, read-only."""
    user: str | None = None
    """Default user in a box from an image."""
    packages: tuple[str, ...] = ()
    """Installed packages that the box may import."""
    allow: tuple[str, ...] = ()
    """What the box may reach, such as "packages.example:443"; nothing by default."""
    memory_mb: int = 2048
    processes: int = 256
    workspace_mb: int = 1024
    wall_s: float = DAY_S
    """Limit of a command that the caller gives no timeout."""
    backend: str = "local"

    def spec(self) -> Spec:
        return Spec(
            image=self.image,
            user=self.user,
            packages=self.packages,
            workspace_mb=self.workspace_mb,
            network=Network(allow=self.allow) if self.allow else None,
        )

    def limits(self) -> Limits:
        return Limits(wall_s=self.wall_s, memory_mb=self.memory_mb, processes=self.processes)


@sandboxenv(name="harena")  # pyright: ignore[reportUntypedClassDecorator]
class HarenaSandbox(SandboxEnvironment):
    def __init__(self, box: AsyncSandbox, config: HarenaConfig) -> None:
        super().__init__()
        self.box = box
        self._limits = config.limits()
        self._users = UserSwitch(box, config.image)

    # ---- life ----

    @classmethod
    async def create(cls, config: SandboxEnvironmentConfigType | None = None) -> HarenaSandbox:
        options = _options(config)
        box = await AsyncSandbox.create(options.spec(), backend=options.backend, limits=options.limits())
        return cls(box, options)

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        return {"default": await cls.create(config)}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(HarenaSandbox).box.close()

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> HarenaConfig:
        return HarenaConfig(**config)

    @override
    def default_polling_interval(self) -> float:
        return 0.2

    # ---- commands ----

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None:
            cmd = await self._as_user(user, cmd)
        stdin = input.encode() if isinstance(input, str) else input or b""
        limits = Limits(
            wall_s=self._limits.wall_s if timeout is None else timeout,
            memory_mb=self._limits.memory_mb,
            processes=self._limits.processes,
            output_bytes=2 * SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,  # inspect_ai's is for each stream
        )
        result = await self._run(cmd, stdin=stdin, cwd=_absolute(cwd), env=env, limits=limits)
        return _as_exec_result(cmd, result)

    async def _run(self, argv: list[str], **options: Any) -> Result:
        try:
            return await self.box.exec(argv, **options)
        except SpecError:
            raise
        except BoxError as error:
            raise SandboxUnavailableError(str(error)) from error

    async def _as_user(self, user: str, cmd: list[str]) -> list[str]:
        try:
            return await self._users.wrapped(user, cmd)
        except Unsupported as error:
            raise SandboxUserUnsupportedError(str(error)) from error
        except BoxError as error:
            raise SandboxUnavailableError(str(error)) from error

    # ---- files ----

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            await self.box.write(file, contents)
        except BoxError as error:
            raise SandboxUnavailableError(str(error)) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        try:
            data = await self.box.read(file, max_bytes=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except BoxFileTooLarge as error:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        except IsADirectoryError as error:
            raise IsADirectoryError(error.errno, "is a directory", file) from error
        except BoxError as error:
            raise SandboxUnavailableError(str(error)) from error
        return data.decode() if text else data


def _options(config: SandboxEnvironmentConfigType | None) -> HarenaConfig:
    if config is None:
        return HarenaConfig()
    if isinstance(config, str):
        return HarenaConfig(image=config)
    if isinstance(config, HarenaConfig):
        return config
    raise SpecError(f"the sandbox harena takes the name of an image or HarenaConfig, not {type(config).__name__}")


def _absolute(cwd: str | None) -> str | None:
    return cwd if cwd is None or cwd.startswith("/") else f"{WORKSPACE}/{cwd}"


def _as_exec_result(cmd: list[str], result: Result) -> ExecResult[str]:
    stdout, stderr = (stream.decode("utf-8", "replace") for stream in (result.stdout, result.stderr))
    most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    if result.verdict is Verdict.TIME:
        raise TimeoutError(result.detail)
    if result.verdict is Verdict.OUTPUT or len(result.stdout) > most or len(result.stderr) > most:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, (stdout + stderr)[:most])
    if not result.started and result.exit_code == NOT_EXECUTABLE:
        raise PermissionError(f"{cmd[0]}: {result.detail}")
    code = result.exit_code
    if code is None:
        code = result.verdict.shell_code or 128 + (result.signal or 0)
        stderr += f"\n{result.detail}" if result.verdict.limits else ""
    return ExecResult(code == 0, code, stdout, stderr if result.started else f"{stderr}{result.detail}")
