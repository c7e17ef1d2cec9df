"""Tokens/s of the local engine against transformers `generate`: same model, same threads, same requests, in turns.

Prompts and replies have mixed lengths. `generate` takes the requests in batches of the given size, padded, until the
longest reply of the batch is there; the engine runs at most as many at once. Only wanted tokens count, for both.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

from longtail.bench import compared
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
    yield from _measure(Setting(name="smollm2", model="smollm2", longest=128, rounds=1, repeats=2))


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
    where = resolve(setting.model)
    vocab = int(json.loads((Path(where) / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    with _Transformers(str(where), "default") as default, _Transformers(str(where), "PASSIVE") as passive:
        for batch in BATCHES:
            jobs = _jobs(max(4, batch * setting.rounds), setting.longest, vocab)
            warm_up = [replace(job, reply=min(8, job.reply)) for job in jobs[:batch]]  # compiles and allocates
            asyncio.run(_engine_seconds(setting.model, warm_up, batch))
            baseline = min(default, passive, key=lambda process: process.seconds(warm_up, batch))
            pairs: list[tuple[float, float]] = []
            for repeat in range(1, setting.repeats + 1):
                pair = asyncio.run(_engine_seconds(setting.model, jobs, batch)), baseline.seconds(jobs, batch)
                print(f"{setting.name}.b{batch} {repeat}: {pair[0]:.2f} s, {pair[1]:.2f} s", file=sys.stderr)
                pairs.append(pair)
            tokens = sum(job.reply for job in jobs)
            yield compared(f"{setting.name}.b{batch}", tokens, "transformers.generate", pairs)


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


class _Transformers:
    """A process of the baseline. How OpenMP threads wait decides much: on an idle machine spinning is best, on a busy
    one sleeping. There is one process for each, and the faster one counts."""

    def __init__(self, model: str, waiting: str) -> None:
        settings = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        settings |= {} if waiting == "default" else {"OMP_WAIT_POLICY": waiting}
        script = Path(__file__).with_name("_transformers.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings
        )

    def seconds(self, jobs: list[Job], batch: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"jobs": [(job.prompt, job.reply) for job in jobs], "batch": batch}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
