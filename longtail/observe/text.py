"""How numbers, times and hostile strings are written for people."""

from __future__ import annotations

import re

# What a terminal would obey, what mirrors text, and what no encoder takes; newline and tab stay.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with control characters shown instead of obeyed: an episode's output may hold anything."""
    return _UNPRINTABLE.sub(lambda match: repr(match.group())[1:-1], text.replace("\r\n", "\n"))


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """As in "0.34 s", "12 s", "3 min 05 s", "2 h 07 min"."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
