"""What is measured of each step, declared once, and the file that keeps it (metrics.jsonl, one JSON object per step).

Means are over usable attempts only (scored, not lost to infrastructure); `attempts` and `unusable` say how many were
counted and left out. A step that is done again after a crash writes its line again; readers take the last one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from longtail.errors import DiskFull, disk_is_full
from longtail.observe.tracer import StepRecord
from longtail.types import Finish, Group, Json, StepResult, Trajectory

FILE_NAME = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str  # "idle/*" declares all names with that prefix
    unit: str  # "" for plain numbers, "share" for 0..1
    reduction: str  # over steps: mean, sum, max, last
    about: str


METRICS = (
    Metric("step", "", "last", "optimizer steps done"),
    Metric("reward", "", "mean", "mean reward of usable attempts"),
    Metric("reward/*", "", "mean", "mean of one part of the score, over usable attempts that have it"),
    Metric("success", "share", "mean", "usable attempts that solved their task"),
    Metric("groups", "groups", "sum", "trained"),
    Metric("groups_solved_all", "groups", "sum", "groups whose usable attempts all succeeded: no signal"),
    Metric("groups_solved_none", "groups", "sum", "groups of which none did"),
    Metric("groups_same_reward", "groups", "sum", "groups whose usable attempts have equal rewards: no advantage"),
    Metric("attempts", "attempts", "sum", "usable"),
    Metric("unusable", "attempts", "sum", "left out of every mean"),
    Metric("unusable/*", "attempts", "sum", "left out, by outcome"),
    Metric("truncated", "share", "mean", "usable attempts whose last reply ran into its token limit"),
    Metric("turns", "turns", "mean", "model calls of a usable attempt"),
    Metric("reply_tokens", "tokens", "mean", "sampled tokens of a usable attempt"),
    Metric("tokens", "tokens", "sum", "sampled, in all attempts of the trained groups"),
    Metric("tokens_per_s", "tokens/s", "mean", "sampled tokens by wall time of the step outside evaluation"),
    Metric("staleness_mean", "versions", "mean", "of trained tokens: version they train minus version they come from"),
    Metric("staleness_max", "versions", "max", "the same, of the oldest token"),
    Metric("seconds", "s", "sum", "wall time of the step"),
    Metric("train_s", "s", "sum", "of it in the optimizer step"),
    Metric("eval_s", "s", "sum", "of it in evaluation, for which the loop waits"),
    Metric("idle/*", "share", "mean", "share of the step in which the lane did nothing"),
    Metric("train/*", "", "mean", "what the trainer says of its step"),
    Metric("eta_s", "s", "last", "wall time to the last step at the pace of the last eight, without evaluation"),
)
_BY_NAME = {metric.name: metric for metric in METRICS}
_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": math.fsum,
    "max": max,
    "last": lambda values: values[-1],
}


def declared(name: str) -> Metric:
    """The declaration of a metric's name; KeyError for one that has none."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return _BY_NAME[f"{name.split('/', 1)[0]}/*"]


def step_metrics(step: int, groups: Sequence[Group], result: StepResult, record: StepRecord) -> dict[str, Json]:
    """The line of one step, without eta. `step` counts the steps done, this one included."""
    everyone = [t for group in groups for t in group.trajectories]
    usable = [t for t in everyone if t.usable]
    lost = Counter(t.outcome.value for t in everyone if not t.usable)
    tokens = sum(_reply_tokens(t) for t in everyone)
    eval_s = record.busy_s.get("eval", 0.0)
    ages = [step - 1 - v for t in usable for call in t.model_calls for v in call.completion.versions]
    return {
        "step": step,
        "reward": _mean(t.reward for t in usable),
        **{f"reward/{part}": value for part, value in _score_parts(usable).items()},
        "success": _mean(t.solved for t in usable),
        **_group_counts(groups),
        "attempts": len(usable),
        "unusable": len(everyone) - len(usable),
        **{f"unusable/{outcome}": count for outcome, count in sorted(lost.items())},
        "truncated": _mean(_truncated(t) for t in usable),
        "turns": _mean(len(t.model_calls) for t in usable),
        "reply_tokens": _mean(_reply_tokens(t) for t in usable),
        "tokens": tokens,
        "tokens_per_s": tokens / (record.wall_s - eval_s) if record.wall_s > eval_s else None,
        "staleness_mean": _mean(ages),
        "staleness_max": max(ages, default=None),
        "seconds": record.wall_s,
        "train_s": result.seconds,
        "eval_s": eval_s,
        **{f"idle/{lane}": share for lane, share in record.idle.items()},
        **{f"train/{name}": value for name, value in sorted(result.metrics.items())},
    }


def _group_counts(groups: Sequence[Group]) -> dict[str, int]:
    solved = [[t.solved for t in group.usable] for group in groups if group.usable]
    return {
        "groups": len(groups),
        "groups_solved_all": sum(all(flags) for flags in solved),
        "groups_solved_none": sum(not any(flags) for flags in solved),
        "groups_same_reward": sum(len({t.reward for t in group.usable}) == 1 for group in groups),
    }


def _score_parts(usable: Iterable[Trajectory]) -> dict[str, float | None]:
    parts: dict[str, list[float]] = {}
    for trajectory in usable:
        if isinstance(trajectory.score, Mapping):
            for part, value in trajectory.score.items():
                if part != "reward":  # the sum of the parts, which has a line of its own
                    parts.setdefault(part, []).append(value)
    return {part: _mean(values) for part, values in sorted(parts.items())}


def _truncated(trajectory: Trajectory) -> bool:
    calls = trajectory.model_calls
    return bool(calls) and calls[-1].completion.finish is Finish.LENGTH


def _reply_tokens(trajectory: Trajectory) -> int:
    return sum(len(call.completion.ids) for call in trajectory.model_calls)


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [float(value) for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None


def reduce_steps(lines: Sequence[Mapping[str, Json]]) -> dict[str, float]:
    """Each metric over all steps by its declared reduction; a step in which it is unknown is left out."""
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if isinstance(value, int | float):
                values.setdefault(name, []).append(value)
    return {name: _REDUCTIONS[declared(name).reduction](numbers) for name, numbers in values.items()}


class MetricsFile:
    """Appends lines; owns the open file. Raises DiskFull."""

    def __init__(self, path: Path) -> None:
        self._directory = path.parent
        torn = _is_torn(path)
        self._file = path.open("a", encoding="utf-8")
        if torn:  # a crash cut the last line: the next one must not join it
            self._file.write("\n")

    def write(self, line: Mapping[str, Json]) -> None:
        try:
            self._file.write(dump_line(line) + "\n")
            self._file.flush()
        except OSError as error:
            if disk_is_full(error):
                raise DiskFull(f"no space left for the run in {self._directory}") from error
            raise

    def close(self) -> None:
        with suppress(OSError):  # what a full disk left in the buffer; the journal has it all
            self._file.close()


def _is_torn(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def read_metrics(path: Path) -> list[dict[str, Json]]:
    """The last line of each step, by step; [] when there is no file. A line cut by a crash is passed over."""
    if not path.exists():
        return []
    steps: dict[int, dict[str, Json]] = {}
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(cast("dict[str, Any]", line).get("step"), int):
            steps[line["step"]] = line
    return [steps[step] for step in sorted(steps)]


def dump_line(data: Mapping[str, Json]) -> str:
    """One line of strict JSON: what is not a finite number becomes null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in data.items()}
    return json.dumps(finite, separators=(",", ":"), allow_nan=False)
