"""Tokens/s of a training step: against the bare forward and backward pass, and against TRL's update.

The samples are groups of eight attempts that share the given part of their tokens (p0, p50, p90), with lengths and
turns like those of repair episodes, which share about half: `repair` is against TRL's update on these.

The step is the trainer's whole step: packing, loss, clipping, AdamW, metrics. The bare pass is transformers' modules on
the same rows, packed but without shared prefixes: log-probabilities of the trained tokens, their weighted sum,
backward; nothing else. Both run in turns with the same threads; a token counts once for each sample that holds it.

TRL runs in an environment of its own (`make bench-train` makes `.venv-trl`) and is left out where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from longtail.algorithms.presets import preset
from longtail.bench import compared
from longtail.config import TrainerConfig
from longtail.data import pack
from longtail.models.attention import TreePlan, packed_hidden
from longtail.models.load import load_model
from longtail.trainers.tiny import new_model, new_tokenizer
from longtail.trainers.trainer import TorchTrainer
from longtail.types import Sample, Segment

GROUP = 8
LENGTH = 450  # mean tokens of an episode
TURN = 18  # tokens of a reply
SAID = 0.4  # share of the tokens after the shared prefix that the policy said
VOCABULARY = 1024
MICROBATCH = 8192  # tokens
TRL_PYTHON = Path(os.environ.get("LONGTAIL_TRL_PYTHON", ".venv-trl/bin/python"))

Seconds = Callable[[], float]


def records() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        model = _model(Path(scratch))
        for name, shared in (("limit.p0", 0.0), ("limit.p50", 0.5), ("limit.p90", 0.9)):
            samples = episodes(4, shared)
            with _step(model, samples) as ours:
                theirs = _bare(model, samples)
                against = "bare forward+backward, packed, prefixes not shared"
                yield compared(name, _tokens(samples), against, _in_turns(name, ours, theirs, 5))
        if not TRL_PYTHON.exists():
            print(f"trl is left out: there is no {TRL_PYTHON}; `make bench-train` makes it", file=sys.stderr)
            return
        for name, shared in (("trl.p0", 0.0), ("repair", 0.5), ("trl.p90", 0.9)):
            samples = episodes(4, shared)
            with _step(model, samples) as ours, _trl(model, samples, shared, Path(scratch)) as theirs:
                yield compared(name, _tokens(samples), "TRL GRPOTrainer update", _in_turns(name, ours, theirs, 3))


def episodes(groups: int, shared: float) -> list[Sample]:
    """Groups of attempts: a common prefix, then replies and observations in turns."""
    rng = random.Random(groups)
    samples: list[Sample] = []
    for group in range(groups):
        length = min(1024, max(64, round(LENGTH * rng.lognormvariate(-0.08, 0.4))))
        prefix = [rng.randrange(8, VOCABULARY) for _ in range(max(1, round(length * shared)))]
        for member in range(GROUP):
            tail = max(8, round((length - len(prefix)) * rng.uniform(0.8, 1.2)))
            mask = [False] * len(prefix) + [t % round(TURN / SAID) < TURN for t in range(tail)]
            samples.append(
                Sample(
                    group_id=str(group),
                    trajectory_id=f"{group}.{member}",
                    ids=(*prefix, *(rng.randrange(8, VOCABULARY) for _ in range(tail))),
                    mask=tuple(mask),
                    logprobs=tuple(-6.9 if said else 0.0 for said in mask),
                    versions=tuple(0 if said else -1 for said in mask),
                    advantages=(rng.choice((-1.0, 1.0)),) * len(mask),
                    temperature=1.0,
                    weight=1e-4,
                )
            )
    return samples


def _tokens(samples: list[Sample]) -> int:
    return sum(len(sample.ids) for sample in samples)


def _model(scratch: Path) -> str:
    """A model of the shape of tiny-repair with random weights."""
    tokenizer = new_tokenizer(["def main():\n    return 0\n"], VOCABULARY)
    path = scratch / "model"
    new_model(tokenizer, vocab_size=VOCABULARY).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def _in_turns(name: str, ours: Seconds, theirs: Seconds, repeats: int) -> list[tuple[float, float]]:
    pairs: list[tuple[float, float]] = []
    for repeat in range(repeats + 1):
        pair = ours(), theirs()
        label = "warm-up" if repeat == 0 else str(repeat)
        print(f"{name} {label}: ours {pair[0]:.2f} s, theirs {pair[1]:.2f} s", file=sys.stderr)
        if repeat:
            pairs.append(pair)
    return pairs


# --- the three sides ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _step(model: str, samples: list[Sample]) -> Generator[Seconds]:
    trainer = TorchTrainer(model, TrainerConfig(), num_steps=100, threads=torch.get_num_threads())
    loss = preset("grpo").loss

    def seconds() -> float:
        started = time.perf_counter()
        asyncio.run(trainer.step(pack(samples, MICROBATCH), loss))
        return time.perf_counter() - started

    yield seconds
    asyncio.run(trainer.close())


def _bare(model: str, samples: list[Sample]) -> Seconds:
    module = load_model(model)
    alone = [pack([sample], MICROBATCH)[0] for sample in samples]

    def one(first: int, last: int) -> None:
        ids: list[Tensor] = []
        segments: list[Segment] = []
        sources: list[Tensor] = []
        size = 0
        for batch in alone[first:last]:
            ids.append(torch.tensor(batch.ids))
            sources.append(torch.tensor(batch.sources) + size)
            segments += [Segment(start=s.start + size, end=s.end + size) for s in batch.segments]
            size += len(batch.ids)
        positions = torch.cat([torch.arange(len(part)) for part in ids])
        hidden = packed_hidden(module, torch.cat(ids), positions, TreePlan(segments))
        logits = module.lm_head(hidden[torch.cat(sources)])
        targets = torch.cat([torch.tensor(batch.target_ids) for batch in alone[first:last]])
        (-1e-4 * logits.log_softmax(-1).gather(1, targets[:, None])).sum().backward()

    def seconds() -> float:
        started = time.perf_counter()
        module.zero_grad()
        for first in range(0, len(alone), 2 * GROUP):
            one(first, first + 2 * GROUP)
        return time.perf_counter() - started

    return seconds


@contextlib.contextmanager
def _trl(model: str, samples: list[Sample], shared: float, scratch: Path) -> Generator[Seconds]:
    """TRL's own loop in its own process, stopped before each step until it is its turn."""
    rows = [
        {"ids": sample.ids, "mask": sample.mask, "prompt": sample.mask.index(True), "advantage": sample.advantages[0]}
        for sample in samples
    ]
    job = scratch / f"trl-{shared}.json"
    job.write_text(json.dumps({"model": model, "rows": rows, "batch": GROUP, "threads": torch.get_num_threads()}))
    script = Path(__file__).with_name("_trl_update.py")
    process = subprocess.Popen(
        [str(TRL_PYTHON), str(script), str(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stdin, stdout = _pipe(process.stdin), _pipe(process.stdout)

    def seconds() -> float:
        stdin.write("step\n")
        stdin.flush()
        for line in stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError(f"{TRL_PYTHON} {script} ended early; its messages are above")

    try:
        yield seconds
    finally:
        process.kill()
        process.wait()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
