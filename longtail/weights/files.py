"""Publication through a file: the trainer writes it, every engine reads it, then the older one goes.

On a directory in shared memory this is a copy in memory; on a shared disk it works between machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from longtail import events
from longtail.ports import Clock, Engine, Journal, Trainer


class FileWeights:
    """Implements ports.WeightSync."""

    def __init__(self, directory: Path, engines: Sequence[Engine], journal: Journal, clock: Clock) -> None:
        self._directory = directory
        self._engines = engines
        self._journal = journal
        self._clock = clock
        self._previous: Path | None = None

    async def publish(self, trainer: Trainer, version: int) -> None:
        started = self._clock.now()
        path = self._directory / f"version-{version:06d}.safetensors"
        await trainer.export(path)
        # durable before any engine can sample with it
        await self._journal.append(events.version_published(version, seconds=self._clock.now() - started))
        await asyncio.gather(*(engine.load(path, version) for engine in self._engines))
        if self._previous not in (None, path):
            self._previous.unlink(missing_ok=True)
        self._previous = path
