"""`longtail sft`: a policy learns to imitate chats, as a warm start for reinforcement learning.

    chats -> rows of ids, the assistant's tokens marked -> fit (trainers/sft.py) -> a model directory with its record

The model may be fresh (`model.path = "new"`): then its tokenizer is trained on the chats too.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from longtail.build import check_installed, open_renderer
from longtail.config import Config, SftConfig
from longtail.errors import UserError
from longtail.identity import check_place, check_same_run, manifest
from longtail.journal import lock_directory
from longtail.named import blamed, check_call, load_object
from longtail.types import Message

NEW = "new"
PART = 500  # chats made in one go
SETTINGS = "sft.json"  # in the run directory: which configuration its files belong to
RECORD = "record.json"  # in the model's directory: it is done
Chat = Sequence[Message]
Row = tuple[Sequence[int], Sequence[float]]  # as in trainers/sft.py, which loads torch
W = TypeVar("W")
R = TypeVar("R")


async def sft(config: Config) -> AsyncGenerator[Any]:
    """Train as `[sft]` says; yields the Progress of each step. The result is in `<run directory>/model`.

    The same command goes on at the last save; when there is nothing left to do, it does nothing.
    """
    how = check_sft(config)
    with closing(lock_directory(config.directory)):
        async for progress in _train(config, how):
            yield progress


async def _train(config: Config, how: SftConfig) -> AsyncGenerator[Any]:
    from longtail.algorithms.losses import CrossEntropy
    from longtail.data import pack_supervised
    from longtail.engines.renderer import HFRenderer
    from longtail.trainers.sft import Fit, Progress, batches, fit
    from longtail.trainers.trainer import TorchTrainer

    target = config.directory / "model"
    if (target / RECORD).exists():
        return
    _write(config.directory / SETTINGS, json.dumps(config.model_dump(mode="json"), indent=1))
    chats, digest = await _chats(config.directory, how, how.count, config.seed)
    held_out, _ = await _chats(config.directory, how, how.held_out, config.seed + 1)
    _check_seeds(how, chats, held_out)
    source = str(await _fresh_model(config, how, chats, digest)) if config.model.path == NEW else config.model.path
    renderer = HFRenderer(source)
    rows, held = [await _rows(renderer, part, how) for part in (chats, held_out)]
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
    last: Progress | None = None
    async for last in fit(trainer, rows, steps, held, fitting):
        yield last
    if last is not None:  # the last step measures
        measured = {"nll": last.held_out_nll, "accuracy": last.held_out_accuracy}
    else:  # the steps were done by a life that ended before it wrote the record
        measured = await trainer.evaluate(pack_supervised(held, config.tokens_per_microbatch)) if held else {}
    await trainer.close()
    record = {
        "config": config.model_dump(mode="json"),
        "versions": manifest(config),
        "chats": len(rows),
        "tokens": sum(len(ids) for ids, _ in rows),
        "chats_sha256": digest,
        "seconds": round(time.monotonic() - started, 1),
        "held_out_nll": measured.get("nll"),
        "held_out_accuracy": measured.get("accuracy"),
    }
    _write(target / RECORD, json.dumps(record, indent=1))


def check_sft(config: Config) -> SftConfig:
    """Find and check everything that `[sft]` names; nothing is started or written. Raises UserError."""
    if config.sft is None:
        raise UserError("the configuration has no [sft] section; expected sft.examples")
    how = config.sft
    make = load_object(how.examples, "sft.examples")
    what = f"sft.examples '{how.examples}' with sft.params"
    check_call(make, what, how.count, config.seed, how.params)
    with blamed(what):
        first = next(iter(make(1, config.seed, **how.params)), None)
        if not first or not all(isinstance(message, Message) for message in first):
            raise UserError(f"{what}: expected chats, each a list of longtail.Message, got {first!r:.100}")
    check_installed()
    check_place(config.directory)
    if config.model.path != NEW:
        open_renderer(config.model.path)
    else:
        _check_shape(how)
    stored = [path for name in (SETTINGS, f"model/{RECORD}") if (path := config.directory / name).exists()]
    if stored:
        found = json.loads(stored[0].read_text())
        check_same_run(found.get("config", found), config)
    elif (config.directory / "model").exists():
        raise UserError(f"{config.directory} holds a model that another command made; choose another --run-dir")
    return how


def _check_seeds(how: SftConfig, chats: Sequence[Chat], held_out: Sequence[Chat]) -> None:
    """Raises UserError where other seeds brought the same chats."""
    parts = [part for part in (chats[:PART], chats[PART : 2 * PART], held_out) if part]
    count = min(map(len, parts))
    if count > 1 and any(left[:count] == right[:count] for left, right in itertools.combinations(parts, 2)):
        what = f"sft.examples '{how.examples}' yields the same chats for different seeds"
        raise UserError(f"{what}; expected other chats of each, or what is held out is also trained on")


def _check_shape(how: SftConfig) -> None:
    """Raises UserError for what the fresh model cannot be made of."""
    from longtail.trainers.tiny import config_of

    with blamed("sft.shape"):
        shape = config_of(how.shape)
    if how.copy_steps and (shape.num_hidden_layers < 2 or shape.hidden_size < (shape.head_dim or 0)):
        raise UserError(
            "sft.copy_steps needs a shape of at least 2 layers, and hidden_size of at least head_dim; "
            f"got {shape.num_hidden_layers} layers, hidden_size {shape.hidden_size}, head_dim {shape.head_dim}"
        )


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


async def _chats(directory: Path, how: SftConfig, count: int, seed: int) -> tuple[list[Chat], str]:
    """Chats and their SHA-256. Made once, in parts on all cores; the parts depend on the seed alone."""
    kept = directory / f"chats-{_short_digest(how.examples, how.params, count, seed)}.jsonl"
    if not kept.exists():
        parts = [(how, min(PART, count - start), seed + 7919 * start // PART) for start in range(0, count, PART)]
        _write(kept, "\n".join(line for lines in await _in_processes(_part, parts) for line in lines))
    data = kept.read_bytes()
    chats: list[Chat] = [
        [Message(role=role, content=text) for role, text in json.loads(line)] for line in data.splitlines()
    ]
    return chats, hashlib.sha256(data).hexdigest()


async def _in_processes(work: Callable[[W], R], items: Sequence[W]) -> list[R]:
    """Results in the order of the items. When it is cancelled, what no process has begun is never begun."""
    cores = min(len(items), os.cpu_count() or 1)
    pool = ProcessPoolExecutor(cores, mp_context=get_context("spawn"), initializer=_depend_on_the_parent)
    try:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(pool, work, item) for item in items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _depend_on_the_parent() -> None:
    """Interrupts are for the parent alone, and nothing goes on after its end, whichever way it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _part(work: tuple[SftConfig, int, int]) -> list[str]:
    """Chats as lines of JSON."""
    how, count, seed = work
    make = load_object(how.examples, "sft.examples")
    with blamed(f"sft.examples '{how.examples}' with {count} chats of seed {seed}"):
        return [json.dumps([[m.role, m.content] for m in chat]) for chat in make(count, seed, **how.params)]


