"""Call graphs become rows: ids as sampled, each sampled token trained once, each trajectory weighed once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import group_of, model_call, trajectory

from longtail.data import trajectories_to_samples
from longtail.types import Outcome, ToolCall


def rows_of(calls, normalization="token", **kwargs):
    one = trajectory("g", 0, calls)
    return trajectories_to_samples([group_of([one], **kwargs)], [[[1.0] * len(one.model_calls)]], normalization)


def test_chain_of_calls_is_one_row_with_ids_as_sampled():
    tool = ToolCall(index=1, key="k", name="run", arguments={}, result="ok")
    calls = [
        model_call(0, None, [1, 2], [3, 4], logprobs=[-0.1, -0.2], log_mass=[-0.5, 0.0], version=3),
        tool,
        model_call(2, 0, [5], [6], logprobs=[-0.3], version=4),
    ]
    (row,) = rows_of(calls)
    assert row.ids == (1, 2, 3, 4, 5, 6)
    assert row.mask == (False, False, True, True, False, True)
    assert row.logprobs == pytest.approx((0.0, 0.0, -0.6, -0.2, 0.0, -0.3))
    assert row.versions == (-1, -1, 3, 3, -1, 4)
    assert row.weight == pytest.approx(1 / 3)


def test_a_fork_is_a_new_row_and_shared_replies_are_trained_once():
    calls = [
        model_call(0, None, [1], [2, 3]),
        model_call(1, 0, [4], [5]),
        model_call(2, 0, [6], [7, 8]),
        model_call(3, None, [9], [10]),
    ]
    first, second, third = rows_of(calls)
    assert (first.ids, first.mask) == ((1, 2, 3, 4, 5), (False, True, True, False, True))
    assert (second.ids, second.mask) == ((1, 2, 3, 6, 7, 8), (False, False, False, False, True, True))
    assert (third.ids, third.mask) == ((9, 10), (False, True))
    assert {first.weight, second.weight, third.weight} == {1 / 6}


def test_calls_of_different_temperatures_never_share_a_row():
    calls = [model_call(0, None, [1], [2], temperature=0.6), model_call(1, 0, [3], [4], temperature=1.3)]
    cold, hot = rows_of(calls)
    assert (cold.temperature, cold.mask) == (0.6, (False, True, False, False))
    assert (hot.temperature, hot.mask) == (1.3, (False, False, False, True))


def test_calls_that_sampled_nothing_bring_no_row():
    assert rows_of([model_call(0, None, [1, 2], [])]) == []


def test_a_long_row_is_kept_whole():
    (row,) = rows_of([model_call(0, None, range(5000), [7])], tokens=10)
    assert len(row.ids) == 5001


def test_only_usable_members_of_kept_groups_are_trained():
    chain = [model_call(0, None, [1], [2])]
    kept = group_of(
        [
            trajectory("a", 0, chain, reward=None, outcome=Outcome.INFRASTRUCTURE),
            trajectory("a", 1, chain, reward=0.0, outcome=Outcome.POLICY),
            trajectory("a", 2, chain),
        ],
        "a",
    )
    dropped = group_of([trajectory("b", 0, chain)], "b")
    samples = trajectories_to_samples([kept, dropped], [[[-0.5], [0.5]], None], "token")
    assert [(s.trajectory_id, s.advantages, s.weight) for s in samples] == [
        ("a.1.0", (0.0, -0.5), 0.5),
        ("a.2.0", (0.0, 0.5), 0.5),
    ]


def test_advantages_must_match_the_usable_members():
    group = group_of([trajectory("g", 0, [model_call(0, None, [1], [2])])])
    with pytest.raises(ValueError, match="shorter"):
        trajectories_to_samples([group], [[]], "token")
    with pytest.raises(ValueError, match="shorter"):
        trajectories_to_samples([group], [[[]]], "token")
    with pytest.raises(ValueError, match="normalization must be"):
        trajectories_to_samples([group], [[[1.0]]], "tokens")


@st.composite
def call_graphs(draw):
    """Random forests of calls whose sampled ids are all different."""
    calls, next_id = [], 1000
    for index in range(draw(st.integers(1, 7))):
        parent = draw(st.sampled_from([None, *range(index)])) if index else None
        size = draw(st.integers(0, 3))
        delta = [draw(st.integers(0, 3)) for _ in range(draw(st.integers(1, 3)))]
        calls.append(model_call(index, parent, delta, range(next_id, next_id + size)))
        next_id += size
    return calls, list(range(1000, next_id))


@given(st.lists(call_graphs(), min_size=1, max_size=3), st.sampled_from(["token", "sequence", "constant"]))
def test_each_sampled_token_is_trained_once_after_what_the_engine_saw(graphs, normalization):
    trajectories = [trajectory("g", m, calls) for m, (calls, _) in enumerate(graphs)]
    ones = [[1.0] * len(calls) for calls, _ in graphs]
    samples = trajectories_to_samples([group_of(trajectories)], [ones], normalization)
    counts = [len(ids) for _, ids in graphs if ids]
    for member, (calls, sampled) in enumerate(graphs):
        rows = [s for s in samples if s.trajectory_id == f"g.{member}.0"]
        trained = Counter(i for s in rows for i, kept in zip(s.ids, s.mask, strict=True) if kept)
        assert trained == Counter(sampled)
        histories = {seen(calls, call.index) for call in calls}
        for row in rows:
            assert any(row.ids == history for history in histories)
        expected = {
            "token": len(sampled) / sum(counts) if counts else 0.0,
            "sequence": 1 / len(counts) if sampled else 0.0,
            "constant": len(sampled) / (len(counts) * 100) if counts else 0.0,
        }
        assert sum(s.weight * sum(s.mask) for s in rows) == pytest.approx(expected[normalization])


def seen(calls, index):
    """Prompt and reply of a call, read off the graph by recursion."""
    call = calls[index]
    before = () if call.parent is None else seen(calls, call.parent)
    return before + call.delta_ids + call.completion.ids


def test_one_row_or_five_the_same_weight_and_advantage():
    """The same replies as one chain, and as five rewritten histories of different lengths."""
    chain = [model_call(i, i - 1 if i else None, [1], [10 + i]) for i in range(5)]
    forks = [model_call(i, None, [1] * (i + 1), [10 + i]) for i in range(5)]
    other = [model_call(0, None, [2], [3, 4, 5])]
    turns = [0.7, 0.1, -0.2, 0.0, 0.7]
    for normalization in ("token", "sequence", "constant"):
        views = []
        for calls in (chain, forks):
            group = group_of([trajectory("g", 0, calls), trajectory("g", 1, other)])
            samples = trajectories_to_samples([group], [[turns, [-0.7]]], normalization)
            views.append(
                sorted(
                    (token, advantage, s.weight)
                    for s in samples
                    for token, kept, advantage in zip(s.ids, s.mask, s.advantages, strict=True)
                    if kept
                )
            )
        assert views[0] == views[1]
