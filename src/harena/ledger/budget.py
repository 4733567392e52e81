"""What is counted, and how much of it an owner may use."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, fields

from harena.errors import SpecError

LABEL = re.compile(r"[A-Za-z0-9._:/@+-]{0,100}")
GIB = 1024.0
PERIODS = ("day", "month", "total")


@dataclass(slots=True, kw_only=True)
class Counts:
    cpu_s: float = 0.0
    """CPU time of executions: user and system time of their whole trees."""
    gib_s: float = 0.0
    """Memory limit of each execution, in GiB, times its wall time: what was reserved for it."""
    box_s: float = 0.0
    """Lifetime of boxes that were closed."""
    bytes_in: int = 0
    """Sources, inputs and files that went into boxes."""
    bytes_out: int = 0
    """Output and files that came out of them."""
    boxes: int = 0
    executions: int = 0
    faults: int = 0
    """Executions without a result, because the platform failed."""

    def add(self, other: Counts) -> None:
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_json(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in NAMES}


NAMES = tuple(field.name for field in fields(Counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerBudget:
    """None: unlimited."""

    cpu_s: float | None = None
    gib_s: float | None = None
    bytes: float | None = None
    """In and out together."""
    boxes: float | None = None
    per: str = "total"
    """Period after which it begins anew: day or month, in UTC; total: never."""

    def spent(self, used: Counts) -> str:
        """Which part is used up, in words; empty if none is."""
        have = {"cpu_s": used.cpu_s, "gib_s": used.gib_s, "bytes": used.bytes_in + used.bytes_out, "boxes": used.boxes}
        for name, count in have.items():
            most = getattr(self, name)
            if most is not None and count >= most:
                return f"{name}: {count:g} of {most:g} are used"
        return ""

    def as_json(self) -> dict[str, float | str | None]:
        return {name: getattr(self, name) for name in (*LIMITED, "per")}


LIMITED = ("cpu_s", "gib_s", "bytes", "boxes")


def parse_budget(text: str) -> tuple[str, OwnerBudget]:
    """Read OWNER:cpu_s=3600,gib_s=7200,bytes=1e9,boxes=100,per=day. The owner * stands for all others."""
    owner, _, rest = text.rpartition(":")
    limits: dict[str, float] = {}
    per = "total"
    for part in rest.split(","):
        name, _, value = part.partition("=")
        if name == "per" and value in PERIODS:
            per = value
            continue
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in LIMITED or not 0 <= number < 1e18:
            raise SpecError(f"--budget {text[:200]}: OWNER:NAME=NUMBER,…; names are {', '.join(LIMITED)}; per=day")
        limits[name] = number
    if not owner or not limits:
        raise SpecError(f"--budget {text[:200]}: give an owner and a limit, as in alice:cpu_s=3600,per=day")
    return owner, OwnerBudget(**limits, per=per)


def check_label(name: str, value: str) -> str:
    if not LABEL.fullmatch(value):
        raise SpecError(f"{name} {value[:100]!r}: at most 100 letters, digits and . _ : / @ + -")
    return value


def as_label(value: str) -> str:
    """A label from free text, such as a trace id."""
    return re.sub(r"[^A-Za-z0-9._:/@+-]", "_", value)[:100]


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def first_day(per: str) -> str:
    """First day of the current period, as in the ledger."""
    return {"day": today(), "month": today()[:8] + "01"}.get(per, "")
