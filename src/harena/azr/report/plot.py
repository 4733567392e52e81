"""Line and bar plots as SVG text. Guarantees: no script, no style attribute, nothing from elsewhere; every text is
escaped; numbers that are not finite are gaps. The page's style sheet gives the colours by class: s0 to s7."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 460, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 34
COLOURS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotPoint:
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    """The interval around y, where one is known."""


Series = Mapping[str, Sequence[PlotPoint]]


def lines(
    series: Series,
    *,
    x_label: str,
    y_label: str,
    top: float | None = None,
    bottom: float | None = None,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> str:
    """Curves with the intervals of their points as bands. `top`, `bottom`: ends of the axis that are fixed; `within`:
    what it never goes beyond."""
    points = [point for curve in series.values() for point in curve if math.isfinite(point.y)]
    if not points:
        return ""
    ends = [end for point in points for end in (point.low, point.y, point.high) if end is not None]
    low, high = _span(ends, bottom, top)
    frame = _Frame(_span([point.x for point in points], None, None), (max(low, within[0]), min(high, within[1])))
    parts = [frame.axes(x_label, y_label)]
    for number, curve in enumerate(series.values()):
        kept = [point for point in curve if math.isfinite(point.y)]
        parts.append(_curve(frame, kept, number % COLOURS))
    return _svg(y_label, "".join(parts), list(series))


def _curve(frame: _Frame, points: Sequence[PlotPoint], colour: int) -> str:
    text = ""
    if len(points) > 1 and all(point.low is not None and point.high is not None for point in points):
        upper = [frame.at(point.x, point.high or 0.0) for point in points]
        lower = [frame.at(point.x, point.low or 0.0) for point in reversed(points)]
        text += f'<polygon class="band s{colour}" points="{" ".join(upper + lower)}"/>'
    text += f'<polyline class="line s{colour}" points="{" ".join(frame.at(p.x, p.y) for p in points)}"/>'
    if len(points) <= 60:
        for point in points:
            x, y = frame.at(point.x, point.y).split(",")
            text += f'<circle class="dot s{colour}" cx="{x}" cy="{y}" r="2.5"/>'
    if len(points) == 1 and points[0].low is not None and points[0].high is not None:
        x, low = frame.at(points[0].x, points[0].low).split(",")
        _, high = frame.at(points[0].x, points[0].high).split(",")
        text += f'<line class="line s{colour}" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>'
    return text


def stacked(bars: Sequence[tuple[float, Mapping[str, float]]], *, x_label: str, y_label: str) -> str:
    """A bar for each x, made of the named amounts."""
    names = list(dict.fromkeys(name for _, amounts in bars for name in amounts))
    heights = [sum(_positive(amount) for amount in amounts.values()) for _, amounts in bars]
    if not names or not any(heights):
        return ""
    xs = [x for x, _ in bars]
    step = min((b - a for a, b in itertools.pairwise(xs) if b > a), default=1.0)
    frame = _Frame((min(xs) - step / 2, max(xs) + step / 2), _span([0.0, *heights], 0.0, None))
    parts = [frame.axes(x_label, y_label)]
    for x, amounts in bars:
        base = 0.0
        for number, name in enumerate(names):
            amount = _positive(amounts.get(name, 0.0))
            if amount:
                parts.append(frame.bar(x - 0.4 * step, x + 0.4 * step, base, base + amount, number % COLOURS))
                base += amount
    return _svg(y_label, "".join(parts), names)


def _positive(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Frame:
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> str:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return f"{LEFT + across * (WIDTH - LEFT - RIGHT):.1f},{HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM):.1f}"

    def bar(self, left: float, right: float, low: float, high: float, colour: int) -> str:
        x1, y1 = map(float, self.at(left, high).split(","))
        x2, y2 = map(float, self.at(right, low).split(","))
        return f'<rect class="fill s{colour}" x="{x1}" y="{y1}" width="{x2 - x1:.1f}" height="{y2 - y1:.1f}"/>'

    def axes(self, x_label: str, y_label: str) -> str:
        parts: list[str] = []
        for value in ticks(*self.y):
            x, y = self.at(self.x[0], value).split(",")
            parts.append(f'<line class="grid" x1="{x}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{float(y) + 3.5:.1f}">{value:g}</text>')
        for value in ticks(*self.x, least=1.0):
            x = self.at(value, self.y[0]).split(",")[0]
            parts.append(f'<text class="tick middle" x="{x}" y="{HEIGHT - BOTTOM + 14}">{value:g}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text class="label middle" x="{middle:g}" y="{HEIGHT - 4}">{shown(x_label)}</text>')
        upright = f"rotate(-90 12 {HEIGHT / 2:g})"
        where = f'x="12" y="{HEIGHT / 2:g}" transform="{upright}"'
        parts.append(f'<text class="label middle" {where}>{shown(y_label)}</text>')
        return "".join(parts)


def ticks(low: float, high: float, *, least: float = 0.0) -> list[float]:
    """About five round numbers within, at least `least` apart."""
    rough = max((high - low) / 5, least)
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.85)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _span(values: Sequence[float], bottom: float | None, top: float | None) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    low = min(finite) if bottom is None else bottom
    high = max(finite) if top is None else top
    if high - low < 1e-9 * max(1.0, abs(low)):
        low, high = low - (bottom is None) * 0.5, max(high, low) + 0.5
    room = (high - low) * 0.04
    return (low - room if bottom is None else low), (high + room if top is None else high)


def _svg(title: str, body: str, names: Sequence[str]) -> str:
    legend = "".join(
        f'<li><svg class="key" viewBox="0 0 10 10" aria-hidden="true"><rect class="fill s{number % COLOURS}" '
        f'width="10" height="10"/></svg>{shown(name)}</li>'
        for number, name in enumerate(names)
    )
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{shown(title)}"'
    return f'<svg class="plot" {size}>{body}</svg><ul class="legend">{legend}</ul>'


def shown(value: object) -> str:
    """Text for the page, one that may have been written to deceive its reader."""
    text = str(value)
    visible = "".join(
        letter if letter.isprintable() or letter in "\n\t" else f"\\u{{{ord(letter):x}}}" for letter in text
    )
    return html.escape(visible)
