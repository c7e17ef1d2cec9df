"""reward.png: training reward and success over the steps, drawn by matplotlib where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail.observe.report import Measured
from longtail.types import Json


def draw_reward(
    path: Path, title: str, metrics: Sequence[Mapping[str, Json]], evaluations: Mapping[str, Sequence[Measured]]
) -> str:
    """Write the picture; returns "" or the one sentence that says why there is none."""
    if importlib.util.find_spec("matplotlib") is None:
        return f"{path.name} was not drawn: matplotlib is not installed (pip install 'longtail[report]')"
    if not metrics and not evaluations:
        return f"{path.name} was not drawn: no step is committed yet"
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(9, 4), dpi=120, layout="constrained")  # no pyplot: no global state, no display
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    reward, success = figure.subplots(1, 2)
    steps = [line["step"] for line in metrics]
    reward.plot(steps, [_or_nan(line.get("reward")) for line in metrics], label="reward")
    reward.set(xlabel="step", ylabel="mean training reward")
    success.plot(steps, [_or_nan(line.get("success")) for line in metrics], alpha=0.6, label="training")
    for split, measured in evaluations.items():
        shares = [_or_nan(m.share) for m in measured]
        spread = [
            [s - m.low for s, m in zip(shares, measured, strict=True)],
            [m.high - s for s, m in zip(shares, measured, strict=True)],
        ]
        success.errorbar([m.step for m in measured], shares, yerr=spread, fmt="o-", capsize=3, label=f"{split}, 95 %")
    success.set(xlabel="step", ylabel="success", ylim=(0, 1))
    success.legend()
    figure.savefig(path)
    return ""


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
