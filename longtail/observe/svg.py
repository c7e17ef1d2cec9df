"""Line charts as inline SVG. Colours are CSS variables of the page (--c0, --c1, ...), so they follow dark and light."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from longtail.observe.text import number

_WIDTH, _HEIGHT = 460, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 10, 10, 28
COLOURS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    points: Sequence[tuple[float, float | None]]  # (step, value); None leaves a gap
    bars: Sequence[tuple[float, float, float]] = field(default=())  # (step, low, high): intervals


def chart(series: Sequence[Series], *, low: float | None = None, high: float | None = None) -> str:
    """One chart with its legend; "" when there is no point at all."""
    known = [(x, y) for s in series for x, y in s.points if y is not None]
    if not known:
        return ""
    ends = [value for s in series for _, a, b in s.bars for value in (a, b)]
    ys = [y for _, y in known] + ends
    x_axis = _Axis.around([x for x, _ in known], _LEFT, _WIDTH - _RIGHT, whole=True)
    y_axis = _Axis.around(
        [*ys, *([low] if low is not None else []), *([high] if high is not None else [])], _HEIGHT - _BOTTOM, _TOP
    )
    body = [*_grid(x_axis, y_axis)]
    for place, line in enumerate(series):
        body += _line(line, place % COLOURS, x_axis, y_axis)
    legend = "".join(
        f'<span class="key"><i style="background:var(--c{place % COLOURS})"></i>{escape(line.name)}</span>'
        for place, line in enumerate(series)
    )
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(body)}</svg>'
    return svg + f'<div class="legend">{legend}</div>'


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float  # pixels
    end: float
    whole: bool

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, *, whole: bool = False) -> _Axis:
        low, high = min(values), max(values)
        if low == high:
            room = 1.0 if whole or low == 0 else abs(low) / 10
            low, high = (low if low == 0 else low - room), high + room
        return cls(low, high, start, end, whole)

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """About five round values inside."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
        step = max(step, 1.0) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts: list[str] = []
    for value in y_axis.ticks():
        y = f"{y_axis.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 5}" y="{y}" dy="4" text-anchor="end">{number(value)}</text>')
    for value in x_axis.ticks():
        x = f"{x_axis.at(value):.1f}"
        parts.append(f'<text class="tick" x="{x}" y="{_HEIGHT - 10}" text-anchor="middle">{number(int(value))}</text>')
    return parts


def _line(series: Series, colour: int, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    style = f'style="--c:var(--c{colour})"'
    parts = [
        f'<line class="bar" {style} x1="{x_axis.at(x):.1f}" x2="{x_axis.at(x):.1f}" '
        f'y1="{y_axis.at(low):.1f}" y2="{y_axis.at(high):.1f}"/>'
        for x, low, high in series.bars
    ]
    pen, path = "M", ""
    for x, y in series.points:
        if y is None:
            pen = "M"
            continue
        path += f"{pen}{x_axis.at(x):.1f} {y_axis.at(y):.1f}"
        pen = "L"
    parts.append(f'<path class="line" {style} d="{path}"/>')
    if len(series.points) <= 60:
        parts += [
            f'<circle class="dot" {style} cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="2.5">'
            f"<title>{escape(series.name)}, step {number(int(x))}: {number(y)}</title></circle>"
            for x, y in series.points
            if y is not None
        ]
    return parts