def _short_digest(*wanted: Any) -> str:
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:12]


async def _fresh_model(config: Config, how: SftConfig, chats: Sequence[Chat], digest: str) -> Path:
    """A directory with untrained weights and a tokenizer trained on what is said in the chats. Made once."""
    from longtail.trainers.checkpoint import write_directory
    from longtail.trainers.copying import drill_copying, place_induction_heads
    from longtail.trainers.tiny import new_model, new_tokenizer

    wanted = _short_digest(digest, how.vocab_size, how.tokenizer_chats, how.shape, how.copy_steps, config.seed)
    directory = config.directory / f"fresh-{wanted}"
    if directory.exists():
        return directory
    texts = (message.content for chat in chats[: how.tokenizer_chats] for message in chat)
    tokenizer = await asyncio.to_thread(new_tokenizer, texts, how.vocab_size)
    model = new_model(tokenizer, seed=config.seed, **how.shape)
    if how.copy_steps:
        place_induction_heads(model)
        drill = drill_copying(model, how.copy_steps, seed=config.seed)
        while await asyncio.to_thread(next, drill, None) is not None:
            pass

    def fill(path: Path) -> None:
        tokenizer.save_pretrained(path)
        model.save_pretrained(path)

    write_directory(directory, fill)
    return directory


async def _rows(renderer: Any, chats: Sequence[Chat], how: SftConfig) -> list[Row]:
    rows: list[Row] = []
    for number, chat in enumerate(chats):
        if number % 64 == 0:
            await asyncio.sleep(0)  # an interrupt is heard
        if (row := _row(renderer, chat, how)) is not None:
            rows.append(row)
    return rows


def _row(renderer: Any, chat: Chat, how: SftConfig) -> Row | None:
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
