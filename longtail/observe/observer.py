"""Observer: what a run calls after each step and evaluation. Owns the tracer and metrics.jsonl."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from longtail.observe.intervals import wilson
from longtail.observe.metrics import FILE_NAME, MetricsFile, step_metrics
from longtail.observe.progress import Progress
from longtail.observe.tracer import LaneTracer
from longtail.types import Group, StepResult, Tally


class Observer:
    """`now` is the run's clock, seconds."""

    def __init__(self, directory: Path, *, num_steps: int, progress: Progress, now: Callable[[], float]) -> None:
        self.trace = LaneTracer(now)
        self._num_steps = num_steps
        self._progress = progress
        self._path = directory / FILE_NAME
        self._file: MetricsFile | None = None  # opened by the first line: a refused run leaves nothing behind
        self._pace: deque[float] = deque(maxlen=8)

    def report(self, step: int, groups: Sequence[Group], result: StepResult) -> None:
        """After the trace of the step has ended."""
        assert self.trace.last is not None, "report() follows trace.step()"
        line = step_metrics(step, groups, result, self.trace.last)
        self._pace.append(line["seconds"] - line["eval_s"])
        line["eta_s"] = sum(self._pace) / len(self._pace) * max(self._num_steps - step, 0)
        if self._file is None:
            self._file = MetricsFile(self._path)
        self._file.write(line)
        self._progress.tell("step", line)

    def report_evaluation(self, step: int, split: str, groups: Sequence[Group]) -> None:
        tally = Tally.of(groups)
        low, high = wilson(tally.successes, tally.scored)
        self._progress.tell(
            "evaluation",
            {
                "step": step,
                "split": split,
                "successes": tally.successes,
                "scored": tally.scored,
                "unscored": tally.unscored,
                "low": low,
                "high": high,
            },
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
