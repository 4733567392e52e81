"""Spaces of observations and actions, and their encoding. A closed set of kinds without pickle: data from a box is
decoded by the space that the game declared, or refused.

This file also runs inside the box, before harness.py: standard library only, with numpy if it is available.
Bytes, little endian: discrete and multi_discrete as i64, box as its array, text as a u32 length and UTF-8; dict (in the
order of its keys) and tuple as their parts one after the other.
"""

# pyright: basic
from __future__ import annotations

import math
import operator
import struct
from array import array
from typing import Any

try:
    import numpy as np
except ImportError:  # a box without it gets plain lists
    np = None

_I64 = struct.Struct("<q")
_U32 = struct.Struct("<I")
_TYPECODES = {"float32": "f", "float64": "d", "int8": "b", "uint8": "B", "int16": "h", "int32": "i", "int64": "q"}
MAX_TEXT = 1 << 20


class SpaceError(ValueError):
    """A value that is not in its space, or bytes that do not decode to one; says what was expected."""


class Space:
    """A set of values. `encode` and `decode` refuse values outside of it; `decode` reads untrusted bytes."""

    kind = ""

    def encode(self, value: Any) -> bytes:
        raise NotImplementedError

    def decode(self, data: bytes, at: int = 0) -> tuple[Any, int]:
        """Return the value at `at`, and where the next one starts."""
        raise NotImplementedError

    def decode_all(self, data: bytes) -> Any:
        value, end = self.decode(data)
        if end != len(data):
            raise SpaceError(f"{len(data) - end} bytes too many for {self}")
        return value

    def to_json(self, value: Any) -> Any:
        """Convert a value to JSON data, for replays and for agents that speak JSON."""
        raise NotImplementedError

    def from_json(self, value: Any) -> Any:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """The space itself as JSON data; `from_description` reads it back."""
        raise NotImplementedError

    def sample(self, rng: Any) -> Any:
        """Random value of the space, from a random.Random."""
        raise NotImplementedError

    def contains(self, value: Any) -> bool:
        try:
            self.encode(value)
        except SpaceError:
            return False
        return True

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.describe().items() if name != "kind")
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.describe() == other.describe()

    __hash__ = None  # type: ignore[assignment]


def _whole(value: Any) -> int:
    if getattr(value, "size", 0) == 1 and hasattr(value, "item"):
        value = value.item()  # numpy's scalars and arrays of one
    return operator.index(value)


class Discrete(Space):
    """A whole number from `start` to `start + n - 1`."""

    kind = "discrete"

    def __init__(self, n: int, start: int = 0) -> None:
        if n < 1:
            raise SpaceError(f"Discrete(n={n}): at least one value")
        self.n, self.start = int(n), int(start)
        self._end = self.start + self.n

    def encode(self, value: Any) -> bytes:
        try:
            number = _whole(value)
        except TypeError:
            raise SpaceError(f"{value!r:.80} is not a whole number; expected {self._wanted()}") from None
        if not self.start <= number < self._end:
            raise SpaceError(f"{number} is out of range; expected {self._wanted()}")
        return _I64.pack(number)

    def _wanted(self) -> str:
        return f"one from {self.start} to {self._end - 1}"

    def decode(self, data: bytes, at: int = 0) -> tuple[int, int]:
        return self.decode_all(data[at : at + 8]), at + 8

    def decode_all(self, data: bytes) -> int:
        if len(data) != 8:
            raise SpaceError(f"{len(data)} bytes for one number")
        number = _I64.unpack(data)[0]
        if not self.start <= number < self._end:
            raise SpaceError(f"{number} is out of range; expected {self._wanted()}")
        return number

    def to_json(self, value: Any) -> int:
        return _whole(value)

    def from_json(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise SpaceError(f"{value!r:.80} is not a whole number; expected {self._wanted()}")
        return self.decode_all(self.encode(value))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "n": self.n, "start": self.start}

    def sample(self, rng: Any) -> int:
        return rng.randrange(self.start, self._end)


