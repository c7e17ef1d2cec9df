"""Measurements of this installation: one module a bench, each with records()."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from statistics import median
from typing import Any


def versions() -> dict[str, str]:
    """What a record was measured with."""
    return {package: version(package) for package in ("longtail", "torch", "transformers")}


def compared(name: str, tokens: int, against: str, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The record of seconds that longtail and another took for the same tokens, in turns: pairs of (ours, theirs)."""
    ratios = sorted(theirs / ours for ours, theirs in pairs)
    return {
        "name": name,
        "value": round(tokens / median(ours for ours, _ in pairs), 1),
        "unit": "tokens/s",
        "against": against,
        "ratio": round(median(ratios), 2),
        "n": len(pairs),
        "spread": [round(ratios[0], 2), round(ratios[-1], 2)],
        "versions": versions(),
    }
