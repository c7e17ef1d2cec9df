"""How many sandboxes may be open, and who is next when all places are taken. Knows nothing of what sandboxes are."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any
from weakref import WeakSet


class Places:
    """Served in order, but a task that had a place before goes first: an episode that only waits to be graded must not
    wait for episodes that have not begun."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._known: WeakSet[asyncio.Task[Any]] = WeakSet()  # tasks that had a place
        self._again: deque[asyncio.Future[None]] = deque()
        self._first: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._free:
            self._free -= 1
        else:
            place = asyncio.get_running_loop().create_future()
            (self._again if task in self._known else self._first).append(place)
            try:
                await place
            except asyncio.CancelledError:
                if not place.cancelled():  # it was given in the same moment
                    self.give()
                raise
        self._known.add(task)

    def give(self) -> None:
        for waiting in (self._again, self._first):
            while waiting:
                place = waiting.popleft()
                if not place.done():
                    place.set_result(None)
                    return
        self._free += 1
