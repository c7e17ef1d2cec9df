"""The time limit of an episode, as the waits of its attempt meet it. Not the deadline of the attempt (attempt.py)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from longtail.errors import LimitReached
from longtail.ports import Clock, Timeout


class TimeLimit:
    """Starts to run when it is made."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._end = clock.now() + seconds

    @asynccontextmanager
    async def wait(self) -> AsyncGenerator[None]:
        """The body is cancelled at the limit. Raises LimitReached then, and at once when the limit has passed."""
        left = self._end - self._clock.now()
        if left <= 0:
            raise self._reached()
        limit: Timeout | None = None
        try:
            async with self._clock.timeout(left) as limit:
                yield
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            raise self._reached() from None

    def give_back(self, seconds: float) -> None:
        """So much of the time was spent in queues: it is not the policy's."""
        self._end += seconds

    def _reached(self) -> LimitReached:
        return LimitReached(f"time limit of {self._seconds:g} s")
