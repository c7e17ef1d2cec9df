"""Tokens/s of the local engine against transformers `generate`: same model, same threads, same requests, in turns.

Prompts and replies have mixed lengths. `generate` takes the requests in batches of the given size, padded, until the
longest reply of the batch is there; the engine runs at most as many at once. Only wanted tokens count, for both.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch

from longtail.config import EngineConfig
from longtail.engines.local import LocalEngine
from longtail.errors import UserError
from longtail.models.load import resolve
from longtail.types import GenerateRequest, Sampling

BATCHES = (1, 8, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model and how much of it is measured."""

    name: str
    model: str
    longest: int  # tokens of a reply
    rounds: int  # requests per place in the batch
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    prompt: tuple[int, ...]
    reply: int  # tokens


def records() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        tiny = Setting(name="tiny", model=_tiny(Path(scratch)), longest=256, rounds=2, repeats=3)
        yield from _measure(tiny)
    try:
        resolve("smollm2")
    except UserError as error:
        print(f"smollm2 is left out: {error}", file=sys.stderr)
        return
    yield from _measure(Setting(name="smollm2", model="smollm2", longest=64, rounds=1, repeats=2))


def _tiny(scratch: Path) -> str:
    """tiny-repair, or a model of its shape where it is not installed."""
    try:
        resolve("tiny-repair")
    except (UserError, ImportError):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=192,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=2,
            intermediate_size=512,
            vocab_size=1024,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
        cast("Any", LlamaForCausalLM(config)).save_pretrained(scratch)
        return str(scratch)
    return "tiny-repair"


def _measure(setting: Setting) -> Iterator[dict[str, Any]]:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(resolve(setting.model), dtype=torch.float32).eval()
    for batch in BATCHES:
        jobs = _jobs(max(4, batch * setting.rounds), setting.longest, int(model.config.vocab_size))
        tokens = sum(job.reply for job in jobs)
        ours, theirs = _engine_seconds, _generate_seconds
        pairs: list[tuple[float, float]] = []
        for repeat in range(setting.repeats + 1):
            warm_up = repeat == 0  # compiles, allocates, fills processor caches: not counted
            some = jobs[:batch] if warm_up else jobs
            pair = asyncio.run(ours(setting.model, some, batch)), theirs(model, some, batch)
            if not warm_up:
                pairs.append(pair)
            print(f"{setting.name}.b{batch} {'warm-up' if warm_up else repeat}: {pair}", file=sys.stderr)
        ratios = sorted(their / our for our, their in pairs)
        yield {
            "name": f"{setting.name}.b{batch}",
            "value": round(tokens / median(our for our, _ in pairs), 1),
            "unit": "tokens/s",
            "against": "transformers.generate",
            "ratio": round(median(ratios), 2),
            "n": setting.repeats,
            "spread": [round(ratios[0], 2), round(ratios[-1], 2)],
            "versions": {package: version(package) for package in ("longtail", "torch", "transformers")},
        }


def _jobs(count: int, longest: int, vocab: int) -> list[Job]:
    """Prompts of 16..160 tokens; replies lognormal around a quarter of the longest."""
    rng = random.Random(count)
    return [
        Job(
            prompt=tuple(rng.randrange(3, vocab) for _ in range(rng.randint(16, 160))),
            reply=min(longest, max(4, round(longest / 4 * rng.lognormvariate(0, 0.8)))),
        )
        for _ in range(count)
    ]


async def _engine_seconds(model: str, jobs: list[Job], batch: int) -> float:
    engine = LocalEngine(model, EngineConfig(max_running=batch))
    requests = [
        GenerateRequest(key=str(index), ids=job.prompt, sampling=Sampling(max_tokens=job.reply), seed=index)
        for index, job in enumerate(jobs)
    ]
    started = time.perf_counter()
    replies = await asyncio.gather(*(engine.generate(request) for request in requests))
    seconds = time.perf_counter() - started
    assert [len(reply.ids) for reply in replies] == [job.reply for job in jobs]
    await engine.close()
    return seconds


def _generate_seconds(model: Any, jobs: list[Job], batch: int) -> float:
    started = time.perf_counter()
    for first in range(0, len(jobs), batch):
        part = jobs[first : first + batch]
        width, reply = max(len(job.prompt) for job in part), max(job.reply for job in part)
        ids = torch.tensor([[0] * (width - len(job.prompt)) + list(job.prompt) for job in part])
        mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in part])
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=reply,
            max_new_tokens=reply,
            pad_token_id=0,
        )
    return time.perf_counter() - started
