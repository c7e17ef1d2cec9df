"""Live progress: rich on a terminal, plain lines otherwise, JSON lines for machines.

tell(kind, data): "begin" {name, directory, num_steps, step, redone}; "step" {a line of metrics.py}; "evaluation" {step,
split, successes, scored, unscored, low, high}; "message" {text}; "trained" {what result.json holds}; "result" {free;
what is nested is for machines}.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from longtail.observe.metrics import dump_line
from longtail.observe.text import duration, number, percent, printable
from longtail.types import Json


class Progress(Protocol):
    def tell(self, kind: str, data: Mapping[str, Json]) -> None: ...

    def close(self) -> None: ...


def open_progress(*, as_json: bool, stream: TextIO | None = None) -> Progress:
    """The kind that fits `stream` (default: stdout)."""
    out = stream or sys.stdout
    if as_json:
        return JsonProgress(out)
    return RichProgress(Console(file=out)) if out.isatty() else PlainProgress(out)


class JsonProgress:
    """One JSON object a line, nothing else."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, kind: str, data: Mapping[str, Json]) -> None:
        print(dump_line({"event": kind, **data}), file=self._out, flush=True)

    def close(self) -> None:
        self._out.flush()


class PlainProgress:
    """One line of text for each thing told."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._num_steps = 0

    def tell(self, kind: str, data: Mapping[str, Json]) -> None:
        self._num_steps = data.get("num_steps", self._num_steps)
        print(line_of(kind, data, self._num_steps), file=self._out, flush=True)

    def close(self) -> None:
        self._out.flush()


class RichProgress:
    """A bar and the last step's figures below a log of the other lines. Owns the live display."""

    def __init__(self, console: Console) -> None:
        self._num_steps = 0
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def tell(self, kind: str, data: Mapping[str, Json]) -> None:
        self._num_steps = data.get("num_steps", self._num_steps)
        if kind == "step":
            self._live.update(_panel(data, self._num_steps), refresh=True)
        else:
            self._live.console.print(Text(line_of(kind, data, self._num_steps)))

    def close(self) -> None:
        self._live.stop()


def line_of(kind: str, data: Mapping[str, Json], num_steps: int) -> str:
    """One line for a person."""
    match kind:
        case "begin":
            steps = data["num_steps"]
            start = f"resumes at step {data['step']} of {steps}" if data["step"] else f"starts, {steps} steps,"
            again = f"; steps that are done again: {', '.join(map(str, data['redone']))}" if data["redone"] else ""
            return printable(f"run {data['name']} {start} in {data['directory']}{again}")
        case "step":
            head = f"step {data['step']}/{num_steps}"
            return "  ".join([head, *(f"{name} {value}" for name, value in figures(data))])
        case "evaluation":
            at = f" at step {data['step']}" if "step" in data else ""
            share = data["successes"] / data["scored"] if data["scored"] else None
            counted = f"{data['successes']} of {data['scored']}"
            interval = f"95 % {percent(data['low'])} to {percent(data['high'])}"
            missing = f"; {data['unscored']} not scored" if data["unscored"] else ""
            return printable(f"evaluation {data['split']}{at}: {percent(share)} ({counted}; {interval}{missing})")
        case "message":
            return printable(str(data["text"]))
        case "trained":
            splits = {data["split"]: data, **data["other_splits"]}
            found = [f"{split} {_before_and_after(rates)}" for split, rates in splits.items() if rates["tasks_before"]]
            return printable("; ".join([f"{data['steps']} steps in {duration(data['train_seconds'])}", *found]))
        case _:
            flat = {name: value for name, value in data.items() if not isinstance(value, Mapping)}
            return printable("  ".join([kind, *(f"{name} {_short(value)}" for name, value in flat.items())]))


def _before_and_after(rates: Mapping[str, Json]) -> str:
    """As in "21.5 % (95 % 16.4 % to 27.7 %) -> 58.0 % (95 % 51.1 % to 64.6 %)"."""
    ends = ("before", "after") if rates["tasks_after"] else ("before",)
    return " -> ".join(
        f"{percent(rates[f'success_{end}'])} (95 % {' to '.join(map(percent, rates[f'interval_{end}']))})"
        for end in ends
    )


def figures(data: Mapping[str, Json]) -> list[tuple[str, str]]:
    """The figures of a step that are worth a look while it runs, in reading order."""
    found = [
        (label, form(data[name]))
        for name, label, form in (
            ("reward", "reward", number),
            ("success", "success", percent),
            ("train/loss", "loss", number),
            ("tokens_per_s", "tokens/s", number),
            ("held_out_nll", "held-out nll", number),
            ("held_out_accuracy", "held-out accuracy", percent),
            ("unusable", "unusable", number),
            ("seconds", "took", duration),
            ("eta_s", "eta", duration),
        )
        if data.get(name) is not None
    ]
    if data.get("staleness_max") is not None:
        found.append(("stale", f"{number(data['staleness_mean'])} (max {number(data['staleness_max'])})"))
    parts = [f"{name[7:]} {number(value)}" for name, value in data.items() if name.startswith("reward/")]
    idle = [f"{name[5:]} {percent(value)}" for name, value in data.items() if name.startswith("idle/")]
    for name, values in (("parts:", parts), ("idle:", idle)):
        if values:
            found.append((name, ", ".join(values)))
    return found


def _short(value: Json) -> str:
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _panel(data: Mapping[str, Json], num_steps: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, value in figures(data):
        table.add_row(Text(name, style="dim"), Text(printable(value)))
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        ProgressBar(total=max(num_steps, 1), completed=data["step"], width=40),
        Text(f"step {data['step']} of {num_steps}", style="bold"),
    )
    return Group(bar, table)
