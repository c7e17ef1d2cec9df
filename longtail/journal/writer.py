"""One thread that writes rows with group commit.

    append() --deque--> thread: take all that waits, BEGIN, insert, COMMIT (fsync) --call_soon_threadsafe--> append()

append() waits for the commit that holds its rows, and before that, when `capacity` appends wait already, for its turn
(first come, first served, so rows stand in the order in which they were given). After a failed commit nothing more is
written: every later append raises the same error, so the journal has no hole.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from longtail.errors import LongtailError
from longtail.journal.codec import Row
from longtail.journal.database import execute, execute_many, meaning

_INSERT = "INSERT INTO events (trajectory, kind, at_s, data, arrays) VALUES (?, ?, ?, ?, ?)"


@dataclass(slots=True)
class _Append:
    rows: Sequence[Row]
    done: asyncio.Future[None]


class Writer:
    """Owns a connection and its thread. write() belongs to one event loop."""

    def __init__(self, connection: apsw.Connection, directory: Path, *, capacity: int = 4096) -> None:
        self._connection = connection
        self._directory = directory
        self._room = asyncio.Semaphore(capacity)
        self._queue: queue.SimpleQueue[_Append | None] = queue.SimpleQueue()
        self._broken: LongtailError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    async def write(self, rows: Sequence[Row]) -> None:
        """Return when the rows are on disk. A cancelled write may still be carried out, as a whole."""
        await self._room.acquire()
        if self._broken or self._closed:
            self._room.release()
            raise self._broken or RuntimeError("the journal is closed")
        entry = _Append(rows, asyncio.get_running_loop().create_future())
        self._queue.put(entry)
        await entry.done

    async def close(self) -> None:
        """Write what waits, then close the database."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (batch := self._next_batch())[0] is not None:
            entries = [entry for entry in batch if entry is not None]
            error = self._broken or self._commit(entries)
            self._broken = error
            self._answer(entries, error)
            if len(entries) < len(batch):
                break
        self._connection.close()

    def _next_batch(self) -> list[_Append | None]:
        """All that waits, at least one; nothing after a None."""
        batch = [self._queue.get()]
        while batch[-1] is not None:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _commit(self, entries: list[_Append]) -> LongtailError | None:
        try:
            execute(self._connection, "BEGIN IMMEDIATE")
            execute_many(self._connection, _INSERT, (row for entry in entries for row in entry.rows))
            execute(self._connection, "COMMIT")
        except Exception as error:  # whatever it is, those who wait must hear of it
            with suppress(apsw.Error):  # a full disk may have rolled back already
                execute(self._connection, "ROLLBACK")
            return meaning(error, self._directory)
        return None

    def _answer(self, entries: list[_Append], error: LongtailError | None) -> None:
        loop = entries[0].done.get_loop()
        if not loop.is_closed():  # the driver is gone: nobody waits any more
            loop.call_soon_threadsafe(self._settle, entries, error)

    def _settle(self, entries: list[_Append], error: LongtailError | None) -> None:
        for entry in entries:
            self._room.release()
            if entry.done.done():  # cancelled
                continue
            if error is None:
                entry.done.set_result(None)
            else:
                entry.done.set_exception(error)
