"""Asynchronous against synchronous wall-clock: recipes/repair.toml with max_lag 0 and 1, the same groups, one run each.

The synchronous run also has the importance cap that the asynchronous one needs (without effect at max_lag 0, where
every ratio is 1). The first step of each, in which processes and caches start, is not counted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail.bench import versions
from longtail.errors import InfrastructureError, UserError
from longtail.observe.metrics import FILE_NAME, read_metrics

RECIPE = Path("recipes/repair.toml")
STEPS = 9
LAGS = (0, 1)


def records() -> Iterator[dict[str, Any]]:
    """Groups/s of each lag against the synchronous run; n and spread are of steps, idle shares means over the time."""
    if not RECIPE.exists():
        raise UserError(f"bench lag runs {RECIPE}; start it in the repository")
    first: float | None = None
    for lag in LAGS:
        lines = _run(lag)
        seconds = sum(line["seconds"] for line in lines)
        rate = sum(line["groups"] for line in lines) / seconds
        first = first or rate
        ratios = sorted(line["groups"] / line["seconds"] / first for line in lines)
        yield {
            "name": f"repair.lag{lag}",
            "value": round(rate, 3),
            "unit": "groups/s",
            "against": "repair.lag0",
            "ratio": round(rate / first, 3),
            "n": len(lines),
            "spread": [round(ratios[0], 3), round(ratios[-1], 3)],
            "versions": versions(),
            "seconds": round(seconds, 1),
            "groups": sum(line["groups"] for line in lines),
            "reply_tokens": sum(line["tokens"] for line in lines),
            "success": round(sum(line["success"] for line in lines) / len(lines), 3),
            "idle": _idle(lines, seconds),
        }


def _run(lag: int) -> Sequence[Mapping[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        changes = [f"num_steps={STEPS}", f"max_lag={lag}", "algorithm.overrides.importance_cap=2.0", "eval.tasks=0"]
        overrides = [part for change in changes for part in ("-o", change)]
        command = [sys.executable, "-m", "longtail", "train", str(RECIPE), *overrides, "--run-dir", scratch]
        if code := subprocess.run(command, check=False, stdout=sys.stderr).returncode:
            raise InfrastructureError(f"the run with max_lag={lag} ended with exit code {code}")
        return read_metrics(Path(scratch) / FILE_NAME)[1:]


def _idle(lines: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, float]:
    lanes = sorted({key for line in lines for key in line if key.startswith("idle/")})
    weighted = {lane: sum(line.get(lane, 1.0) * line["seconds"] for line in lines) for lane in lanes}
    return {lane.removeprefix("idle/"): round(idle / seconds, 3) for lane, idle in weighted.items()}
