"""Losses against plain float64 loops, gradients against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.algorithms.losses import CrossEntropy, PolicyLoss
from longtail.types import LossInputs

losses = st.builds(
    PolicyLoss,
    objective=st.sampled_from(["ppo", "reinforce"]),
    level=st.sampled_from(["token", "sequence"]),
    clip_low=st.sampled_from([0.1, 0.2]),
    clip_high=st.sampled_from([0.2, 0.28]),
    dual_clip=st.sampled_from([None, 3.0]),
    importance_cap=st.sampled_from([None, 2.0]),
    kl_coef=st.sampled_from([0.0, 0.1]),
    kl=st.sampled_from(["k1", "k2", "k3"]),
)


@st.composite
def batches(draw):
    """Two or three trajectories of a few tokens; each has one advantage."""
    sequences, advantages = [], []
    for sequence in range(draw(st.integers(1, 3))):
        advantage = draw(st.sampled_from([-1.3, -0.4, 0.6, 1.7]))
        for _ in range(draw(st.integers(1, 4))):
            sequences.append(7 * sequence)  # identities, not positions
            advantages.append(advantage)
    size = len(sequences)
    numbers = st.floats(-3, -0.05)
    new = [draw(numbers) for _ in range(size)]
    old = [draw(numbers) for _ in range(size)]
    reference = [draw(numbers) for _ in range(size)]
    weights = [draw(st.sampled_from([0.1, 0.3])) for _ in range(size)]
    return new, old, reference, weights, advantages, sequences


def inputs_of(batch):
    _, old, reference, weights, advantages, sequences = batch
    as_tensor = lambda x: torch.tensor(x, dtype=torch.float64)  # noqa: E731
    return LossInputs(
        logprobs_M=as_tensor(old),
        advantages_M=as_tensor(advantages),
        weights_M=as_tensor(weights),
        staleness_M=torch.zeros(len(old), dtype=torch.int64),
        sequences_M=torch.tensor(sequences),
        reference_M=as_tensor(reference),
    )


def naive_terms(loss, batch, new, fixed):
    """Total loss from plain floats. `fixed` are the log-probabilities behind stop-gradients."""
    _, old, reference, weights, advantages, sequences = batch

    def ratio(values, m):
        if loss.level == "token":
            return math.exp(values[m] - old[m])
        mine = [i for i, s in enumerate(sequences) if s == sequences[m]]
        return math.exp(sum(values[i] - old[i] for i in mine) / len(mine))

    total = 0.0
    for m in range(len(new)):
        a, r, frozen = advantages[m], ratio(new, m), ratio(fixed, m)
        capped = frozen if loss.importance_cap is None else min(frozen, loss.importance_cap)
        if loss.objective == "reinforce":
            value = -(capped if loss.importance_cap is not None else 1.0) * a * new[m]
        else:
            inside = min(max(r, 1 - loss.clip_low), 1 + loss.clip_high)
            gain = min(r * a, inside * a)
            if loss.dual_clip is not None and a < 0:
                gain = max(gain, loss.dual_clip * a)
            value = -gain * capped / frozen
        if loss.kl_coef:
            d = reference[m] - new[m]
            kl = {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - 1 - d}[loss.kl]
            value += loss.kl_coef * kl
        total += weights[m] * value
    return total


@settings(max_examples=60, deadline=None)
@given(losses, batches())
def test_value_equals_the_naive_loop(loss, batch):
    new = batch[0]
    value, _ = loss(torch.tensor(new, dtype=torch.float64), inputs_of(batch))
    assert float(value.detach()) == pytest.approx(naive_terms(loss, batch, new, new), rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(losses.filter(lambda loss: loss.kl != "k1"), batches())
def test_gradient_equals_finite_differences(loss, batch):
    new = batch[0]
    if near_a_kink(loss, batch):
        return
    logprobs = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    value, _ = loss(logprobs, inputs_of(batch))
    value.backward()
    for m in range(len(new)):
        up, down = list(new), list(new)
        up[m] += 1e-6
        down[m] -= 1e-6
        slope = (naive_terms(loss, batch, up, new) - naive_terms(loss, batch, down, new)) / 2e-6
        assert float(logprobs.grad[m]) == pytest.approx(slope, rel=1e-4, abs=1e-6)


def near_a_kink(loss, batch):
    """Whether some ratio stands where the clipped objective has no slope."""
    new, old, _, _, _, sequences = batch
    edges = [1 - loss.clip_low, 1 + loss.clip_high, loss.dual_clip or 1e9]
    for sequence in {*sequences} if loss.level == "sequence" else range(len(new)):
        mine = [i for i, s in enumerate(sequences) if s == sequence] if loss.level == "sequence" else [sequence]
        r = math.exp(sum(new[i] - old[i] for i in mine) / len(mine))
        if any(abs(r - edge) < 1e-4 for edge in edges):
            return True
    return False


def test_k1_has_its_own_value_and_the_gradient_of_k2():
    batch = ([-1.0, -2.0], [-1.0, -2.0], [-1.5, -1.0], [1.0, 1.0], [0.0, 0.0], [0, 0])
    grads, values = [], []
    for kind in ("k1", "k2"):
        logprobs = torch.tensor(batch[0], dtype=torch.float64, requires_grad=True)
        value, _ = PolicyLoss(kl_coef=1.0, kl=kind)(logprobs, inputs_of(batch))
        value.backward()
        grads.append(logprobs.grad)
        values.append(float(value.detach()))
    assert values[0] == pytest.approx(0.5 - 1.0)
    assert torch.allclose(grads[0], torch.tensor([0.5, -1.0], dtype=torch.float64))
    assert torch.equal(grads[0], grads[1])


def test_without_drift_every_objective_is_the_policy_gradient():
    old = [-0.5, -1.0, -2.0]
    batch = (old, old, old, [0.2, 0.2, 0.2], [1.0, 1.0, -1.0], [0, 0, 1])
    for objective in ("ppo", "reinforce"):
        for level in ("token", "sequence"):
            for cap in (None, 2.0):
                logprobs = torch.tensor(old, dtype=torch.float64, requires_grad=True)
                loss = PolicyLoss(objective=objective, level=level, importance_cap=cap)
                value, metrics = loss(logprobs, inputs_of(batch))
                value.backward()
                assert logprobs.grad.tolist() == pytest.approx([-0.2, -0.2, 0.2])
                assert float(metrics["ratio"]) == 3.0
                assert float(metrics["clip_share"]) == 0.0
                assert float(metrics["mismatch_kl"]) == 0.0


def test_truncation_bounds_what_a_stale_token_can_do():
    """exp(3) times likelier now, and bad: PPO alone lets the gradient grow with the ratio."""
    batch = ([-1.0], [-4.0], [-1.0], [1.0], [-1.0], [0])
    slopes = {}
    for cap in (None, 2.0):
        logprobs = torch.tensor(batch[0], dtype=torch.float64, requires_grad=True)
        value, metrics = PolicyLoss(importance_cap=cap)(logprobs, inputs_of(batch))
        value.backward()
        slopes[cap] = float(logprobs.grad[0])
    assert slopes[None] == pytest.approx(math.exp(3))
    assert slopes[2.0] == pytest.approx(2.0)
    assert float(metrics["clip_share"]) == 1.0


def test_an_impossible_token_gives_no_infinity():
    batch = ([-1.0, -900.0], [-900.0, -1.0], [-1.0, -1.0], [1.0, 1.0], [-1.0, 1.0], [0, 1])
    for loss in (PolicyLoss(kl_coef=0.1), PolicyLoss(objective="reinforce", importance_cap=2.0)):
        logprobs = torch.tensor(batch[0], requires_grad=True)
        value, metrics = loss(logprobs, inputs_of(batch))
        value.backward()
        assert torch.isfinite(logprobs.grad).all()
        assert all(math.isfinite(float(metric)) for metric in metrics.values())


def test_cross_entropy_is_the_weighted_negative_log_likelihood():
    batch = ([-1.0, -2.0], [0.0, 0.0], [0.0, 0.0], [0.25, 0.75], [1.0, 1.0], [0, 0])
    value, metrics = CrossEntropy()(torch.tensor(batch[0], dtype=torch.float64), inputs_of(batch))
    assert float(value.detach()) == pytest.approx(0.25 * 1 + 0.75 * 2)
    assert float(metrics["nll"]) == pytest.approx(3.0)


def test_mismatch_and_reference_kl_are_unbiased_over_the_samples():
    """Each token of a small vocabulary once, counted with the probability that its sampler gave it."""
    sampler, other = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), torch.tensor([0.5, 0.25, 0.25]).double()
    exact = float((sampler * (sampler / other).log()).sum())
    mismatch = reference = 0.0
    for p, q in zip(sampler.tolist(), other.tolist(), strict=True):
        drifted = ([math.log(q)], [math.log(p)], [math.log(p)], [1.0], [0.0], [0])
        anchored = ([math.log(p)], [math.log(p)], [math.log(q)], [1.0], [0.0], [0])
        for batch, name in ((drifted, "mismatch_kl"), (anchored, "reference_kl")):
            _, metrics = PolicyLoss(kl_coef=1.0)(torch.tensor(batch[0], dtype=torch.float64), inputs_of(batch))
            mismatch += p * float(metrics[name]) if name == "mismatch_kl" else 0.0
            reference += p * float(metrics[name]) if name == "reference_kl" else 0.0
    assert mismatch == pytest.approx(exact)
    assert reference == pytest.approx(exact)
