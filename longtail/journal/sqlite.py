"""SqliteJournal: the Journal port on one SQLite file in the run directory.

A step is real when its step.committed is on disk. Where a checkpoint is due, the trainer's directory is complete before
that event is written, so a crash at any instruction leaves the old step or the new one:

    trainer.save(checkpoints/step-000010)   crash: no event names it; the next resume removes it
    append step.committed                   the cut
    remove checkpoints beyond `keep`        crash: the next commit or resume removes them

Steps between two checkpoints are journaled but come back as the checkpoint before them: they are done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from longtail import events as ev
from longtail.errors import LongtailError
from longtail.history import Position
from longtail.journal import checkpoints
from longtail.journal.codec import row_of
from longtail.journal.database import is_full, meaning, open_writer
from longtail.journal.lock import RunLock, lock_directory, unusable
from longtail.journal.reader import read_events, standing
from longtail.journal.writer import Writer
from longtail.ports import Trainer
from longtail.types import Advantages, Event, Group, StepResult

_SIGNS_OF_LIFE = (ev.RUN_RESUMED, ev.VERSION_PUBLISHED, ev.GROUP_ADMITTED, ev.ATTEMPT_STARTED, ev.STEP_COMMITTED)


class SqliteJournal:
    """Owns the run directory: its lock, its journal.db and which checkpoints stay. Made by open()."""

    def __init__(
        self,
        directory: Path,
        lock: RunLock,
        writer: Writer,
        *,
        checkpoint_every: int,
        keep: int,
        wall: Callable[[], float],
    ) -> None:
        self.directory = directory
        self._lock = lock
        self._writer = writer
        self._checkpoint_every = checkpoint_every
        self._keep = keep
        self._wall = wall
        self._trainer: Trainer | None = None
        self._step = 0  # last committed
        self._checkpoints: list[str] = []  # of live steps, oldest first
        self._position = Position()
        self.rolled_back: tuple[int, ...] = ()  # committed steps that resume() took back: they are done again

    @classmethod
    def open(
        cls, directory: Path, *, checkpoint_every: int = 1, keep: int = 2, wall: Callable[[], float]
    ) -> SqliteJournal:
        """Make or continue the run in `directory`. Raises UserError (another process drives it, ...) and DiskFull."""
        lock = lock_directory(directory)
        try:
            (directory / "checkpoints").mkdir(exist_ok=True)
            writer = Writer(open_writer(directory), directory)
        except OSError as error:
            lock.close()
            raise unusable(directory, error) from error
        except BaseException:
            lock.close()
            raise
        return cls(directory, lock, writer, checkpoint_every=checkpoint_every, keep=keep, wall=wall)

    async def append(self, *events: Event) -> None:
        """Return when the events are on disk, together. Raises TypeError for what is not JSON, DiskFull."""
        if events:
            now_s = self._wall()
            await self._writer.write([row_of(event, now_s) for event in events])

    async def resume(self, trainer: Trainer) -> int:
        """Load the last committed step whose checkpoint is there, and take back what came after it."""
        self._trainer = trainer
        stands = standing(self.directory)
        step, name = stands.step, stands.checkpoint
        if name:
            await trainer.load(self.directory / name)
        self.rolled_back = stands.rolled_back
        if not self._is_new():
            await self.append(ev.run_resumed(step=step, rolled_back=self.rolled_back, checkpoint=name))
        self._step, self._position = step, stands.past.position()
        saved = (s.checkpoint for s in stands.past.steps)
        self._checkpoints = [name for name in saved if checkpoints.is_complete(self.directory, name)]
        await self._prune()
        return step

    @property
    def step(self) -> int:
        """The last committed step."""
        return self._step

    def position(self) -> Position:
        """Which groups the scheduler admits first, as of the last resume()."""
        return self._position

    async def commit(
        self, step: int, groups: Sequence[Group], advantages: Sequence[Advantages | None], result: StepResult
    ) -> None:
        assert step == self._step + 1, f"step {step} must follow the last committed step {self._step}"
        name = await self._save(step) if step % self._checkpoint_every == 0 else ""
        await self.append(ev.step_committed(step, groups, advantages, result, checkpoint=name))
        self._step = step
        if name:
            self._checkpoints.append(name)
            await self._prune()

    async def finish(self, step: int) -> None:
        """The last step has a checkpoint whatever `checkpoint_every` says, then the run is over."""
        assert step == self._step, f"step {step} must be the last committed step {self._step}"
        await self._save_last()
        await self.append(ev.run_finished(step=step))

    async def stop(self, reason: str, *, save: bool = False) -> None:
        """The run ends before its last step, on purpose; the same command resumes it.

        `save`: the trainer still stands at the last committed step, which gets its checkpoint.
        """
        if save:
            with suppress(LongtailError):  # it goes on at an older one then
                await self._save_last()
        await self.append(ev.run_stopped(step=self._step, reason=reason))

    async def close(self) -> None:
        await self._writer.close()
        self._lock.close()

    async def _save_last(self) -> None:
        if self._step and checkpoints.name_of(self._step) not in self._checkpoints:
            name = await self._save(self._step)
            await self.append(ev.checkpoint_saved(step=self._step, checkpoint=name))
            self._checkpoints.append(name)
            await self._prune()

    async def _save(self, step: int) -> str:
        assert self._trainer is not None, "resume() comes before the first commit()"
        name = checkpoints.name_of(step)
        try:
            await self._trainer.save(self.directory / name)
            checkpoints.sync_directory(self.directory / "checkpoints")
        except OSError as error:
            if is_full(error):
                raise meaning(error, self.directory) from error
            raise
        return name

    async def _prune(self) -> None:
        self._checkpoints = self._checkpoints[-self._keep :]
        await asyncio.to_thread(checkpoints.prune, self.directory, self._checkpoints)

    def _is_new(self) -> bool:
        """Whether nothing was rolled out yet: a run.started alone is a new run."""
        return next(read_events(self.directory, kinds=_SIGNS_OF_LIFE), None) is None
