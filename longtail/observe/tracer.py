"""LaneTracer: how long each lane was busy in each step. Implements ports.Tracer.

A lane is busy while at least one of its bodies runs, however many run at once; a busy time that crosses the border of a
step is counted in both, each its part. One event loop, no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from longtail.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    step: int
    wall_s: float
    busy_s: Mapping[str, float]  # lane -> seconds, at most wall_s

    @property
    def idle(self) -> dict[str, float]:
        """Share of the step in which the lane did nothing."""
        return {lane: 1.0 - busy / self.wall_s if self.wall_s > 0 else 0.0 for lane, busy in self.busy_s.items()}


@dataclass(slots=True)
class _Lane:
    running: int = 0  # bodies open now
    since_s: float = 0.0  # when `running` left 0, or the step began
    busy_s: float = 0.0  # in this step, without the open part

    def busy_until(self, now_s: float) -> float:
        return self.busy_s + (now_s - self.since_s if self.running else 0.0)


class LaneTracer:
    """`now` is the run's clock, seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lanes: dict[str, _Lane] = {}
        self._step = 0
        self._began_s = now()
        self.last: StepRecord | None = None  # of the last step that ended

    @contextmanager
    def step(self, step: int) -> Generator[None]:
        """`step` is the number of steps done before it."""
        self._begin(step)
        try:
            yield
        finally:
            self.last = self.so_far()
            self._begin(step + 1)

    @contextmanager
    def busy(self, lane: str, **attributes: Json) -> Generator[None]:
        entry = self._lanes.setdefault(lane, _Lane())
        if entry.running == 0:
            entry.since_s = self._now()
        entry.running += 1
        try:
            yield
        finally:
            entry.running -= 1
            if entry.running == 0:
                entry.busy_s += self._now() - entry.since_s

    def so_far(self) -> StepRecord:
        """The step that runs now, up to now."""
        now_s = self._now()
        busy = {name: lane.busy_until(now_s) for name, lane in sorted(self._lanes.items())}
        return StepRecord(step=self._step, wall_s=now_s - self._began_s, busy_s=busy)

    def _begin(self, step: int) -> None:
        self._step, self._began_s = step, self._now()
        for lane in self._lanes.values():
            lane.busy_s, lane.since_s = 0.0, self._began_s
