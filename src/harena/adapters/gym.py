"""Gymnasium environments that nobody trusts, stepped in a box.

    env = boxed("CartPole-v1")                                 # an environment of an installed package
    env = boxed("their_env.py:make", packages=("scipy",))      # code of a stranger: it runs in the box only
    envs = boxed("CartPole-v1", num_envs=64)                   # a gymnasium.vector.VectorEnv

Observations, actions and rewards go through memory that both sides map; its size is sealed, and what the host reads
from it are numbers of a shape that is known. Spaces are Box, Discrete, MultiBinary, MultiDiscrete, Dict and Tuple.
Infos are JSON data. An environment that fails, hangs for `step_s` or exceeds its limits raises BoxedEnvError.
"""

from __future__ import annotations

import base64
import fcntl
import json
import mmap
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from harena.adapters import gym_guest
from harena.errors import HarenaError, SpecError, Unsupported
from harena.sandbox.box import Sandbox
from harena.sandbox.spec import MB, Limits, Spec

guest: Any = gym_guest  # it runs in the box too, without annotations
MAX_MEMORY = 256 * MB
MAX_PARTS = 1000
MAX_DEPTH = 8
DTYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class BoxedEnvError(HarenaError):
    """The environment in the box failed, hung or broke the protocol. It is closed; make another one."""


def boxed(
    env: str,
    *,
    num_envs: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    packages: Sequence[str] = (),
    requirements: Sequence[str] = (),
    limits: Limits | None = None,
    step_s: float = 30.0,
    start_s: float = 60.0,
    vectorization: str = "sync",
    backend: str = "local",
) -> gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]:
    """env: an id that Gymnasium knows in the box, or "FILE.py:FACTORY". arguments: of the environment, as JSON data.
    packages: installed packages that it needs besides Gymnasium. vectorization: "sync" or "vector_entry_point"."""
    if num_envs is not None and not 1 <= num_envs <= 100_000:
        raise SpecError(f"num_envs={num_envs}: from 1 to 100000")
    order: dict[str, Any] = {
        "id": env,
        "num_envs": num_envs,
        "arguments": dict(arguments or {}),
        "vectorization": vectorization,
        **source_of(env),
    }
    remote = _RemoteEnv(
        order,
        Spec(
            packages=("gymnasium", "numpy", *packages),
            requirements=tuple(requirements),
            preload=("numpy", "gymnasium"),
        ),
        limits or Limits(memory_mb=1024, wall_s=7 * 86400),
        step_s=step_s,
        start_s=start_s,
        backend=backend,
    )
    return BoxedEnv(remote) if num_envs is None else BoxedVectorEnv(remote, num_envs)


def source_of(env: str) -> dict[str, str]:
    path, colon, factory = env.rpartition(":")
    if not colon or not path.endswith(".py"):
        return {"source": "", "name": "", "factory": ""}
    if not factory.isidentifier():
        raise SpecError(f"{env!r:.80}: give FILE.py:FACTORY")
    try:
        return {"source": Path(path).read_text("utf-8"), "name": Path(path).name, "factory": factory}
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None