class MultiDiscrete(Space):
    """Several whole numbers, each from 0 to its own bound, exclusive."""

    kind = "multi_discrete"

    def __init__(self, nvec: Any) -> None:
        self.nvec = tuple(int(n) for n in nvec)
        if not self.nvec or min(self.nvec) < 1:
            raise SpaceError(f"MultiDiscrete({self.nvec}): at least one number, each with at least one value")
        self._struct = struct.Struct(f"<{len(self.nvec)}q")

    def encode(self, value: Any) -> bytes:
        try:
            numbers = [_whole(item) for item in value]
        except TypeError:
            raise SpaceError(f"{value!r:.80} is not {len(self.nvec)} whole numbers") from None
        return self._struct.pack(*self._checked(numbers))

    def _checked(self, numbers: Any) -> Any:
        if len(numbers) != len(self.nvec):
            raise SpaceError(f"{len(numbers)} numbers; expected {len(self.nvec)}")
        for number, bound in zip(numbers, self.nvec):  # noqa: B905 - older Pythons in boxes
            if not 0 <= number < bound:
                raise SpaceError(f"{number} is out of range; expected 0 to {bound - 1}")
        return numbers

    def decode(self, data: bytes, at: int = 0) -> tuple[Any, int]:
        end = at + self._struct.size
        if len(data) < end:
            raise SpaceError(f"too few bytes for {len(self.nvec)} numbers")
        numbers = self._checked(list(self._struct.unpack_from(data, at)))
        return (np.array(numbers, "int64") if np is not None else numbers), end

    def to_json(self, value: Any) -> list[int]:
        return [_whole(item) for item in value]

    def from_json(self, value: Any) -> Any:
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise SpaceError(f"{value!r:.80} is not a list of whole numbers")
        return self.decode_all(self.encode(value))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "nvec": list(self.nvec)}

    def sample(self, rng: Any) -> Any:
        return self.decode_all(self._struct.pack(*(rng.randrange(n) for n in self.nvec)))


class Box(Space):
    """An array of numbers within bounds. Agents get a numpy array, or lists where numpy is missing."""

    kind = "box"

    def __init__(self, shape: Any, dtype: str = "float32", low: float | None = None, high: float | None = None) -> None:
        self.shape = tuple(int(size) for size in shape)
        self.dtype = str(dtype)
        if self.dtype not in _TYPECODES:
            raise SpaceError(f"Box(dtype={dtype!r}): one of {', '.join(_TYPECODES)}")
        if any(size < 0 for size in self.shape):
            raise SpaceError(f"Box(shape={self.shape}): no negative sizes")
        self.low = None if low is None or math.isinf(low) else float(low)
        self.high = None if high is None or math.isinf(high) else float(high)
        self._count = math.prod(self.shape)
        self._typecode = _TYPECODES[self.dtype]
        self._size = self._count * array(self._typecode).itemsize

    def encode(self, value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray)) and len(value) == self._size:
            return bytes(value)  # a game may keep its state as such
        if np is not None:
            try:
                items = np.asarray(value)
                if items.dtype.kind not in "biuf" or (items.dtype.kind == "f" and self._typecode not in "fd"):
                    raise TypeError
                items = items.astype(self.dtype, copy=False)
            except (TypeError, ValueError, OverflowError):
                raise SpaceError(f"{value!r:.80} is not an array of {self.dtype}") from None
            if items.size != self._count or (items.shape != self.shape and items.ndim > 1):
                raise SpaceError(f"an array of shape {items.shape}; expected {self.shape}")
            self._check_bounds(items.reshape(-1))
            return items.tobytes()
        try:
            flat = array(self._typecode, _flatten(value))
        except (TypeError, OverflowError):
            raise SpaceError(f"{value!r:.80} is not an array of {self.dtype}") from None
        if len(flat) != self._count:
            raise SpaceError(f"{len(flat)} numbers; expected shape {self.shape}")
        self._check_bounds(flat)
        return flat.tobytes()

    def _check_bounds(self, flat: Any) -> None:
        if not len(flat):
            return
        low, high = (
            (flat.min(), flat.max()) if np is not None and not isinstance(flat, array) else (min(flat), max(flat))
        )
        if self._typecode in "fd" and (
            math.isnan(low) or math.isnan(high) or (isinstance(flat, array) and any(map(math.isnan, flat)))
        ):  # numpy's own least and greatest are nan where one of them is
            raise SpaceError("not a number (nan) in an array")
        if (self.low is not None and low < self.low) or (self.high is not None and high > self.high):
            raise SpaceError(f"values from {low} to {high}; expected {self.low} to {self.high}")

    def decode(self, data: bytes, at: int = 0) -> tuple[Any, int]:
        end = at + self._size
        return self.decode_all(data[at:end]), end

    def decode_all(self, data: bytes) -> Any:
        """Decode without checks: an observation comes from the game, and an action goes through `checked`."""
        if len(data) != self._size:
            raise SpaceError(f"{len(data)} bytes for an array of {self._size}")
        if np is not None:
            items = np.frombuffer(data if type(data) is bytearray else bytearray(data), self.dtype)
            return items if len(self.shape) == 1 else items.reshape(self.shape)
        flat = array(self._typecode)
        flat.frombytes(bytes(data))
        return _nest(flat.tolist(), self.shape)

    def checked(self, value: Any) -> Any:
        self._check_bounds(value.reshape(-1) if np is not None else array(self._typecode, _flatten(value)))
        return value

    def to_json(self, value: Any) -> Any:
        if isinstance(value, (bytes, bytearray)):
            value = self.decode_all(bytes(value))
        if np is not None:
            value = np.asarray(value, self.dtype)
            if self.dtype == "float32":  # the shortest text that reads back the same, not that of the double
                return _nest([float(str(item)) for item in value.reshape(-1)], self.shape)
            return value.reshape(self.shape).tolist()
        return value

    def from_json(self, value: Any) -> Any:
        return self.decode_all(self.encode(value))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "shape": list(self.shape), "dtype": self.dtype, "low": self.low, "high": self.high}

    def sample(self, rng: Any) -> Any:
        low = self.low if self.low is not None else (0.0 if self._typecode in "B" else -1.0)
        high = self.high if self.high is not None else low + 2.0
        if self._typecode in "fd":
            return self.from_json(_nest([rng.uniform(low, high) for _ in range(self._count)], self.shape))
        return self.from_json(_nest([rng.randint(int(low), int(high)) for _ in range(self._count)], self.shape))


