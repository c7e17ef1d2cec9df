"""A step that is begun is finished: what is cancelled in between goes on until the step is committed and reported.

So when a run stops, the trainer's weights are those of the last committed step, and every committed step has its line
in the metrics. Only what ends by itself is held back like this; waiting for groups is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from longtail.ports import Journal, Loss, Trainer, WeightSync
from longtail.types import Advantages, Group, MicroBatch, StepResult

T = TypeVar("T")
Report = Callable[[int, Sequence[Group], StepResult], None]


class WholeSteps:
    """The ports of one loop, put around those of a run."""

    def __init__(self, trainer: Trainer, journal: Journal, weights: WeightSync, report: Report) -> None:
        self.settled = True  # the trainer's weights are those of the last committed step
        self.trainer: Trainer = _WholeTrainer(trainer, self)
        self.journal: Journal = _WholeJournal(journal, self)
        self.weights: WeightSync = _WholeWeights(weights, self)
        self._report = report
        self._within = False  # from the trainer's step to the report
        self._cancelled = False

    def begin(self) -> None:
        self._within, self.settled = True, False

    def report(self, step: int, groups: Sequence[Group], result: StepResult) -> None:
        """Raises CancelledError where one was held back."""
        self._report(step, groups, result)
        self._within = False
        if self._cancelled:
            raise asyncio.CancelledError

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._within:
            return await work
        job, task = asyncio.ensure_future(work), asyncio.current_task()
        assert task is not None  # it runs in one
        while not job.done():
            try:
                await asyncio.shield(job)
            except asyncio.CancelledError:
                if job.cancelled():
                    raise
                task.uncancel()
                self._cancelled = True
            except BaseException:
                break  # of the job: result() raises it
        return job.result()


class _WholeTrainer:
    """Implements ports.Trainer."""

    def __init__(self, trainer: Trainer, whole: WholeSteps) -> None:
        self._trainer, self._whole = trainer, whole
        self.export, self.save, self.load, self.close = trainer.export, trainer.save, trainer.load, trainer.close

    async def step(self, microbatches: Sequence[MicroBatch], loss: Loss) -> StepResult:
        self._whole.begin()
        return await self._whole.to_its_end(self._trainer.step(microbatches, loss))


class _WholeJournal:
    """Implements ports.Journal."""

    def __init__(self, journal: Journal, whole: WholeSteps) -> None:
        self._journal, self._whole = journal, whole
        self.append, self.resume = journal.append, journal.resume
        self.finish, self.close = journal.finish, journal.close

    async def commit(
        self, step: int, groups: Sequence[Group], advantages: Sequence[Advantages | None], result: StepResult
    ) -> None:
        await self._whole.to_its_end(self._journal.commit(step, groups, advantages, result))
        self._whole.settled = True


class _WholeWeights:
    """Implements ports.WeightSync."""

    def __init__(self, weights: WeightSync, whole: WholeSteps) -> None:
        self._weights, self._whole = weights, whole

    async def publish(self, trainer: Trainer, version: int) -> None:
        await self._whole.to_its_end(self._weights.publish(trainer, version))
