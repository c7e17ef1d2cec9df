"""How many sandboxes may be open, and who is next when all places are taken. Knows nothing of what sandboxes are."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary

Holder = asyncio.Task[Any]


class Places:
    """Served in order, but a task that had a place before goes first: an episode that only waits to be graded must not
    wait for episodes that have not begun.

    Beside the `count` places there are a few for tasks that hold one already. Without them, tasks that each hold a
    place and ask for a second one (to grade in, for a moment) would wait for each other.
    """

    def __init__(self, count: int) -> None:
        self._kept = max(1, count // 8)  # for second ones
        self._free = count + self._kept
        self._held: WeakKeyDictionary[Holder, int] = WeakKeyDictionary()  # by tasks that have, or had, a place
        self._lines: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque(), deque())  # by rank

    async def take(self) -> Holder:
        """Returns whose place it is, for give()."""
        task = asyncio.current_task()
        assert task is not None
        rank = 0 if self._held.get(task) else 1 if task in self._held else 2  # holds one, had one, begins
        if self._left(rank):
            self._free -= 1
        else:
            place = asyncio.get_running_loop().create_future()
            self._lines[rank].append(place)
            try:
                await place
            except asyncio.CancelledError:
                if not place.cancelled():  # it was given in the same moment
                    self._return()
                raise
        self._held[task] = self._held.get(task, 0) + 1
        return task

    def give(self, holder: Holder) -> None:
        self._held[holder] -= 1
        self._return()

    def _left(self, rank: int) -> int:
        return max(0, self._free - (self._kept if rank else 0))

    def _return(self) -> None:
        self._free += 1
        for rank, waiting in enumerate(self._lines):
            while waiting and self._left(rank):
                place = waiting.popleft()
                if not place.done():
                    self._free -= 1
                    place.set_result(None)