class Text(Space):
    kind = "text"

    def __init__(self, max_length: int, min_length: int = 0) -> None:
        if not 0 <= min_length <= max_length <= MAX_TEXT:
            raise SpaceError(f"Text({max_length}): lengths from 0 to {MAX_TEXT}")
        self.max_length, self.min_length = int(max_length), int(min_length)

    def _checked(self, value: str) -> str:
        if not self.min_length <= len(value) <= self.max_length:
            raise SpaceError(f"a text of {len(value)} characters; expected {self.min_length} to {self.max_length}")
        return value

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise SpaceError(f"{value!r:.80} is not a text")
        try:
            data = self._checked(value).encode()
        except UnicodeEncodeError:
            raise SpaceError("a text that is not Unicode") from None
        return _U32.pack(len(data)) + data

    def decode(self, data: bytes, at: int = 0) -> tuple[str, int]:
        if len(data) < at + 4:
            raise SpaceError("a text without its length")
        start = at + 4
        end = start + _U32.unpack_from(data, at)[0]
        if len(data) < end:
            raise SpaceError("a text shorter than its length")
        try:
            return self._checked(bytes(data[start:end]).decode()), end
        except UnicodeDecodeError:
            raise SpaceError("a text that is not UTF-8") from None

    def to_json(self, value: Any) -> str:
        return str(value)

    def from_json(self, value: Any) -> str:
        return self.decode_all(self.encode(value))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "max_length": self.max_length, "min_length": self.min_length}

    def sample(self, rng: Any) -> str:
        return "".join(rng.choice("abcdefgh ") for _ in range(rng.randint(self.min_length, min(self.max_length, 40))))


