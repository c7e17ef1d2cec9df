"""Optimizer steps: what is learnt, when nothing is applied, and that the same inputs give the same bits."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from dataclasses import dataclass

import pytest
import torch
from tiny_samples import make_samples

from longtail.algorithms.losses import CrossEntropy, PolicyLoss
from longtail.algorithms.presets import preset
from longtail.config import TrainerConfig
from longtail.data import pack, pack_supervised
from longtail.errors import UserError
from longtail.trainers.head import target_logprobs
from longtail.trainers.schedule import factor
from longtail.trainers.trainer import TorchTrainer
from longtail.types import Sample

LOSS = preset("grpo", {}).loss


@pytest.fixture
async def make(model_dir):
    made = []

    def build(reference=False, num_steps=10, threads=1, **config):
        how = TrainerConfig(**{"lr": 1e-3} | config)
        trainer = TorchTrainer(str(model_dir), how, num_steps=num_steps, threads=threads, reference=reference)
        made.append(trainer)
        return trainer

    yield build
    for trainer in made:
        await trainer.close()


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer._parameters.items()}


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


def one_prompt_many_replies(replies=256, tokens=16):
    """All of them begin after the same token: what they say of it is added up."""
    rng = random.Random(0)
    prompt = [rng.randrange(8, 64) for _ in range(8)]
    mask = (False,) * len(prompt) + (True,) * tokens
    return [
        Sample(
            group_id="g",
            trajectory_id=f"g.{number}",
            ids=(*prompt, *(rng.randrange(8, 64) for _ in range(tokens))),
            mask=mask,
            logprobs=tuple(-4.0 if said else 0.0 for said in mask),
            versions=tuple(0 if said else -1 for said in mask),
            advantages=(rng.uniform(-1.0, 1.0),) * len(mask),
            temperature=1.0,
            weight=1e-3,
        )
        for number in range(replies)
    ]


@pytest.mark.parametrize("name", ["grpo", "gspo"])
async def test_two_threads_give_the_same_bits_where_many_samples_share_a_token(make, name):
    loss = preset(name, {}).loss
    results = []
    for _ in range(4):
        trainer = make(threads=2)
        await trainer.step(pack(one_prompt_many_replies(), 8192), loss)
        results.append(weights(trainer))
    assert all(same(results[0], other) for other in results[1:])


async def test_the_same_steps_twice_give_the_same_bits(make):
    results = []
    for _ in range(2):
        trainer = make()
        for seed in range(2):
            result = await trainer.step(pack(make_samples(seed), 60), LOSS)
        results.append((weights(trainer), dict(result.metrics)))
    assert same(results[0][0], results[1][0])
    timeless = [{k: v for k, v in m.items() if k != "tokens_per_second"} for _, m in results]
    assert timeless[0] == timeless[1]


async def test_a_step_makes_good_tokens_likelier(make):
    trainer = make(lr=1e-2)
    batches = pack(make_samples(1), 1000)
    before = await trainer.step(batches, LOSS)
    for _ in range(5):
        after = await trainer.step(batches, LOSS)
    assert after.metrics["loss"] < before.metrics["loss"]
    assert after.metrics["grad_norm"] > 0
    assert after.metrics["skipped"] == 0


async def test_one_step_is_adamw_on_the_clipped_gradient(make):
    trainer = make(lr=1e-2, clip_norm=0.1, weight_decay=0.01)
    before = weights(trainer)
    result = await trainer.step(pack(make_samples(1), 1000), LOSS)
    assert result.metrics["grad_norm"] > 0.1
    for name, parameter in trainer._parameters.items():
        grad = parameter.grad  # as clipped
        step = grad / (grad.abs() + 1e-8)  # first step: both moments are bias-corrected to the gradient itself
        expected = before[name] * (1 - 1e-2 * 0.01) - 1e-2 * step
        assert torch.allclose(parameter, expected, atol=1e-6)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in trainer._parameters.values()))
    assert norm == pytest.approx(0.1, rel=1e-4)


@dataclass(frozen=True)
class Broken:
    """A loss that overflows."""

    def __call__(self, logprobs, inputs):
        return logprobs.sum() * float("inf"), {"nll": logprobs.detach().sum()}


async def test_a_gradient_that_is_not_finite_is_counted_told_and_never_applied(make, caplog):
    trainer = make()
    before = weights(trainer)
    result = await trainer.step(pack(make_samples(1), 1000), Broken())
    assert result.metrics["skipped"] == 1
    assert same(before, weights(trainer))
    assert [record.getMessage()[:18] for record in caplog.records] == ["step 0 was skipped"]
    after = await trainer.step(pack(make_samples(1), 1000), LOSS)
    assert after.metrics["skipped"] == 0
    assert not same(before, weights(trainer))


async def test_a_step_without_samples_changes_no_weight_but_counts(make):
    trainer = make()
    before = weights(trainer)
    result = await trainer.step([], LOSS)
    assert (result.metrics["skipped"], result.metrics["tokens"], trainer.steps) == (1, 0, 1)
    assert same(before, weights(trainer))


async def test_metrics_are_means_over_trained_tokens_however_packed(make):
    views = []
    for max_tokens in (20, 10_000):
        result = await make().step(pack(make_samples(2), max_tokens), PolicyLoss(kl_coef=0.0))
        views.append({k: v for k, v in result.metrics.items() if k not in ("tokens_per_second", "computed_tokens")})
    assert views[0] == pytest.approx(views[1], rel=1e-4)
    assert views[0]["trained_tokens"] == sum(sum(s.mask) for s in make_samples(2))
    assert views[0]["tokens"] == sum(len(s.ids) for s in make_samples(2))
    assert 0 < views[0]["entropy"] < math.log(300)


async def test_staleness_is_counted_from_the_consuming_version(make):
    trainer = make()
    batches = pack(make_samples(2), 10_000)  # sampled by version 0
    assert (await trainer.step(batches, LOSS)).metrics["staleness"] == 0
    second = await trainer.step(batches, LOSS)
    assert (second.metrics["staleness"], second.metrics["staleness_max"]) == (1, 1)


async def test_kl_is_measured_against_the_first_weights(make):
    trainer = make(reference=True, lr=1e-2)
    batches = pack(make_samples(2), 10_000)
    loss = preset("grpo", {"kl_coef": 0.1}).loss
    first = await trainer.step(batches, loss)
    second = await trainer.step(batches, loss)
    assert first.metrics["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert second.metrics["reference_kl"] > 1e-5


@pytest.mark.parametrize("temperature", [0.6, 1.3])
async def test_the_ratio_is_one_when_nothing_changed(make, model_dir, temperature):
    """The sampler's log-probabilities from transformers' own pass, cut by top-k and put back by the kept mass."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    samples = []
    with torch.no_grad():
        for s in make_samples(3, temperature=temperature):
            logits = model(torch.tensor([s.ids])).logits[0] / temperature
            kept = logits.topk(5).values.logsumexp(-1)
            log_mass = kept - logits.logsumexp(-1)
            truncated = [float(logits[t - 1, i] - kept[t - 1]) for t, i in enumerate(s.ids)]
            whole = [a + float(log_mass[t - 1]) for t, a in enumerate(truncated)]
            values = {f: getattr(s, f) for f in s.__slots__}
            samples.append(type(s)(**values | {"logprobs": tuple(whole)}))
    trainer = make(lr=1e-12)
    for _ in range(3):
        metrics = (await trainer.step(pack(samples, 60), LOSS)).metrics
        assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
        assert metrics["ratio"] == pytest.approx(1.0, abs=1e-5)
        assert 0 <= metrics["mismatch_kl"] < 1e-8
        assert metrics["clip_share"] == 0