class Remote:
    """The process in the box, and the memory that it shares with this one."""

    def __init__(
        self, order: dict[str, Any], spec: Spec, limits: Limits, *, step_s: float, start_s: float, backend: str
    ) -> None:
        self._step_s = step_s
        self._name = str(order["id"])
        self._box = Sandbox(spec, limits=limits, backend=backend)
        self._talk: Any = None
        try:
            self._talk = self._box.converse(Path(guest.__file__).read_text("utf-8"), limits=limits).met()
            if not hasattr(self._talk, "send_descriptor"):
                raise Unsupported(f"the backend {backend!r} shares no memory with boxes; use the local one")
            self._talk.send(json.dumps(order).encode())
            self.described = self._hear(start_s)
            self.prepare(order)
        except BaseException:
            self.close()
            raise

    def prepare(self, order: dict[str, Any]) -> None:
        """Read the description of the environment, and share the memory that it needs."""
        raise NotImplementedError

    def share(self, parts: Any) -> list[Any]:
        """Map memory for these arrays on both sides."""
        size = guest.size(parts)
        if size > MAX_MEMORY:
            raise BoxedEnvError(
                f"{self._name}: its spaces need {size // MB} MB of shared memory, above {MAX_MEMORY // MB}"
            )
        descriptor = os.memfd_create("harena-env", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)  # a shorter file would end this process by SIGBUS
            self._memory = mmap.mmap(descriptor, size)
            self._talk.send_descriptor(b"m", descriptor)
        finally:
            os.close(descriptor)
        return guest.views(self._memory, parts)

    def ask(self, packet: bytes) -> dict[str, Any]:
        """Send an order and return the answer, which is JSON data of a stranger."""
        if self._talk is None:
            raise BoxedEnvError(f"{self._name} is closed")
        self._talk.send(packet)
        return self._hear(self._step_s)

    def ask_reset(self, seed: Any, options: Any) -> dict[str, Any]:
        return self.ask(b"r" + json.dumps({"seed": seed, "options": options}).encode())

    def _hear(self, wait_s: float) -> dict[str, Any]:
        packet = self._talk.receive_soon()
        until = time.monotonic() + wait_s
        while packet is None:
            left = until - time.monotonic()
            if left <= 0:
                self.fail(f"it did not answer within {wait_s:g} s")
            packet = self._talk.receive(left)
            if packet is None:
                self._talk.read_log()
        if packet == b"k":
            return {}
        if packet[:1] == b"k":
            return self._parsed(packet[1:])
        if packet[:1] == b"e":
            self.fail(packet[1:2001].decode("utf-8", "replace"))
        ended = self._talk.end(1.0)
        self.fail(f"its process ended: {ended.verdict.value}: {ended.detail}")

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            found: Any = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.fail("it sent something that is not JSON")
        return cast("dict[str, Any]", found)

    def fail(self, reason: str) -> NoReturn:
        self.close()
        raise BoxedEnvError(f"{self._name} failed in its box: {reason}")

    def close(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.drop()
        self._box.close()


class _RemoteEnv(Remote):
    def prepare(self, order: dict[str, Any]) -> None:
        self.observations = space_of(self.described.get("observation"))
        self.actions = space_of(self.described.get("action"))
        arrays = self.share(guest.layout(self.observations, self.actions, order["num_envs"]))
        self.rewards, self.terminated, self.truncated = arrays[:3]
        seen = len(guest.leaves(self.observations))
        self._seen, self._acted = arrays[3 : 3 + seen], arrays[3 + seen :]

    def reset(self, seed: Any, options: Any) -> tuple[Any, dict[str, Any]]:
        info = self.ask_reset(seed, options)
        return self.observation(), info

    def step(self, action: Any) -> dict[str, Any]:
        guest.put(self.actions, list(self._acted), action)
        return self.ask(b"s")

    def observation(self) -> Any:
        return guest.take(self.observations, list(self._seen))


class BoxedEnv(gym.Env[Any, Any]):
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(self, remote: _RemoteEnv) -> None:
        self._remote = remote
        self.observation_space, self.action_space = remote.observations, remote.actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._remote.reset(seed, options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        remote = self._remote
        info = remote.step(action)
        ends = bool(remote.terminated[()]), bool(remote.truncated[()])
        return remote.observation(), float(remote.rewards[()]), *ends, info

    def close(self) -> None:
        self._remote.close()


class BoxedVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    def __init__(self, remote: _RemoteEnv, num_envs: int) -> None:
        self._remote = remote
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = remote.observations, remote.actions
        self.observation_space = batch_space(remote.observations, num_envs)
        self.action_space = batch_space(remote.actions, num_envs)
        mode = str(remote.described.get("autoreset"))
        if mode in gym.vector.AutoresetMode.__members__:
            self.metadata = {**self.metadata, "autoreset_mode": gym.vector.AutoresetMode[mode]}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._remote.reset(seed if seed is None or isinstance(seed, int) else list(map(int, seed)), options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        remote = self._remote
        info = remote.step(actions)
        ends = remote.terminated.astype(bool), remote.truncated.astype(bool)
        return remote.observation(), remote.rewards.copy(), *ends, info

    def close_extras(self, **kwargs: Any) -> None:
        self._remote.close()


def space_of(data: Any, depth: int = MAX_DEPTH) -> gym.Space[Any]:
    """A space of Gymnasium from its description, which comes from the box."""
    try:
        match data:
            case {"kind": "Discrete", "n": int(n), "start": int(start)} if 0 < n < 2**31 and abs(start) < 2**31:
                return gym.spaces.Discrete(n, start=start)
            case {"kind": "Box", "dtype": str(dtype), "low": low, "high": high} if dtype in DTYPES:
                return gym.spaces.Box(_array(low), _array(high), dtype=cast(Any, np.dtype(dtype).type))
            case {"kind": "MultiBinary", "shape": list(shape)}:  # pyright: ignore[reportUnknownVariableType]
                return gym.spaces.MultiBinary(_shape(cast("list[Any]", shape)))
            case {"kind": "MultiDiscrete", "nvec": nvec, "start": start}:
                return gym.spaces.MultiDiscrete(_array(nvec), start=_array(start))
            case {"kind": "Dict", "parts": dict(parts)} if depth and len(cast(Any, parts)) <= MAX_PARTS:  # pyright: ignore[reportUnknownVariableType]
                return gym.spaces.Dict({str(k): space_of(v, depth - 1) for k, v in cast(Any, parts).items()})
            case {"kind": "Tuple", "parts": list(parts)} if depth and len(cast(Any, parts)) <= MAX_PARTS:  # pyright: ignore[reportUnknownVariableType]
                return gym.spaces.Tuple([space_of(part, depth - 1) for part in cast(Any, parts)])
            case _:
                raise ValueError("unknown kind of space")
    except (ValueError, TypeError, AssertionError, OverflowError) as error:
        raise BoxedEnvError(f"the environment describes a space that cannot be used: {error}") from None


def _shape(values: Sequence[Any]) -> list[int]:
    shape = [int(value) for value in values]
    if len(shape) > 16 or any(value < 0 for value in shape) or np.prod(shape, dtype=np.float64) * 8 > MAX_MEMORY:
        raise ValueError("a shape that is too large")
    return shape


def _array(data: Any) -> Any:
    match data:
        case {"dtype": str(dtype), "shape": list(shape), "same": bool(same), "data": str(text)} if dtype in DTYPES:  # pyright: ignore[reportUnknownVariableType]
            shape = cast("list[Any]", shape)
            values = np.frombuffer(base64.b64decode(text, validate=True), dtype)
            return np.full(_shape(shape), values[0]) if same else values.reshape(_shape(shape)).copy()
        case _:
            raise ValueError("an array that cannot be read")
