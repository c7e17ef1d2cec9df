"""TRL's GRPOTrainer on given samples, in the environment that holds TRL: a script, it imports nothing of longtail.

Reads a job file; then, for each line on stdin, lets the trainer's own loop do one optimizer step over all samples and
prints its seconds. Generation and rewards are replaced by the samples; the rest is TRL's: padding, forward, loss,
backward, clipping, AdamW.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownLambdaType=false

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def padded(rows: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and their mask, padded with 0."""
    width = max(len(row) for row in rows)
    fill = [[0] * (width - len(row)) for row in rows]
    ones = [[1] * len(row) for row in rows]
    if side == "left":
        both = [f + r for f, r in zip(fill, rows, strict=True)], [f + o for f, o in zip(fill, ones, strict=True)]
    else:
        both = [r + f for r, f in zip(rows, fill, strict=True)], [o + f for o, f in zip(ones, fill, strict=True)]
    return torch.tensor(both[0]), torch.tensor(both[1])


def inputs_of(rows: list[dict[str, Any]], total: int) -> dict[str, torch.Tensor]:
    """One micro-batch as GRPOTrainer prepares it."""
    prompt_ids, prompt_mask = padded([row["ids"][: row["prompt"]] for row in rows], "left")
    completion_ids, completion_mask = padded([row["ids"][row["prompt"] :] for row in rows], "right")
    said, _ = padded([[int(x) for x in row["mask"][row["prompt"] :]] for row in rows], "right")
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": said,
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "old_per_token_logps": torch.full(completion_ids.shape, -6.9),
        "num_items_in_batch": torch.tensor(total),
    }


class Turns(TrainerCallback):
    """Waits for a line before each step, says how long the step took."""

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        sys.stdin.readline()
        self.started = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        print("seconds", time.perf_counter() - self.started, flush=True)


class Update(GRPOTrainer):
    """GRPOTrainer whose rollouts are already there."""

    ready: list[dict[str, torch.Tensor]]
    turn = 0

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, torch.Tensor]:
        self.turn += 1
        return self.ready[(self.turn - 1) % len(self.ready)]


def main(job: dict[str, Any]) -> None:
    torch.set_num_threads(job["threads"])
    rows, size = job["rows"], job["batch"]
    total = sum(sum(row["mask"]) for row in rows)
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=len(rows) // size,
            num_generations=size,
            max_steps=1000,
            learning_rate=1e-4,
            max_grad_norm=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Update(
            model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
            reward_funcs=lambda completions, **columns: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["x"] * len(rows)}),
            processing_class=AutoTokenizer.from_pretrained(job["model"]),
            callbacks=[Turns()],
        )
        trainer.ready = [inputs_of(rows[first : first + size], total) for first in range(0, len(rows), size)]
        trainer.train()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
