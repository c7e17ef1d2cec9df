"""The scripted experts."""

from __future__ import annotations

import pytest

from longtail.envs.calls import ToolRequest, parse
from longtail.errors import UserError
from longtail_repair.arithmetic import accuracy, sums
from longtail_repair.env import RepairEnv
from longtail_repair.expert import expert_chats, expert_episodes
from longtail_repair.warm import warm_chats


def solved(count: int, **habits: float) -> float:
    return sum(score["solved"] for *_, score in expert_episodes(count, 0, **habits)) / count


def test_without_noise_every_task_is_solved():
    assert solved(40, noise=0.0) == 1.0


def test_the_habits_set_the_success_rate():
    assert solved(40, wrong=0.9, give_up=0.5, sloppy=0.5) < solved(40, wrong=0.3) < 1.0


def test_equal_arguments_equal_episodes():
    assert list(expert_chats(10, 3)) == list(expert_chats(10, 3))
    assert list(expert_chats(10, 3)) != list(expert_chats(10, 4))


def test_every_reply_is_a_well_formed_call_and_is_answered():
    tools = RepairEnv.tools()
    used = set()
    for messages in expert_chats(50, 5, levels=(1, 3, 5)):
        roles = [m.role for m in messages]
        assert roles == ["user", *["assistant", "tool"] * (len(roles) // 2 - 1), "assistant"]
        for message in messages[1::2]:
            (call,) = parse(message.content, tools)
            assert isinstance(call, ToolRequest)
            used.add(call.name)
        assert messages[-1].content == "submit" or roles.count("assistant") == 20  # the turn limit
        assert not any(m.content.startswith("error") for m in messages)
    assert used == set(tools)


def test_a_function_is_left_alone_once_no_test_sees_it_and_no_try_is_repeated():
    for task, messages, _ in expert_episodes(30, 2, levels=(3,), wrong=0.6, give_up=0.0):
        edits = [m.content for m in messages[1::2] if m.content.startswith("edit")]
        assert len(set(edits)) >= len(edits) - len(task.data["bugs"])  # only a revert may repeat an edit


def test_an_unknown_habit_is_refused():
    with pytest.raises(UserError, match="no habit 'wrongg'"):
        next(expert_chats(1, 0, wrongg=0.1))


def test_sums_have_answers_and_splits_share_none():
    train, test = sums("train", 300, 0), sums("test", 300, 0)
    assert not {t.prompt for t in train} & {t.prompt for t in test}
    assert train[5] == sums("train", 9, 0)[5]
    for task in train[:20]:
        assert str(eval(task.prompt[0].content.rstrip("="))) == task.data["answer"]
    with pytest.raises(UserError, match="split must be one of train, test"):
        sums("heldout", 1, 0)


def test_accuracy_pays_for_right_digits():
    assert accuracy(["x"] * 4, ["19", " 19\n", "18", "abc"], answer=["19"] * 4) == [1.0, 1.0, 0.25, 0.0]


def test_the_warm_start_mixes_sums_into_the_episodes():
    chats = list(warm_chats(60, 1, sums=0.5, levels=(1,)))
    short = [chat for chat in chats if chat[0].content.endswith("=")]
    assert len(chats) == 60
    assert 15 < len(short) < 45
    assert all(len(chat) == 2 for chat in short)
