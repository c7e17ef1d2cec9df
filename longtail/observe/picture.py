"""reward.png: training reward and success over the steps, drawn by matplotlib where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail.observe.report import Measured
from longtail.types import Json

WINDOW = 8


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
    for axes, name in ((reward, "reward"), (success, "success")):
        values = [_or_nan(line.get(name)) for line in metrics]
        axes.plot(steps, values, color="C0", alpha=0.3, label="training")
        axes.plot(steps, _means(values), color="C0", label=f"training, mean of {WINDOW} steps")
    reward.set(xlabel="step", ylabel="mean training reward")
    reward.legend()
    for number, (split, measured) in enumerate(evaluations.items(), 1):
        shares = [_or_nan(m.share) for m in measured]
        spread = [
            [s - m.low for s, m in zip(shares, measured, strict=True)],
            [m.high - s for s, m in zip(shares, measured, strict=True)],
        ]
        steps = [m.step for m in measured]
        success.errorbar(steps, shares, yerr=spread, fmt="o:", color=f"C{number}", capsize=3, label=f"{split}, 95 %")
    success.set(xlabel="step", ylabel="success", ylim=(0, 1))
    success.legend()
    figure.savefig(path)
    return ""


def _means(values: Sequence[float]) -> list[float]:
    """Of each step and those before it, up to WINDOW of them."""
    parts = (values[max(0, end - WINDOW) : end] for end in range(1, len(values) + 1))
    return [sum(part) / len(part) for part in parts]


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
