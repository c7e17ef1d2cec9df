from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from longtail.config import EngineConfig
from longtail.engines.local import LocalEngine
from longtail.errors import ContextFull, EngineError, UserError
from longtail.types import Finish, GenerateRequest, Sampling

VOCAB = 200


def ask(key: str, ids=(5, 6, 7), seed: int = 0, **sampling) -> GenerateRequest:
    return GenerateRequest(key=key, ids=tuple(ids), sampling=Sampling(**sampling), seed=seed)


@pytest.fixture
async def engine(llama: Path) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(str(llama), EngineConfig(), threads=1)
    yield engine
    await engine.close()


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 (the engine has no event for it)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
async def test_greedy_replies_are_those_of_transformers(name, request):
    path = request.getfixturevalue(name)
    model = AutoModelForCausalLM.from_pretrained(path)
    engine = LocalEngine(str(path), EngineConfig(), threads=1)
    prompts = [[(7 * i + j) % VOCAB for j in range(length)] for i, length in enumerate((1, 3, 40, 100))]
    replies = await asyncio.gather(
        *(engine.generate(ask(str(i), ids, temperature=0.0, max_tokens=24)) for i, ids in enumerate(prompts))
    )
    for ids, reply in zip(prompts, replies, strict=True):
        whole = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24, eos_token_id=None)
        assert list(reply.ids) == whole[0, len(ids) :].tolist()
        assert set(reply.logprobs) == {0.0}
    await engine.close()


async def test_logprobs_are_those_of_the_model(engine, llama):
    reply = await engine.generate(ask("it", max_tokens=30, temperature=1.0))
    model = AutoModelForCausalLM.from_pretrained(llama).double()
    ids = torch.tensor([[5, 6, 7, *reply.ids]])
    with torch.inference_mode():
        expected = model(ids).logits[0, 2:-1].log_softmax(-1).gather(-1, torch.tensor(reply.ids)[:, None])[:, 0]
    assert torch.tensor(reply.logprobs, dtype=torch.float64).allclose(expected, atol=1e-4)
    assert set(reply.log_mass) == {0.0}
    assert set(reply.versions) == {0}
    assert len(reply.ids) == 30
    assert reply.finish is Finish.LENGTH


async def test_a_stop_id_ends_the_reply_and_is_part_of_it(engine):
    free = await engine.generate(ask("free", max_tokens=50))
    stop = free.ids[10]
    first = free.ids.index(stop)
    reply = await engine.generate(ask("stopped", max_tokens=50, stop_ids=(stop,)))
    assert reply.ids == free.ids[: first + 1]
    assert reply.finish is Finish.STOP


async def test_siblings_compute_their_prompt_once(engine):
    prompt = range(100)
    replies = await asyncio.gather(*(engine.generate(ask(str(i), prompt, i, max_tokens=5)) for i in range(8)))
    assert sorted(reply.cached_tokens for reply in replies) == [0] + [99] * 7
    stats = await engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.output_tokens) == (800, 693, 40)
    assert (stats.running, stats.waiting) == (0, 0)


async def test_the_next_turn_continues_from_the_cache(engine):
    first = await engine.generate(ask("1", range(50), max_tokens=30))
    second = await engine.generate(ask("2", (*range(50), *first.ids, 1, 2, 3), max_tokens=5))
    assert second.cached_tokens == 50 + 30 - 1  # the last token sampled has no keys and values yet


async def test_the_cache_is_bounded(llama):
    engine = LocalEngine(str(llama), EngineConfig(cache_tokens=160), threads=1)
    for start in range(10):
        await engine.generate(ask(str(start), range(start, start + 60), max_tokens=20))
        assert engine._worker._scheduler._cache.tokens <= 160
    pool = engine._worker._scheduler._pool
    assert len(pool._holders) - len(pool._free) <= 10
    assert sum(pool._holders) == 10
    await engine.close()


async def test_without_a_cache_every_page_is_given_back(llama):
    engine = LocalEngine(str(llama), EngineConfig(cache_tokens=0), threads=1)
    replies = await asyncio.gather(*(engine.generate(ask(str(i), range(40), i)) for i in range(5)))
    assert {reply.cached_tokens for reply in replies} == {0}
    assert sum(engine._worker._scheduler._pool._holders) == 0
    await engine.close()