@dataclass(frozen=True)
class Slow:
    def __call__(self, logprobs, inputs):
        time.sleep(0.3)
        assert threading.current_thread() is not threading.main_thread()
        return CrossEntropy()(logprobs, inputs)


async def test_the_event_loop_runs_on_during_a_step(make):
    trainer = make()
    ticks = 0
    step = asyncio.ensure_future(trainer.step(pack(make_samples(1), 10_000), Slow()))
    while not step.done():
        await asyncio.sleep(0.01)
        ticks += 1
    await step
    assert ticks >= 10


async def test_evaluation_learns_nothing_and_counts_what_is_likeliest(make):
    trainer = make(lr=3e-2)
    rows = [([5, 6, 7, 8, 9, 10], [0.0, 1.0, 1.0, 1.0, 1.0, 0.0])]
    before = weights(trainer)
    first = await trainer.evaluate(pack_supervised(rows, 100))
    assert same(before, weights(trainer))
    for _ in range(30):
        await trainer.step(pack_supervised(rows, 100), CrossEntropy())
    last = await trainer.evaluate(pack_supervised(rows, 100))
    assert last["nll"] < 0.5 < first["nll"]
    assert last["accuracy"] == 1.0


def test_the_head_stays_on_the_device_of_the_weights():
    weight_VC = torch.zeros(7, 3, device="meta")
    targets_M, temperatures_M = torch.zeros(4, dtype=torch.long, device="meta"), torch.ones(4, device="meta")
    results = target_logprobs(torch.zeros(4, 3, device="meta"), weight_VC, targets_M, temperatures_M)
    assert [result.device.type for result in results] == ["meta"] * 3


def test_schedules():
    def curve(**config):
        return [round(factor(TrainerConfig(**config), step, 6), 4) for step in range(7)]

    assert curve() == [1.0] * 7
    assert curve(warmup_steps=2) == [0.3333, 0.6667, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert curve(schedule="linear") == [1.0, 0.8333, 0.6667, 0.5, 0.3333, 0.1667, 0.0]
    assert curve(schedule="cosine", warmup_steps=2) == [0.3333, 0.6667, 1.0, 0.8536, 0.5, 0.1464, 0.0]


def test_a_model_with_reshaped_logits_is_refused(model_dir):
    from longtail.models.load import load_model
    from longtail.trainers.head import head_weight

    model = load_model(str(model_dir))
    model.config.logits_scaling = 8.0
    with pytest.raises(UserError, match="cannot be trained: it has logits_scaling"):
        head_weight(model)
