"""`longtail sft`: a policy learns to imitate chats, as a warm start for reinforcement learning.

    chats -> rows of ids, the assistant's tokens marked -> fit (trainers/sft.py) -> a model directory with its record

The model may be fresh (`model.path = "new"`): then its tokenizer is trained on the chats too.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from longtail.build import check_call, load_object, manifest
from longtail.config import Config, SftConfig
from longtail.errors import UserError
from longtail.types import Message

NEW = "new"
PART = 500  # chats made in one go
Chat = Sequence[Message]


async def sft(config: Config) -> AsyncGenerator[Any]:
    """Train as `[sft]` says; yields the Progress of each step. The result is in `<run directory>/model`."""
    from longtail.algorithms.losses import CrossEntropy
    from longtail.data import pack_supervised
    from longtail.engines.renderer import HFRenderer
    from longtail.trainers.sft import Fit, batches, fit
    from longtail.trainers.trainer import TorchTrainer

    how = _section(config)
    target = config.directory / "model"
    chats, digest = _chats(config.directory, how, how.count, config.seed)
    held_out, _ = _chats(config.directory, how, how.held_out, config.seed + 1)
    source = str(_fresh_model(config, how, chats, digest)) if config.model.path == NEW else config.model.path
    renderer = HFRenderer(source)
    rows = [row for chat in chats if (row := _row(renderer, chat, how))]
    held = [row for chat in held_out if (row := _row(renderer, chat, how))]
    steps = batches(rows, how.batch_tokens, epochs=how.epochs, seed=config.seed)
    trainer = TorchTrainer(
        source,
        config.trainer,
        num_steps=len(steps),
        threads=config.model.threads,
        seed=config.seed,
        reference=False,
    )
    if (target / "state.json").exists():
        await trainer.load(target)  # the same command goes on
    started = time.monotonic()
    fitting = Fit(
        loss=CrossEntropy(),
        pack=pack_supervised,
        microbatch_tokens=config.tokens_per_microbatch,
        eval_every=how.eval_every,
        save_every=how.save_every,
        save_to=target,
    )
    last: Any = None
    async for progress in fit(trainer, rows, steps, held, fitting):
        last = progress
        yield progress
    await trainer.close()
    record = {
        "config": config.model_dump(mode="json"),
        "versions": manifest(config),
        "chats": len(rows),
        "tokens": sum(len(ids) for ids, _ in rows),
        "chats_sha256": digest,
        "seconds": round(time.monotonic() - started, 1),
        "held_out_nll": last.held_out_nll,
        "held_out_accuracy": last.held_out_accuracy,
    }
    (target / "record.json").write_text(json.dumps(record, indent=1))


def _section(config: Config) -> SftConfig:
    if config.sft is None:
        raise UserError("the configuration has no [sft] section; expected sft.examples")
    return config.sft


def _chats(directory: Path, how: SftConfig, count: int, seed: int) -> tuple[list[Chat], str]:
    """Chats and their SHA-256. Made once, in parts on all cores; the parts depend on the seed alone."""
    kept = directory / f"chats-{_short_digest(how.examples, how.params, count, seed)}.jsonl"
    if not kept.exists():
        make = load_object(how.examples, "sft.examples")
        check_call(make, f"sft.examples '{how.examples}' with sft.params", count, seed, how.params)
        parts = [(how, min(PART, count - start), seed + 7919 * start // PART) for start in range(0, count, PART)]
        kept.parent.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(min(len(parts), os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
            lines = [
                json.dumps([[m.role, m.content] for m in chat]) for part in pool.map(_part, parts) for chat in part
            ]
        whole = kept.with_suffix(".part")
        whole.write_text("\n".join(lines))
        whole.rename(kept)
    data = kept.read_bytes()
    chats: list[Chat] = [
        [Message(role=role, content=text) for role, text in json.loads(line)] for line in data.splitlines()
    ]
    return chats, hashlib.sha256(data).hexdigest()


def _part(work: tuple[SftConfig, int, int]) -> list[Chat]:
    how, count, seed = work
    make = load_object(how.examples, "sft.examples")
    return list(make(count, seed, **how.params))


def _short_digest(*wanted: Any) -> str:
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:12]


def _fresh_model(config: Config, how: SftConfig, chats: Sequence[Chat], digest: str) -> Path:
    """A directory with untrained weights and a tokenizer trained on what is said in the chats. Made once."""
    from longtail.trainers.copying import drill_copying, place_induction_heads
    from longtail.trainers.tiny import new_model, new_tokenizer

    wanted = _short_digest(digest, how.vocab_size, how.tokenizer_chats, how.shape, how.copy_steps, config.seed)
    directory = config.directory / f"fresh-{wanted}"
    if (directory / "model.safetensors").exists():
        return directory
    texts = (message.content for chat in chats[: how.tokenizer_chats] for message in chat)
    tokenizer = new_tokenizer(texts, how.vocab_size)
    tokenizer.save_pretrained(directory)
    model = new_model(tokenizer, seed=config.seed, **how.shape)
    if how.copy_steps:
        place_induction_heads(model)
        for _ in drill_copying(model, how.copy_steps, seed=config.seed):
            pass
    model.save_pretrained(directory)
    return directory


def _row(renderer: Any, chat: Chat, how: SftConfig) -> tuple[Sequence[int], Sequence[float]] | None:
    """Ids of a chat and what each counts; None when it is longer than `max_length`."""
    from longtail.trainers.sft import row_of

    ids: list[int] = []
    said: list[bool] = []

    def add(tokens: Sequence[int], mine: bool) -> None:
        ids.extend(tokens)
        said.extend([mine] * len(tokens))

    heard: list[Message] = []
    for message in chat:
        if message.role != "assistant":
            heard.append(message)
            continue
        add(renderer.more(heard, ended=True) if ids else renderer.start(heard), mine=False)
        add((*renderer.encode(message.content), renderer.stop_ids[0]), mine=True)
        heard = []
    return row_of(ids, said, how.observation_weight) if 0 < len(ids) <= how.max_length else None