async def test_cancel_returns_what_was_sampled(engine):
    task = asyncio.create_task(engine.generate(ask("long", max_tokens=1000)))

    async def sampled():
        return (await engine.stats()).output_tokens > 3

    await until(sampled)
    await engine.cancel("long")
    reply = await task
    assert reply.finish is Finish.CANCELLED
    assert 3 < len(reply.ids) < 1000
    await engine.cancel("unknown")


async def test_a_reply_ends_as_it_is_when_it_has_run_for_as_long_as_it_may(engine):
    whole = await engine.generate(ask("whole", max_tokens=50))
    reply = await engine.generate(replace(ask("late", max_tokens=50), seconds=1e-9))
    assert reply.finish is Finish.CANCELLED
    assert 1 <= len(reply.ids) < 50
    assert reply.ids == whole.ids[: len(reply.ids)]
    again = await engine.generate(replace(ask("in time", max_tokens=50), seconds=60.0))
    assert again.ids == whole.ids
    assert (await engine.stats()).running == 0


async def test_time_in_the_queue_is_no_time_of_the_reply(llama):
    engine = LocalEngine(str(llama), EngineConfig(max_running=1), threads=1)
    _, queued = await asyncio.gather(
        engine.generate(ask("first", max_tokens=900)),
        engine.generate(replace(ask("second", range(40), max_tokens=3), seconds=(seconds := 0.05))),
    )
    assert queued.queue_s > seconds
    assert queued.run_s < queued.queue_s
    assert queued.ids
    await engine.close()


async def test_a_cancelled_caller_ends_its_request(engine):
    task = asyncio.create_task(engine.generate(ask("long", max_tokens=1000)))

    async def running():
        return (await engine.stats()).running == 1

    async def idle():
        return (await engine.stats()).running == 0

    await until(running)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(idle)
    assert (await engine.stats()).output_tokens < 1000


async def test_callers_with_one_key_share_a_reply(engine):
    first, second, third = (asyncio.create_task(engine.generate(ask("same", max_tokens=200))) for _ in range(3))
    await asyncio.sleep(0.01)
    second.cancel()
    assert await first == await third
    assert (await engine.stats()).output_tokens == 200


async def test_a_key_in_flight_is_refused_to_another_request(engine):
    first = asyncio.create_task(engine.generate(ask("same", max_tokens=50)))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="another request with this key is in flight"):
        await engine.generate(ask("same", ids=(5, 6, 8), max_tokens=50))
    assert len((await first).ids) == 50


async def test_new_weights_do_not_drop_requests_in_flight(engine, llama, other_llama):
    task = asyncio.create_task(engine.generate(ask("long", range(60), max_tokens=900)))

    async def sampled():
        return (await engine.stats()).output_tokens > 3

    await until(sampled)
    await engine.load(other_llama / "model.safetensors", 7)
    reply = await task
    changed = reply.versions.index(7)
    assert reply.versions == (0,) * changed + (7,) * (900 - changed)
    assert changed > 3
    stats = await engine.stats()
    assert stats.version == 7
    again = await engine.generate(ask("again", range(60), max_tokens=5))
    assert again.cached_tokens == 0  # neither the old entries nor what the mixed request left
    assert set(again.versions) == {7}


async def test_loaded_weights_are_the_ones_that_sample(engine, other_llama):
    await engine.load(other_llama / "model.safetensors", 1)
    other = LocalEngine(str(other_llama), EngineConfig(), threads=1)
    ours, theirs = await engine.generate(ask("a")), await other.generate(ask("a"))
    assert (ours.ids, ours.logprobs) == (theirs.ids, theirs.logprobs)
    await other.close()


