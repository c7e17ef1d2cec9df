"""Packed micro-batches say the same as the rows they come from, in fewer tokens."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.data import pack, pack_supervised
from longtail.types import Sample


def sample(ids, mask, group="g", trajectory="t", **changes):
    values = {"temperature": 1.0, "advantages": (1.0,) * len(mask), "weight": 0.25} | changes
    return Sample(
        group_id=group,
        trajectory_id=trajectory,
        ids=tuple(ids),
        mask=tuple(mask),
        logprobs=tuple(-float(i) if kept else 0.0 for i, kept in enumerate(mask)),
        versions=tuple(i if kept else -1 for i, kept in enumerate(mask)),
        **values,
    )


@st.composite
def sample_lists(draw):
    """Rows over a tiny alphabet, so that prefixes collide by chance; some grow out of earlier rows."""
    rows = []
    for index in range(draw(st.integers(0, 10))):
        base = list(draw(st.sampled_from(rows)).ids) if rows and draw(st.booleans()) else []
        base = base[: draw(st.integers(0, len(base)))]
        ids = base + draw(st.lists(st.integers(0, 2), min_size=2 if not base else 1, max_size=12))
        mask = [False] + [draw(st.booleans()) for _ in ids[1:]]
        rows.append(
            sample(
                ids,
                mask,
                group=draw(st.sampled_from("ab")),
                trajectory=f"t{draw(st.integers(0, index))}",
                advantages=tuple(draw(st.floats(-1, 1)) for _ in ids),
                weight=draw(st.floats(0.01, 1)),
                temperature=draw(st.sampled_from([0.6, 1.3])),
            )
        )
    owner = {row.trajectory_id: row.group_id for row in rows}  # a trajectory has one group
    return [sample(r.ids, r.mask, owner[r.trajectory_id], r.trajectory_id, advantages=r.advantages,
                   weight=r.weight, temperature=r.temperature) for r in rows]  # fmt: skip


def visible(batch, source):
    """Packed positions that the token at `source` attends to, in order, read off the segments."""
    (segment,) = [s for s in batch.segments if s.start <= source < s.end]
    before = [p for start, end in segment.context for p in range(start, end)]
    return [*before, *range(segment.start, source + 1)]


def loss_rows(batch):
    """(history, target, logprob, advantage, weight, temperature, version) of each loss row."""
    for m, source in enumerate(batch.sources):
        path = visible(batch, source)
        assert [batch.positions[p] for p in path] == list(range(len(path)))
        history = tuple(batch.ids[p] for p in path)
        yield (history, batch.target_ids[m], batch.logprobs[m], batch.advantages[m], batch.weights[m],
               batch.temperatures[m], batch.versions[m])  # fmt: skip


def expected_rows(samples):
    return [
        (s.ids[:t], s.ids[t], s.logprobs[t], s.advantages[t], s.weight, s.temperature, s.versions[t])
        for s in samples
        for t, kept in enumerate(s.mask)
        if kept
    ]


@given(sample_lists(), st.sampled_from([1, 8, 20, 1000]))
def test_packing_keeps_every_prediction_and_what_it_sees(samples, max_tokens):
    batches = pack(samples, max_tokens)
    packed = [row for batch in batches for row in loss_rows(batch)]
    assert Counter(packed) == Counter(expected_rows(samples))
    assert batches == pack(samples, max_tokens)


@given(sample_lists(), st.sampled_from([8, 20, 1000]))
def test_segments_tile_the_batch_and_context_lies_before(samples, max_tokens):
    for batch in pack(samples, max_tokens):
        ends = [0]
        for segment in batch.segments:
            assert segment.start == ends[-1] < segment.end
            assert all(0 <= start < end <= segment.start for start, end in segment.context)
            ends.append(segment.end)
        assert ends[-1] == len(batch.ids) == len(batch.positions)


@given(sample_lists(), st.sampled_from([8, 20, 1000]))
def test_rows_of_a_trajectory_share_a_batch_and_a_sequence(samples, max_tokens):
    where = defaultdict(set)
    for number, batch in enumerate(pack(samples, max_tokens)):
        for m, row in enumerate(loss_rows(batch)):
            where[batch.sequences[m]].add(number)
            assert row[3] in {advantage for s in samples for advantage in s.advantages}
    assert all(len(numbers) == 1 for numbers in where.values())
    assert len(where) == len({s.trajectory_id for s in samples if any(s.mask)})


@given(sample_lists(), st.sampled_from([8, 20, 1000]))
def test_no_batch_is_overfull_but_of_what_cannot_be_split(samples, max_tokens):
    for batch in pack(samples, max_tokens):
        assert len(batch.ids) <= max_tokens or len(set(batch.sequences)) == 1


@given(sample_lists())
def test_one_batch_holds_no_token_twice(samples):
    """Distinct prefixes, counted the slow way."""
    useful = [s.ids[: max(t for t, kept in enumerate(s.mask) if kept)] for s in samples if any(s.mask)]
    prefixes = {ids[: t + 1] for ids in useful for t in range(len(ids))}
    assert sum(len(batch.ids) for batch in pack(samples, 10_000)) == len(prefixes)


def test_group_of_eight_pays_its_shared_turns_once():
    shared = list(range(100))
    samples = [sample([*shared, 200 + k, 300, 301], [False] * 101 + [True] * 2, trajectory=f"t{k}") for k in range(8)]
    (batch,) = pack(samples, 1000)
    assert len(batch.ids) == 100 + 8 * 2  # the last token of a row predicts nothing
    assert batch.rows == 8
    assert batch.row_tokens == 8 * 103


def test_batches_are_few_and_full():
    rng = np.random.default_rng(0)
    samples = [
        sample(rng.integers(0, 500, size), [False] * (size - 1) + [True], group=str(g), trajectory=f"{g}.{k}")
        for g in range(16)
        for k, size in enumerate(rng.integers(50, 300, 8))
    ]
    sizes = [len(batch.ids) for batch in pack(samples, 2048)]
    assert len(sizes) <= np.ceil(sum(sizes) / 2048) + 1
    assert max(sizes) <= 2048


def test_packing_a_step_is_fast():
    rng = np.random.default_rng(0)
    samples = []
    for g in range(16):
        shared = rng.integers(0, 1000, 225).tolist()
        for k in range(8):
            ids = shared + rng.integers(0, 1000, 225).tolist()
            samples.append(sample(ids, [False] * 300 + [True] * 150, group=str(g), trajectory=f"{g}.{k}"))
    pack(samples[:8], 8192)
    took = []
    for _ in range(5):
        started = time.process_time()
        pack(samples, 8192)
        took.append(time.process_time() - started)
    assert min(took) < 0.1


def test_nothing_to_train_is_no_batch():
    assert pack([], 100) == []
    assert pack([sample([1, 2], [False, False])], 100) == []


def test_supervised_rows_weigh_what_the_policy_says_and_normalise_over_the_step():
    rows = [([1, 2, 3, 4], [0.0, 0.1, 1.0, 0.0]), ([1, 2, 5], [1.0, 0.0, 0.9])]
    (batch,) = pack_supervised(rows, 100)
    predictions = sorted((row[0], row[1], row[4]) for row in loss_rows(batch))
    assert predictions == [
        ((1,), 2, pytest.approx(0.05)),
        ((1, 2), 3, pytest.approx(0.5)),
        ((1, 2), 5, pytest.approx(0.45)),
    ]
    assert len(batch.ids) == 2
