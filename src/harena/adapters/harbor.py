"""Harbor environment: trials of terminal-bench, SWE-bench and others run in boxes, without Docker.

    harbor run -p tasks -a oracle --env harena.adapters.harbor:HarenaEnvironment

The image is the task's `docker_image`, or is built from its Dockerfile. `environment.kwargs` may name an image for
tasks that have neither. Memory is a hard limit. The network is the task's policy: none, an allow-list of names, or
public, which is every name on ports 80 and 443 for programs that use the proxy of their environment. Compose files,
GPUs and CPU limits are refused, since they are not declared as capabilities. Needs Python 3.12, as Harbor does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from pathlib import Path, PurePosixPath
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harena.adapters.users import UserSwitch
from harena.errors import SpecError
from harena.images import ImageStore
from harena.images.build import build
from harena.sandbox.aio import AsyncSandbox
from harena.sandbox.network import Network
from harena.sandbox.spec import MB, Limits, Spec, Verdict

MEMORY_MB = 2048
STORAGE_MB = 10240
NO_TIMEOUT_S = 86400.0
MAX_FILE = 2048 * MB
LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
"""Where Harbor looks for what agents and tests leave."""
PUBLIC = ("*:443", "*:80")


class HarenaEnvironment(BaseEnvironment):
    def __init__(self, *args: Any, image: str | None = None, backend: str = "local", **kwargs: Any) -> None:
        self._default_image = image
        self._backend = backend
        self._box: AsyncSandbox | None = None
        self._workdir: str | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "harena"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            dynamic_network_policy=True,
        )

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(memory_limit=True)

    @property
    def _dockerfile(self) -> Path:
        return self.environment_dir / "Dockerfile"

    @override
    def _validate_definition(self) -> None:
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise ValueError(
                f"{self.environment_name}: Harena runs no compose files; give a docker_image or a Dockerfile"
            )
        if not (self.task_env_config.docker_image or self._default_image or self._dockerfile.exists()):
            raise FileNotFoundError(f"{self.environment_name} has neither a docker_image nor {self._dockerfile}")

    # ---- life ----

    @override
    async def start(self, force_build: bool) -> None:
        image = await asyncio.to_thread(self._image, force_build)
        memory = self._effective_memory_mb or MEMORY_MB
        storage = self._effective_storage_mb or STORAGE_MB
        self._limits = Limits(
            memory_mb=memory, processes=4096, wall_s=NO_TIMEOUT_S, output_bytes=64 * MB, open_files=4096
        )
        spec = Spec(
            image=image,
            env=self._startup_env(),
            root_mb=storage,
            workspace_mb=storage,
            network=_network(self.network_policy),
        )
        self._box = await AsyncSandbox.create(spec, limits=self._limits, backend=self._backend)
        self._users = UserSwitch(self._box, image)
        workdir = self.task_env_config.workdir or (await self.exec("pwd")).stdout or "/"
        await self.ensure_dirs(list(dict.fromkeys([*LOGS, *self._mount_targets(writable_only=True), workdir.strip()])))
        self._workdir = workdir.strip()
        await self._upload_environment_dir_after_start()

    def _image(self, force_build: bool) -> str:
        given = self.task_env_config.docker_image
        if given and not force_build:
            return given
        if not self._dockerfile.exists():
            return given or str(self._default_image)
        digest = hashlib.sha256(str(self.environment_dir.resolve()).encode()).hexdigest()[:12]
        name = f"harbor-{digest}:latest"
        network = PUBLIC if self._network_is_public else ()
        return build(
            ImageStore.default(), self.environment_dir, name=name, network=network, use_cache=not force_build
        ).reference

    @override
    async def stop(self, delete: bool) -> None:
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    @property
    def _started(self) -> AsyncSandbox:
        if self._box is None:
            raise RuntimeError(f"{self.environment_name}: the box was not started, or was stopped")
        return self._box

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await self._started.set_network(_network(network_policy) or Network())

    # ---- commands ----

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        argv = ["/bin/sh", "-c", 'test -x /bin/bash && exec /bin/bash -c "$1"; exec /bin/sh -c "$1"', "sh", command]
        wanted = self._resolve_user(user)
        if wanted is not None:
            argv = await self._users.wrapped(str(wanted), argv)
        limits = dataclasses.replace(self._limits, wall_s=timeout_sec or NO_TIMEOUT_S)
        result = await self._started.exec(argv, cwd=cwd or self._workdir, env=self._merge_env(env), limits=limits)
        stdout, stderr = (stream.decode("utf-8", "replace") for stream in (result.stdout, result.stderr))
        if result.verdict is Verdict.TIME and timeout_sec is not None:
            raise TimeoutError(f"command timed out after {timeout_sec} seconds: {command[:200]}")
        code = result.exit_code
        if code is None:
            code, stderr = result.verdict.shell_code or 128 + (result.signal or 0), f"{stderr}\n{result.detail}"
        return ExecResult(stdout=stdout, stderr=stderr, return_code=code)

    # ---- files ----

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        data = await asyncio.to_thread(source.read_bytes)
        await self._started.write(str(target_path), data, mode=source.stat().st_mode & 0o777)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._started.upload(source_dir, str(target_dir))

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        data = await self._started.read(str(source_path), max_bytes=MAX_FILE)
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, data)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        await self._started.download(str(PurePosixPath(source_dir)), target_dir, max_bytes=MAX_FILE)


def _network(policy: NetworkPolicy) -> Network:
    """The policy as a network of a box, which can be replaced later."""
    match policy.network_mode:
        case NetworkMode.NO_NETWORK:
            return Network()
        case NetworkMode.PUBLIC:
            return Network(allow=PUBLIC)
        case NetworkMode.ALLOWLIST:
            return Network(allow=tuple(f"{host}:{port}" for host in policy.allowed_hosts for port in (443, 80)))
    raise SpecError(f"unknown network mode {policy.network_mode!r:.40}")
