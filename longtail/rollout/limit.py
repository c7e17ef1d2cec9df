"""The time limit of an episode, as its attempt meets it. Not the deadline of the attempt (attempt.py).

What counts is what the policy takes: its tools, and its tokens while they are computed. What it waits for others does
not count: the queue of the engine, a place for a sandbox. Waits that overlap are left out once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from longtail.errors import LimitReached
from longtail.ports import Clock


@dataclass(slots=True)
class Wait:
    start: float
    end: float = math.inf  # it goes on


class TimeLimit:
    """Starts to run when it is made."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._start = clock.now()
        self._waits: list[Wait] = []
        self._counts = asyncio.Event()
        self._counts.set()

    def left(self) -> float:
        """Seconds. Raises LimitReached when there are none."""
        left = self._end() - self._clock.now()
        if left <= 0:
            raise self.reached()
        return left

    def reached(self) -> LimitReached:
        return LimitReached(f"time limit of {self._seconds:g} s")

    @contextmanager
    def waiting(self) -> Generator[Wait]:
        """Nothing counts until the body ends; then what came after the wait's end, if the body has set one, does."""
        wait = Wait(self._clock.now())
        self._waits.append(wait)
        self._counts.clear()
        try:
            yield wait
        finally:
            wait.end = min(wait.end, self._clock.now())
            if all(wait.end < math.inf for wait in self._waits):
                self._counts.set()

    @asynccontextmanager
    async def spending(self) -> AsyncGenerator[None]:
        """The body is cancelled at the limit, and LimitReached raised."""
        limit = asyncio.timeout(None)  # without a time of its own: the alarm ends it
        try:
            async with limit:
                alarm = asyncio.create_task(self._expire(limit))
                try:
                    yield
                finally:
                    alarm.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            raise self.reached() from None

    async def _expire(self, limit: asyncio.Timeout) -> None:
        while True:
            await self._counts.wait()
            left = self._end() - self._clock.now()
            if left <= 0:
                return limit.reschedule(0.0)  # now
            await self._clock.sleep(left)

    def _end(self) -> float:
        now = self._clock.now()
        return self._start + self._seconds + covered((wait.start, min(wait.end, now)) for wait in self._waits)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans (start, end)."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
