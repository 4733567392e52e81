"""Converts between Gymnasium's spaces and Harena's. Unsupported kinds are refused by name.

Gymnasium's boxes may have a bound for each number, ours have one for all: an action is checked against Gymnasium's own
space again after it is unpacked.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from gymnasium import spaces as gym

from harena.errors import SpecError
from harena.match import spaces

_DTYPES = {"float16": "float32", "uint16": "int32", "uint32": "int64", "bool": "uint8"}
_SAME = ("float32", "float64", "int8", "uint8", "int16", "int32", "int64")


@dataclass(frozen=True, slots=True)
class Converted:
    space: spaces.Space
    pack: Callable[[Any], Any]
    """Gymnasium's value as one of `space`."""
    unpack: Callable[[Any], Any]
    """And back."""


def from_gym(space: Any, where: str) -> Converted:
    """`where` names the environment and the part of it, for the refusal."""
    for kind, converted in _KINDS.items():
        if isinstance(space, kind):
            return converted(space, where)
    raise SpecError(f"{where}: spaces of the kind {type(space).__name__} are not supported")


def _from_discrete(space: Any, where: str) -> Converted:
    return Converted(spaces.Discrete(int(space.n), int(space.start)), int, space.dtype.type)


def _from_multi_discrete(space: Any, where: str) -> Converted:
    return _from_whole_numbers(space.nvec, space.start, space.dtype)


def _from_multi_binary(space: Any, where: str) -> Converted:
    twos = np.full(space.shape, 2)
    return _from_whole_numbers(twos, np.zeros_like(twos), space.dtype)


def _from_whole_numbers(nvec: Any, start: Any, dtype: Any) -> Converted:
    shape, first = nvec.shape, start.reshape(-1)
    return Converted(
        spaces.MultiDiscrete(nvec.reshape(-1)),
        lambda value: (np.asarray(value).reshape(-1) - first).tolist(),
        lambda value: (np.asarray(value) + first).astype(dtype).reshape(shape),
    )


def _from_box(space: Any, where: str) -> Converted:
    name = np.dtype(space.dtype).name
    ours = name if name in _SAME else _DTYPES.get(name)
    if ours is None:
        raise SpecError(f"{where}: arrays of {name} are not supported")
    low, high = _bounds(space, ours)
    dtype, shape = space.dtype, space.shape
    return Converted(
        spaces.Box(shape, ours, low, high),
        lambda value: np.ascontiguousarray(value, dtype=ours).tobytes(),
        lambda value: np.asarray(value, dtype=dtype).reshape(shape),
    )


def _bounds(space: Any, ours: str) -> tuple[float | None, float | None]:
    """Common bounds of all numbers; None if one has no bound."""
    if not space.low.size:
        return None, None
    low, high = float(space.low.min()), float(space.high.max())
    if ours == "int64":  # its own ends are not floats
        limit = float(2**53)
        return (None if low < -limit else low), (None if high > limit else high)
    return low, high


def _from_dict(space: Any, where: str) -> Converted:
    parts = {str(key): (key, from_gym(part, where)) for key, part in space.spaces.items()}
    return Converted(
        spaces.Dict({name: part.space for name, (_, part) in parts.items()}),
        lambda value: {name: part.pack(value[key]) for name, (key, part) in parts.items()},
        lambda value: {key: part.unpack(value[name]) for name, (key, part) in parts.items()},
    )


def _from_tuple(space: Any, where: str) -> Converted:
    parts = [from_gym(part, where) for part in space.spaces]
    return Converted(
        spaces.Tuple([part.space for part in parts]),
        lambda value: tuple(part.pack(item) for part, item in zip(parts, value, strict=True)),
        lambda value: tuple(part.unpack(item) for part, item in zip(parts, value, strict=True)),
    )


def _from_text(space: Any, where: str) -> Converted:
    return Converted(spaces.Text(space.max_length, space.min_length), str, str)


_KINDS: dict[type, Callable[[Any, str], Converted]] = {
    gym.Discrete: _from_discrete,
    gym.MultiDiscrete: _from_multi_discrete,
    gym.MultiBinary: _from_multi_binary,
    gym.Box: _from_box,
    gym.Text: _from_text,
    gym.Dict: _from_dict,
    gym.Tuple: _from_tuple,
}


def to_gym(space: spaces.Space) -> gym.Space[Any]:
    if isinstance(space, spaces.Discrete):
        return gym.Discrete(space.n, start=space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return gym.MultiDiscrete(list(space.nvec))
    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype)
        ends = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        low = ends[0] if space.low is None else space.low
        high = ends[1] if space.high is None else space.high
        return gym.Box(cast(Any, low), cast(Any, high), space.shape, cast(Any, dtype.type))
    if isinstance(space, spaces.Text):
        return gym.Text(space.max_length, min_length=space.min_length, charset=string.printable)
    if isinstance(space, spaces.Dict):
        return gym.Dict({key: to_gym(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return gym.Tuple([to_gym(part) for part in space.spaces])
    raise SpecError(f"{space} has no counterpart in Gymnasium")


def seen(space: spaces.Space, observation: Any) -> Any:
    """Observation as an agent in a box gets it: encoded and decoded."""
    return space.decode_all(space.encode(observation))


def shown(space: spaces.Space, observation: Any, *, most: int = 1024) -> Any:
    """JSON data for spectators, or None if it is too large for a viewer."""
    return space.to_json(observation) if len(space.encode(observation)) <= 8 * most else None
