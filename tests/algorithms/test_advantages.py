"""Advantages against plain float64 loops, and groups that are incomplete."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.algorithms.advantages import ESTIMATORS, gains
from longtail.algorithms.presets import PRESETS, preset
from longtail.errors import UserError
from longtail.types import Completion, Finish, Group, ModelCall, Outcome, Task, ToolCall, Trajectory

rewards_lists = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=1, max_size=9)


def naive(baseline, rewards):
    """Written from the papers, one member at a time."""
    size, out = len(rewards), []
    for i in range(size):
        others = [rewards[j] for j in range(size) if j != i]
        centre = 0.0
        for reward in rewards:
            centre += reward / size
        if baseline == "none":
            out.append(rewards[i])
        elif size == 1:
            out.append(0.0)
        elif baseline == "leave_one_out":
            out.append(rewards[i] - sum(others) / (size - 1))
        elif baseline == "mean":
            out.append(rewards[i] - centre)
        else:
            variance = 0.0
            for reward in rewards:
                variance += (reward - centre) ** 2 / (size - 1)
            out.append((rewards[i] - centre) / (math.sqrt(variance) + 1e-6))
    return out


@given(rewards_lists, st.sampled_from(sorted(ESTIMATORS)))
def test_advantages_equal_the_naive_loop(rewards, baseline):
    assert ESTIMATORS[baseline](rewards) == pytest.approx(naive(baseline, rewards), abs=1e-9, rel=1e-6)


@given(st.floats(-1e3, 1e3), st.integers(1, 9), st.sampled_from(["mean_std", "mean", "leave_one_out"]))
def test_equal_rewards_give_exactly_zero(reward, size, baseline):
    assert ESTIMATORS[baseline]([reward] * size) == [0.0] * size


def call(index):
    done = Completion(ids=(1,), logprobs=(-1.0,), log_mass=(0.0,), versions=(0,), finish=Finish.STOP)
    return ModelCall(index=index, parent=index - 1 if index else None, delta_ids=(2,), completion=done)


def tool_call(index, progress):
    return ToolCall(index=index, key="k", name="edit", arguments={}, result="", progress=progress)


def group(rewards, name="g"):
    members = tuple(
        Trajectory(
            id=f"{name}.{m}.0",
            task_id="same prompt",
            group_id=name,
            member=m,
            attempt=0,
            calls=(call(0),),
            outcome=Outcome.DONE if reward is not None else Outcome.INFRASTRUCTURE,
            reward=reward,
        )
        for m, reward in enumerate(rewards)
    )
    return Group(id=name, index=0, task=Task(id="same prompt"), epoch=0, trajectories=members, version_first=0)


def flat(advantages):
    return [x for of_turns in advantages for x in of_turns]


def test_only_usable_members_count():
    algorithm = preset("rloo", {})
    sizes = {name: group(rewards, name) for name, rewards in {
        "four": [1.0, 0.0, 0.0, 1.0],
        "three": [None, 1.0, 0.0, 0.0],
        "all": [0.5, 1.0, 0.0, 0.25],
        "one": [None, None, 1.0, None],
        "none": [None, None, None, None],
    }.items()}  # fmt: skip
    advantages = {name: algorithm.advantages(g) for name, g in sizes.items()}
    assert flat(advantages["three"]) == pytest.approx([1.0, -0.5, -0.5])  # divided by usable - 1
    assert flat(advantages["four"]) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert advantages["one"] is None
    assert advantages["none"] is None
    kept = preset("rloo", {"zero_variance": "keep"})
    assert kept.advantages(sizes["one"]) == [[0.0]]
    assert kept.advantages(sizes["none"]) is None


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_group_stands_alone_whatever_else_is_in_the_step(name):
    """Two groups of the same prompt: neither sees the other's rewards."""
    algorithm = preset(name, {})
    low, high = group([0.0, 1.0], "a"), group([10.0, 11.0], "b")
    assert algorithm.advantages(low) == preset(name, {}).advantages(group([0.0, 1.0], "c"))
    assert len(algorithm.advantages(high)) == 2


def test_groups_without_a_signal_are_dropped_or_kept_by_policy():
    solved = group([1.0, 1.0, 1.0])
    assert preset("grpo", {}).advantages(solved) is None
    assert preset("grpo", {"zero_variance": "keep"}).advantages(solved) == [[0.0]] * 3
    assert preset("reinforce", {}).advantages(solved) == [[1.0]] * 3


@st.composite
def episodes(draw):
    """Groups of episodes of one tool call a turn, some with a progress."""
    numbers = st.floats(-2, 2).map(lambda x: round(x, 3))
    members = []
    for m in range(draw(st.integers(1, 5))):
        said = draw(st.lists(st.none() | numbers, max_size=5))
        calls = [part for turn, p in enumerate(said) for part in (call(2 * turn), tool_call(2 * turn + 1, p))]
        base = group([draw(numbers)]).trajectories[0]
        members.append(replace(base, id=f"g.{m}.0", member=m, calls=(*calls, call(len(calls)))))
    return replace(group([]), trajectories=tuple(members))


