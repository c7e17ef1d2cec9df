"""READ FIRST. The loop that trains a policy on the groups of trajectories it rolls out.

            tasks                                    versions
              |                                          |
              v                                          v
        +-----------+   chat / tools   +---------+   +---------+
        | rollouts  |<---------------->| engine  |<--| weights |
        +-----------+                  +---------+   +---------+
              | groups                                   ^
              v                                          | publish
        advantages -> samples -> packed micro-batches -> trainer
              |                                          |
              +------------------> journal <-------------+ commit

What it is: the whole of training, for single-turn prompts and for long tool-using episodes alike. What it is not: it
knows no implementation (build.py chooses them), no timers and no modes.

Who waits for whom: `take` waits for groups; the trainer's step waits for nothing; with max_lag = 0 rollouts wait for
`release` and start in the next `take`, with max_lag = k they run on while the trainer works.

Traditional, synchronous RL is this loop with max_lag = 0 and one turn per episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from longtail import events
from longtail.config import Config
from longtail.data import pack, trajectories_to_samples
from longtail.ports import Journal, Loss, Rollouts, Tracer, Trainer, WeightSync
from longtail.types import Advantages, Group, PolicyVersion, Sampling, StepResult, Tally, Task


class Algorithm(Protocol):
    """What turns rewards into a gradient (algorithms/presets.py)."""

    @property
    def loss(self) -> Loss: ...

    @property
    def normalization(self) -> str: ...

    def advantages(self, group: Group) -> Advantages | None: ...


class Starter(Protocol):
    def start(self, version: PolicyVersion) -> AbstractAsyncContextManager[Rollouts]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything a run is made of; build.py makes one from a Config."""

    config: Config
    journal: Journal
    trainer: Trainer
    weights: WeightSync
    rollouts: Starter
    algorithm: Algorithm
    trace: Tracer
    evaluations: Mapping[str, Sequence[Task]]  # by split
    report: Callable[[int, Sequence[Group], StepResult], None]
    report_evaluation: Callable[[int, str, Sequence[Group]], None]
    evaluated: set[tuple[int, str]]  # (step, split) that the journal already holds


async def train(run: Run) -> int:
    """Roll out groups of trajectories, learn from them, publish the new weights; forget nothing. Returns the step.

    There is one loop. max_lag=0 is on-policy; max_lag=k lets rollouts run k versions behind.
    Holds always: a trained group is never staler than max_lag; a version is journaled before any
    engine samples from it; every admitted group is taken or dropped exactly once, with a reason.
    """
    config = run.config
    step = await run.journal.resume(run.trainer)
    await run.weights.publish(run.trainer, version=step)
    async with run.rollouts.start(version=step) as rollouts:
        while step < config.num_steps:
            with run.trace.step(step):
                await evaluate(run, rollouts, step)
                groups_P = await rollouts.take(config.groups_per_step)
                advantages_P = [run.algorithm.advantages(group) for group in groups_P]
                samples_D = trajectories_to_samples(groups_P, advantages_P, run.algorithm.normalization)
                microbatches = pack(samples_D, max_tokens=config.tokens_per_microbatch)
                with run.trace.busy("train"):
                    result = await run.trainer.step(microbatches, loss=run.algorithm.loss)
                step += 1
                with run.trace.busy("commit"):  # only this makes the step real
                    await run.journal.commit(step, groups_P, advantages_P, result)
                with run.trace.busy("sync"):
                    await run.weights.publish(run.trainer, version=step)
                rollouts.release(groups_P, version=step)
            run.report(step, groups_P, result)
        await evaluate(run, rollouts, step)
    await run.journal.finish(step)
    return step


async def evaluate(run: Run, rollouts: Rollouts, step: int) -> None:
    """Success on the evaluation splits with the weights of `step`, where one is due and the journal has none."""
    config = run.config.eval
    if step not in (0, run.config.num_steps) and (config.every == 0 or step % config.every):
        return
    sampling = Sampling(max_tokens=run.config.sampling.max_tokens, temperature=config.temperature)
    for split, tasks in run.evaluations.items():
        if (step, split) in run.evaluated:
            continue
        with run.trace.busy("eval", split=split):
            groups = await rollouts.once(tasks, name=f"eval-{split}-{step}", sampling=sampling)
        await run.journal.append(events.eval_finished(step=step, split=split, tally=Tally.of(groups)))
        run.evaluated.add((step, split))
        run.report_evaluation(step, split, groups)
