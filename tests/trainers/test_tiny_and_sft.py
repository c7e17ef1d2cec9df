"""The tiny model's tokenizer gives every text back; supervised training learns what the policy says."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from longtail.algorithms.losses import CrossEntropy
from longtail.config import TrainerConfig
from longtail.data import pack_supervised
from longtail.errors import UserError
from longtail.trainers.sft import Fit, batches, fit, row_of
from longtail.trainers.tiny import new_tokenizer
from longtail.trainers.trainer import TorchTrainer

CODE = "def area(width, height):\n    if width < 0:\n        raise ValueError(width)\n    return width * height\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    new_tokenizer([CODE] * 5, 400).save_pretrained(path)
    return AutoTokenizer.from_pretrained(path)


@settings(max_examples=200, deadline=None)
@given(st.text() | st.text(alphabet="ab1 \n\t_(){}:=<|im_start|>user"))
def test_every_text_comes_back_exactly(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_code_is_cut_where_code_changes(tokenizer):
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("        return width * 120\n    return")]
    assert "\n    " in pieces
    assert pieces[-6:-2] == [" ", "1", "2", "0"] or pieces[-5:-2] == ["1", "2", "0"]
    assert " return" in pieces or "return" in pieces


def test_a_turn_costs_two_control_tokens(tokenizer):
    chat = [{"role": "user", "content": "area"}, {"role": "assistant", "content": "width"}]
    ids = tokenizer.apply_chat_template(chat)["input_ids"]
    content = [len(tokenizer.encode(message["content"])) for message in chat]
    assert len(ids) == sum(content) + 4
    assert tokenizer.decode(ids) == "<|im_start|>user\narea<|im_end|><|im_start|>assistant\nwidth<|im_end|>"
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True)["input_ids"]
    assert ids[: len(prompt)] == prompt
    assert tokenizer.eos_token == "<|im_end|>"


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), st.integers(1, 60), st.integers(1, 3), st.integers(0, 5))
def test_each_row_is_in_one_batch_of_each_epoch(lengths, batch_tokens, epochs, seed):
    rows = [([0] * length, [1.0] * length) for length in lengths]
    steps = batches(rows, batch_tokens, epochs=epochs, seed=seed)
    assert sorted(index for step in steps for index in step) == sorted(list(range(len(rows))) * epochs)
    assert all(len(step) == 1 or sum(lengths[i] for i in step) <= batch_tokens for step in steps)
    assert steps == batches(rows, batch_tokens, epochs=epochs, seed=seed)


def test_no_examples_is_a_user_error():
    with pytest.raises(UserError, match="at least one example"):
        batches([], 10)


async def test_sft_saves_the_step_that_it_is_at_when_it_is_cancelled(model_dir, tmp_path):
    rows = [row_of([5, 20, 30, 40], [False, False, True, True], 0.0)] * 4
    steps = batches(rows, 4, epochs=1000)
    trainer = TorchTrainer(str(model_dir), TrainerConfig(), num_steps=len(steps), threads=1)

    async def follow():
        how = Fit(loss=CrossEntropy(), pack=pack_supervised, save_to=tmp_path / "c")
        async for progress in fit(trainer, rows, steps, [], how):
            if progress.step == 3:
                asyncio.get_running_loop().call_soon(work.cancel)

    work = asyncio.create_task(follow())
    with pytest.raises(asyncio.CancelledError):
        await work
    await trainer.close()
    assert json.loads((tmp_path / "c" / "state.json").read_text())["step"] == trainer.steps >= 3


async def test_sft_learns_what_is_said_and_resumes(model_dir, tmp_path):
    rows = [row_of([5, 20 + k, 30 + k, 40 + k], [False, False, True, True], 0.0) for k in range(8)]
    steps = batches(rows, 16, epochs=15)
    config = TrainerConfig(lr=1e-2, schedule="cosine")

    async def run(limit):
        trainer = TorchTrainer(str(model_dir), config, num_steps=len(steps), threads=1)
        if (tmp_path / "c").exists():
            await trainer.load(tmp_path / "c")
        how = Fit(loss=CrossEntropy(), pack=pack_supervised, eval_every=10, save_every=10, save_to=tmp_path / "c")
        seen = []
        async for progress in fit(trainer, rows, steps, rows, how):
            seen.append(progress)
            if progress.step == limit:
                break
        await trainer.close()
        return seen

    first = await run(10)
    second = await run(None)
    assert [p.step for p in first] == list(range(1, 11))
    assert [p.step for p in second] == list(range(11, len(steps) + 1))
    assert first[0].held_out_accuracy is None
    assert first[9].held_out_nll > second[-1].held_out_nll
    assert second[-1].held_out_accuracy == 1.0