def naive_by_turn(group, decay):
    """Forward sums over what is known of the reward after each turn; the mean of the same turn, 0 after the end."""
    after = []
    for t in group.trajectories:
        known, stands = [], 0.0
        for tool in t.calls[1::2]:
            stands = stands if tool.progress is None else tool.progress
            known.append(stands)
        after.append([*known, t.reward])
    value = []
    for known in after:
        before = [0.0, *known[:-1]]
        value.append([
            sum(decay ** (later - turn) * (known[later] - before[later]) for later in range(turn, len(known)))
            for turn in range(len(known))
        ])  # fmt: skip
    out = []
    for mine in value:
        out.append([])
        for turn, x in enumerate(mine):
            same = sum(other[turn] for other in value if len(other) > turn)
            out[-1].append(x - same / len(value))
    return out


@given(episodes(), st.floats(0, 1))
def test_credit_by_turn_equals_the_naive_loop(group, decay):
    algorithm = preset("dr_grpo", {"credit": "turn", "decay": decay, "zero_variance": "keep"})
    for found, expected in zip(algorithm.advantages(group), naive_by_turn(group, decay), strict=True):
        assert found == pytest.approx(expected, abs=1e-9)


@given(episodes())
def test_the_gains_of_an_episode_sum_to_its_reward(group):
    for member in group.trajectories:
        assert sum(gains(member)) == pytest.approx(member.reward, abs=1e-9)


def test_credit_by_turn_tells_a_good_edit_from_a_bad_one_in_the_same_episode():
    """Both mend one of two bugs and then break it again: the trajectory's reward says nothing, the turns do."""
    there_and_back = (call(0), tool_call(1, 0.5), call(2), tool_call(3, 0.0), call(4))
    idle = (call(0), tool_call(1, None), call(2), tool_call(3, None), call(4))
    base = group([0.0, 0.0])
    both = replace(base, trajectories=tuple(
        replace(t, calls=calls) for t, calls in zip(base.trajectories, (there_and_back, idle), strict=True)
    ))  # fmt: skip
    assert preset("dr_grpo", {}).advantages(both) is None
    good, bad, last = preset("dr_grpo", {"credit": "turn"}).advantages(both)[0]
    assert good > 0 > bad
    assert last == 0.0


def test_credit_by_turn_is_given_to_the_one_that_goes_on_alone():
    base = group([0.0, 0.0, 1.0])
    short, long = (call(0), tool_call(1, None)), (call(0), tool_call(1, None), call(2), tool_call(3, None), call(4))
    members = [replace(t, calls=calls) for t, calls in zip(base.trajectories, (short, short, long), strict=True)]
    algorithm = preset("dr_grpo", {"credit": "turn", "decay": 0.5})
    alone = algorithm.advantages(replace(base, trajectories=tuple(members)))[2]
    assert alone == pytest.approx([0.25 * 2 / 3, 0.5 * 2 / 3, 2 / 3])


def test_presets_take_overrides_of_the_bundle_and_of_its_loss():
    algorithm = preset("grpo", {"kl_coef": 0.1, "normalization": "sequence", "importance_cap": 2})
    assert algorithm.needs_reference
    assert algorithm.off_policy_correction
    assert algorithm.normalization == "sequence"
    assert algorithm.loss.clip_high == PRESETS["grpo"].loss.clip_high
    assert not preset("grpo", {}).needs_reference
    assert not preset("grpo", {}).off_policy_correction


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("grp", {}, "unknown algorithm 'grp'; did you mean 'grpo'"),
        ("grpo", {"clip_hihg": 0.3}, "unknown field 'clip_hihg' of algorithm 'grpo'; did you mean 'clip_high'"),
        ("grpo", {"loss": 1}, "unknown field 'loss'"),
        ("grpo", {"normalization": "tokens"}, "'normalization' must be one of token, sequence, constant, got 'tokens'"),
        ("grpo", {"kl_coef": "much"}, "'kl_coef' must be a number of at least 0, got 'much'"),
        ("grpo", {"kl_coef": -1}, "must be a number of at least 0, got -1"),
        ("grpo", {"clip_high": True}, "must be a number of at least 0, got True"),
        ("grpo", {"clip_high": None}, "must be a number of at least 0, got None"),
        ("grpo", {"clip_low": 3}, "must be a number of at least 0 and at most 1, got 3"),
        ("grpo", {"decay": 5}, "must be a number of at least 0 and at most 1, got 5"),
        ("grpo", {"importance_cap": float("nan")}, "must be a number of at least 1, got nan"),
        ("grpo", {"importance_cap": 0}, "must be a number of at least 1, got 0"),
    ],
)
def test_bad_names_and_values_are_user_errors(name, overrides, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        preset(name, overrides)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_algorithms_can_be_sent_to_another_process(name):
    algorithm = preset(name, {"importance_cap": 2.0})
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
