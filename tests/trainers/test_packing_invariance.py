"""Loss and gradient do not depend on how rows are packed, split, shared or cut.

The other side is transformers' own forward pass, one row at a time, in float64.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_samples import make_samples
from transformers import AutoModelForCausalLM

from longtail.algorithms.losses import PolicyLoss
from longtail.data import pack
from longtail.models import packed_llama
from longtail.models.load import load_model
from longtail.trainers.forward import Forward
from longtail.types import LossInputs

LOSS = PolicyLoss(clip_low=0.5, clip_high=5.0)


@pytest.fixture(scope="module")
def ours(model_dir):
    return Forward(str(model_dir), load_model(str(model_dir), dtype="float64"))


@pytest.fixture(scope="module")
def theirs(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64, attn_implementation="eager").eval()


def inputs(**columns):
    double = {name: torch.as_tensor(values, dtype=torch.float64) for name, values in columns.items()}
    double["sequences_M"] = double["sequences_M"].long()
    size = len(double["weights_M"])
    return LossInputs(**double, staleness_M=torch.zeros(size, dtype=torch.int64), reference_M=None)


def gradient(model):
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return grads


def packed(forward, samples, max_tokens, loss=LOSS):
    total = 0.0
    for batch in pack(samples, max_tokens):
        logprobs, _, _ = forward.logprobs(batch)
        value, _ = loss(
            logprobs,
            inputs(
                logprobs_M=batch.logprobs,
                advantages_M=batch.advantages,
                weights_M=batch.weights,
                sequences_M=batch.sequences,
            ),
        )
        value.backward()
        total += float(value.detach())
    return total, gradient(forward.model)


def one_row_at_a_time(model, samples, loss=LOSS):
    """The loss of each trajectory from whole, separate rows."""
    total = 0.0
    for trajectory in sorted({s.trajectory_id for s in samples}):
        columns = {"new": [], "old": [], "advantages": [], "weights": []}
        for s in (s for s in samples if s.trajectory_id == trajectory):
            logits = model(torch.tensor([s.ids])).logits[0].double() / s.temperature
            logprobs = logits.log_softmax(-1)
            for t, kept in enumerate(s.mask):
                if kept:
                    columns["new"].append(logprobs[t - 1, s.ids[t]])
                    columns["old"].append(s.logprobs[t])
                    columns["advantages"].append(s.advantages[t])
                    columns["weights"].append(s.weight)
        value, _ = loss(
            torch.stack(columns["new"]),
            inputs(
                logprobs_M=columns["old"],
                advantages_M=columns["advantages"],
                weights_M=columns["weights"],
                sequences_M=[0] * len(columns["new"]),
            ),
        )
        value.backward()
        total += float(value.detach())
    return total, gradient(model)


def assert_same(left, right, tolerance=2e-5):
    # transformers computes its norms in float32, whatever the model's type.
    assert left[0] == pytest.approx(right[0], rel=tolerance, abs=1e-6)
    for name, grad in left[1].items():
        scale = float(right[1][name].abs().max())
        assert float((grad - right[1][name]).abs().max()) <= tolerance * scale, name


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1000),
    max_tokens=st.sampled_from([1, 30, 60, 1000]),
    temperature=st.sampled_from([0.6, 1.0, 1.3]),
    level=st.sampled_from(["token", "sequence"]),
)
def test_any_packing_equals_separate_rows(ours, theirs, seed, max_tokens, temperature, level):
    assert ours._fused
    loss = PolicyLoss(clip_low=0.5, clip_high=5.0, level=level)
    samples = make_samples(seed, temperature=temperature)
    assert_same(packed(ours, samples, max_tokens, loss), one_row_at_a_time(theirs, samples, loss))


def test_holds_for_rows_longer_than_an_attention_block(ours, theirs):
    samples = make_samples(5, groups=1, size=3, length=430, shared=130)
    assert max(len(s.ids) for s in samples) > 200
    assert_same(packed(ours, samples, 10_000), one_row_at_a_time(theirs, samples))


def test_holds_for_models_without_a_fused_pass(model_dir, theirs, monkeypatch):
    monkeypatch.setattr(packed_llama, "supports", lambda model: False)
    forward = Forward(str(model_dir), load_model(str(model_dir), dtype="float64"))
    samples = make_samples(3)
    assert_same(packed(forward, samples, 60), one_row_at_a_time(theirs, samples))


def test_masked_rows_change_nothing(ours):
    samples = make_samples(4)
    silent = [
        type(s)(**{f: getattr(s, f) for f in s.__slots__} | {"mask": (False,) * len(s.ids), "trajectory_id": f"x{i}"})
        for i, s in enumerate(make_samples(9))
    ]
    assert_same(packed(ours, samples + silent, 60), packed(ours, samples, 60), 1e-12)


def test_each_split_into_micro_batches_gives_the_same_sum(ours):
    samples = make_samples(6, groups=4)
    whole = packed(ours, samples, 100_000)
    for max_tokens in (1, 40, 100):
        assert_same(packed(ours, samples, max_tokens), whole, 1e-9)