class Dict(Space):
    kind = "dict"

    def __init__(self, spaces: Any) -> None:
        self.spaces: dict[str, Space] = dict(spaces)

    def encode(self, value: Any) -> bytes:
        try:
            if set(value) != set(self.spaces):
                raise SpaceError(f"keys {sorted(map(str, value))}; expected {list(self.spaces)}")
            return b"".join(space.encode(value[key]) for key, space in self.spaces.items())
        except TypeError:
            raise SpaceError(f"{value!r:.80} is not a dict") from None

    def decode(self, data: bytes, at: int = 0) -> tuple[dict[str, Any], int]:
        value: dict[str, Any] = {}
        for key, space in self.spaces.items():
            value[key], at = space.decode(data, at)
        return value, at

    def to_json(self, value: Any) -> dict[str, Any]:
        return {key: space.to_json(value[key]) for key, space in self.spaces.items()}

    def from_json(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or set(value) != set(self.spaces):
            raise SpaceError(f"{value!r:.80}: expected the keys {list(self.spaces)}")
        return {key: space.from_json(value[key]) for key, space in self.spaces.items()}

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "spaces": {key: space.describe() for key, space in self.spaces.items()}}

    def sample(self, rng: Any) -> dict[str, Any]:
        return {key: space.sample(rng) for key, space in self.spaces.items()}


class Tuple(Space):
    kind = "tuple"

    def __init__(self, spaces: Any) -> None:
        self.spaces: tuple[Space, ...] = tuple(spaces)

    def _checked(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(self.spaces):
            raise SpaceError(f"{value!r:.80}: expected {len(self.spaces)} parts")
        return value

    def encode(self, value: Any) -> bytes:
        return b"".join(space.encode(item) for space, item in zip(self.spaces, self._checked(value)))  # noqa: B905

    def decode(self, data: bytes, at: int = 0) -> tuple[tuple[Any, ...], int]:
        items: list[Any] = []
        for space in self.spaces:
            item, at = space.decode(data, at)
            items.append(item)
        return tuple(items), at

    def to_json(self, value: Any) -> list[Any]:
        return [space.to_json(item) for space, item in zip(self.spaces, value)]  # noqa: B905

    def from_json(self, value: Any) -> tuple[Any, ...]:
        return tuple(space.from_json(item) for space, item in zip(self.spaces, self._checked(value)))  # noqa: B905

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "spaces": [space.describe() for space in self.spaces]}

    def sample(self, rng: Any) -> tuple[Any, ...]:
        return tuple(space.sample(rng) for space in self.spaces)


def decode_many(space: Space, data: Any, at: int, count: int) -> list[Any]:
    """Decode one value for each game of a batch; arrays all at once."""
    if np is not None and isinstance(space, Box):
        items = np.frombuffer(bytearray(data[at:]), space.dtype)
        return list(items.reshape((count, *space.shape)))
    values = []
    for _ in range(count):
        value, at = space.decode(data, at)
        values.append(value)
    return values


def encode_many(space: Space, values: Any) -> bytes:
    if isinstance(space, Discrete):
        try:
            numbers = array("q", values)
            if min(numbers) >= space.start and max(numbers) < space.start + space.n:
                return numbers.tobytes()
        except (TypeError, OverflowError):
            pass  # one by one says which
    return b"".join([space.encode(value) for value in values])


def from_description(data: Any) -> Space:
    kind = data["kind"]
    if kind == "discrete":
        return Discrete(data["n"], data["start"])
    if kind == "multi_discrete":
        return MultiDiscrete(data["nvec"])
    if kind == "box":
        return Box(data["shape"], data["dtype"], data["low"], data["high"])
    if kind == "text":
        return Text(data["max_length"], data["min_length"])
    if kind == "dict":
        return Dict({key: from_description(part) for key, part in data["spaces"].items()})
    if kind == "tuple":
        return Tuple([from_description(part) for part in data["spaces"]])
    raise SpaceError(f"no space of kind {kind!r}")


def _flatten(value: Any) -> list[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple, array)):
        return [value]
    flat: list[Any] = []
    for item in value:
        flat.extend(_flatten(item) if isinstance(item, (list, tuple)) else [item])
    return flat


def _nest(flat: list[Any], shape: tuple[int, ...]) -> Any:
    if len(shape) <= 1:
        return flat if shape else flat[0]
    step = math.prod(shape[1:])
    return [_nest(flat[at : at + step], shape[1:]) for at in range(0, len(flat), step)] if step else []
