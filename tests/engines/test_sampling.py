from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.engines import sampling as module
from longtail.engines.sampling import draw, uniforms
from longtail.models.native import native
from longtail.types import Sampling

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 3, 50, 1000]),
)
rows = st.lists(st.tuples(st.integers(0, 1000), samplings, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=6)


@pytest.fixture(autouse=True, scope="module", params=["native", "torch"])
def with_and_without_native_code(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        native.cache_clear()
        if request.param == "torch":
            patch.setenv("LONGTAIL_NATIVE", "0")
        yield
    native.cache_clear()


def logits_of(seed: int, vocab: int) -> torch.Tensor:
    return 4 * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))


def naive(logits: list[float], sampling: Sampling) -> list[float]:
    """Probabilities after the cuts, float64, one token at a time."""
    top_k = 1 if sampling.temperature == 0 else sampling.top_k
    scaled = [value / (sampling.temperature or 1.0) for value in logits]
    chances = [math.exp(value - max(scaled)) for value in scaled]
    order = sorted(range(len(chances)), key=lambda i: -chances[i])
    kept = order[: top_k or len(order)]
    total, running = sum(chances[i] for i in kept), 0.0
    nucleus: list[int] = []
    for i in kept:
        if sampling.top_p < 1 and running >= sampling.top_p * total:
            break
        nucleus.append(i)
        running += chances[i]
    keep = set(nucleus)
    return [chances[i] / running if i in keep else 0.0 for i in range(len(chances))]


@settings(deadline=None, max_examples=50)
@given(rows, st.sampled_from([5, 64, 200]))
def test_draws_follow_a_naive_computation(rows, vocab):
    logits_MV = torch.stack([logits_of(seed, vocab) for seed, _, _ in rows])
    drawn = draw(logits_MV.clone(), [sampling for _, sampling, _ in rows], np.array([u for _, _, u in rows]))
    assert all(drawn.finite)
    for index, (_, sampling, uniform) in enumerate(rows):
        logits = logits_MV[index].double().tolist()
        cut, whole = naive(logits, sampling), naive(logits, Sampling(temperature=sampling.temperature or 1.0))
        token = drawn.ids[index]
        assert cut[token] > 0
        assert drawn.logprobs[index] == pytest.approx(math.log(cut[token]), abs=1e-5)
        assert drawn.log_mass[index] == pytest.approx(math.log(whole[token] / cut[token]), abs=1e-5)
        below = sum(cut[:token])
        assert below - 1e-5 <= uniform <= below + cut[token] + 1e-5


@settings(deadline=None, max_examples=50)
@given(rows, st.randoms(use_true_random=False))
def test_a_row_does_not_depend_on_the_others(rows, random):
    def record(chosen):
        logits_MV = torch.stack([logits_of(seed, 300) for seed, _, _ in chosen])
        drawn = draw(logits_MV, [sampling for _, sampling, _ in chosen], np.array([u for _, _, u in chosen]))
        return list(zip(drawn.ids, drawn.logprobs, drawn.log_mass, strict=True))

    together = record(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    assert record([rows[i] for i in order]) == [together[i] for i in order]
    assert [record([row])[0] for row in rows] == together


def test_top_p_looks_further_when_the_first_tokens_do_not_reach(monkeypatch):
    logits_MV = torch.zeros(1, 500)
    logits_MV[0, ::2] = 1e-3
    few = draw(logits_MV.clone(), [Sampling(top_p=0.4)], np.array([0.5]))
    monkeypatch.setattr(module, "FIRST_SORTED", 8)
    assert draw(logits_MV.clone(), [Sampling(top_p=0.4)], np.array([0.5])) == few


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval_never_hit_a_token_without_chance(uniform):
    logits_MV = torch.full((1, 200), -torch.inf)
    logits_MV[0, 70] = logits_MV[0, 130] = 0.0
    drawn = draw(logits_MV, [Sampling()], np.array([uniform]))
    assert drawn.ids == [70 if uniform == 0 else 130]
    assert drawn.logprobs == pytest.approx([math.log(0.5)])


def test_rows_that_are_not_finite_are_named():
    logits_MV = torch.zeros(3, 10)
    logits_MV[1, 3] = torch.nan
    assert draw(logits_MV, [Sampling()] * 3, np.zeros(3)).finite == [True, False, True]


def test_uniforms_are_uniform_and_independent_of_each_other():
    numbers = uniforms([seed for seed in range(100) for _ in range(100)], list(range(100)) * 100).reshape(100, 100)
    assert 0 <= numbers.min() < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert np.abs(counts - 500).max() < 110  # five standard deviations
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.05
    assert uniforms([-1, 2**64 + 5], [0, 0]).tolist() == uniforms([2**64 - 1, 5], [0, 0]).tolist()


def test_frequencies_are_the_probabilities():
    logits_MV = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).repeat(20000, 1)
    drawn = draw(logits_MV.clone(), [Sampling(temperature=0.7)] * 20000, uniforms(range(20000), [0] * 20000))
    expected = (logits_MV[0].double() / 0.7).softmax(-1)
    observed = torch.bincount(torch.tensor(drawn.ids), minlength=4) / 20000
    assert (observed - expected).abs().max() < 0.015