async def test_weights_that_do_not_fit_change_nothing(engine, llama, gpt2, tmp_path):
    before = await engine.generate(ask("before"))
    save_file({"model.embed_tokens.weight": torch.zeros(2, 2)}, tmp_path / "odd.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    for path in (gpt2 / "model.safetensors", tmp_path / "odd.safetensors"):
        with pytest.raises(EngineError, match=r"do not fit the model: weight '.*' (is missing|must have shape)"):
            await engine.load(path, 1)
    for path in (tmp_path / "broken.safetensors", tmp_path / "missing.safetensors"):
        with pytest.raises(EngineError, match="cannot be read"):
            await engine.load(path, 1)
    after = await engine.generate(ask("after"))
    assert (after.ids, after.logprobs, after.versions) == (before.ids, before.logprobs, before.versions)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask("x", ()), "the prompt is empty"),
        (ask("x", (1, VOCAB)), "must be in 0..199, got 1..200"),
        (ask("x", (-1,)), "must be in 0..199, got -1..-1"),
        (ask("x", [1] * 1024), "leaves no room for a reply in 1024"),
        (ask("x", max_tokens=0), "max_tokens must be at least 1, got 0"),
        (ask("x", temperature=-1.0), "temperature must be"),
        (ask("x", temperature=math.nan), "temperature must be"),
        (ask("x", top_p=0.0), "top_p must be above 0"),
        (ask("x", top_k=-1), "top_k must be at least 0"),
    ],
)
async def test_requests_that_cannot_run_are_refused(engine, request_, message):
    with pytest.raises(EngineError, match=message):
        await engine.generate(request_)
    assert len((await engine.generate(ask("fine", max_tokens=3))).ids) == 3


async def test_a_reply_is_cut_to_the_models_length(llama):
    engine = LocalEngine(str(llama), EngineConfig(max_length=100), threads=1)
    reply = await engine.generate(ask("x", range(90), max_tokens=50))
    assert len(reply.ids) == 10
    assert reply.finish is Finish.LENGTH
    with pytest.raises(ContextFull, match="leaves no room for a reply in 100"):
        await engine.generate(ask("y", range(100)))
    await engine.close()


async def test_when_the_thread_dies_nobody_waits_for_ever(engine, monkeypatch):
    def die(*_):
        raise RuntimeError("out of luck")

    tasks = [asyncio.create_task(engine.generate(ask(str(i), max_tokens=1000))) for i in range(3)]
    await asyncio.sleep(0.02)
    monkeypatch.setattr(engine._worker, "step", die)
    for task in tasks:
        with pytest.raises(EngineError, match="the local engine died: RuntimeError\\('out of luck'\\)"):
            async with asyncio.timeout(10):
                await task
    for call in (engine.generate(ask("later")), engine.stats(), engine.load(Path("x"), 1)):
        with pytest.raises(EngineError, match="out of luck"):
            await call


async def test_closing_fails_what_is_in_flight(llama):
    engine = LocalEngine(str(llama), EngineConfig(), threads=1)
    task = asyncio.create_task(engine.generate(ask("long", max_tokens=1000)))
    await asyncio.sleep(0.02)
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await task
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(ask("later"))
    await engine.close()


async def test_weights_that_are_not_finite_fail_the_request_and_nothing_else(engine, llama, tmp_path):
    weights = AutoModelForCausalLM.from_pretrained(llama).state_dict()
    save_file(
        {name: torch.full_like(value, torch.nan) for name, value in weights.items()}, tmp_path / "nan.safetensors"
    )
    before = await engine.generate(ask("before", range(30)))
    await engine.load(tmp_path / "nan.safetensors", 1)
    with pytest.raises(EngineError, match="logits are not finite"):
        await engine.generate(ask("nan", range(30)))
    await engine.load(llama / "model.safetensors", 2)
    after = await engine.generate(ask("after", range(30)))
    assert (after.ids, after.logprobs) == (before.ids, before.logprobs)


async def test_more_requests_than_rows_wait_their_turn(llama):
    engine = LocalEngine(str(llama), EngineConfig(max_running=3, prefill_tokens=16), threads=1)
    replies = await asyncio.gather(
        *(engine.generate(ask(str(i), range(i, i + 40), i, max_tokens=9)) for i in range(10))
    )
    assert {len(reply.ids) for reply in replies} == {9}
    await engine.close()


def test_a_missing_model_is_a_user_error():
    with pytest.raises(UserError, match="no such directory"):
        LocalEngine("./missing", EngineConfig())
