"""Supervised training of chats, for warm starts: cross-entropy on the same packed step as RL.

    rows (ids, weights) -> batches of `batch_tokens` -> pack -> TorchTrainer.step(CrossEntropy) -> held-out accuracy

Knows neither chat templates nor where chats come from: rows arrive as ids, with what each token counts in the loss.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from longtail.errors import UserError
from longtail.ports import Loss
from longtail.trainers.trainer import TorchTrainer
from longtail.types import MicroBatch

Row = tuple[Sequence[int], Sequence[float]]  # ids (T,) and weight of each in the loss (T,): 0 is not trained


class Packer(Protocol):
    def __call__(self, rows_D: Sequence[Row], max_tokens: int) -> list[MicroBatch]:
        """data.pack_supervised"""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What one report says. `held_out_*` are of the step's evaluation; None between two of them."""

    step: int  # optimizer steps done
    num_steps: int
    loss: float  # of this step's batch
    tokens_per_second: float
    held_out_nll: float | None = None
    held_out_accuracy: float | None = None  # share of the trained tokens that are the likeliest, weighted


def row_of(ids: Sequence[int], said: Sequence[bool], observation_weight: float) -> Row:
    """A row from which of its tokens the policy says (the end token of its turns too)."""
    return ids, [1.0 if mine else observation_weight for mine in said]


def batches(rows: Sequence[Row], batch_tokens: int, *, epochs: int = 1, seed: int = 0) -> list[list[int]]:
    """Indices of the rows of each optimizer step, shuffled anew in each epoch, about `batch_tokens` in each batch."""
    if not rows:
        raise UserError("supervised training needs at least one example, got none")
    shuffle = random.Random(seed)
    steps: list[list[int]] = []
    for _ in range(epochs):
        order = list(range(len(rows)))
        shuffle.shuffle(order)
        batch: list[int] = []
        tokens = 0
        for index in order:
            length = len(rows[index][0])
            if batch and tokens + length > batch_tokens:
                steps.append(batch)
                batch, tokens = [], 0
            batch.append(index)
            tokens += length
        steps.append(batch)
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How batches are run, beside what is in them."""

    loss: Loss
    pack: Packer
    microbatch_tokens: int = 8192
    eval_every: int = 100  # steps
    save_every: int = 0  # steps; 0: only at the end and when cancelled
    save_to: Path | None = None


async def fit(
    trainer: TorchTrainer,
    rows: Sequence[Row],
    steps: Sequence[Sequence[int]],
    held_out: Sequence[Row],
    how: Fit,
) -> AsyncIterator[Progress]:
    """Train on the batches that the trainer has not done yet; one Progress a step. What is cancelled saves too."""
    held = how.pack(held_out, how.microbatch_tokens) if held_out else []
    try:
        for number in range(trainer.steps, len(steps)):
            microbatches = how.pack([rows[index] for index in steps[number]], how.microbatch_tokens)
            result = await trainer.step(microbatches, how.loss)
            done = number + 1
            last = done == len(steps)
            evaluated = await trainer.evaluate(held) if held and (done % how.eval_every == 0 or last) else {}
            if how.save_to and (last or (how.save_every and done % how.save_every == 0)):
                await trainer.save(how.save_to)
            yield Progress(
                step=done,
                num_steps=len(steps),
                loss=result.metrics["loss"],
                tokens_per_second=result.metrics["tokens_per_second"],
                held_out_nll=evaluated.get("nll"),
                held_out_accuracy=evaluated.get("accuracy"),
            )
    except asyncio.CancelledError:
        if how.save_to:
            await trainer.save(how.save_to)  # after the step that it is at
        raise
