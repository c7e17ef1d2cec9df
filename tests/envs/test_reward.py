"""Reward functions of TRL's signature."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from longtail.envs import reward
from longtail.errors import EngineError, TaskError, UserError
from longtail.types import Completion, Finish, Message, Task


class Says:
    """A ctx whose model always answers the same."""

    def __init__(self, text: str) -> None:
        self.model = self
        self._text = text

    async def chat(self, messages: Any, sampling: Any = None) -> Any:
        self.message = Message(role="assistant", content=self._text)
        self.completion = Completion(ids=(5, 6), logprobs=(0, 0), log_mass=(0, 0), versions=(0, 0), finish=Finish.STOP)
        return self


def task(text: str = "2+2=", **columns: Any) -> Task:
    return Task(id=text, prompt=(Message(role="user", content=text),), data=columns)


async def score(function: Any, *said: str, columns: Any = None, **options: Any) -> list[Any]:
    rollout = reward(function, **options)
    episodes = [rollout(task(answer=str(n)), Says(text)) for n, text in enumerate(said)]
    return await asyncio.gather(*episodes, return_exceptions=True)


async def test_episodes_of_one_moment_are_scored_in_one_call():
    calls: list[Any] = []

    def accuracy(prompts: list[str], completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
        calls.append((prompts, completions, answer, kwargs))
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    assert await score(accuracy, "0", "9", "2") == [1.0, 0.0, 1.0]
    assert calls == [(["2+2="] * 3, ["0", "9", "2"], ["0", "1", "2"], {"completion_ids": [[5, 6]] * 3})]


async def test_a_batch_is_never_larger_than_asked_for():
    sizes: list[int] = []

    async def count(completions: list[str]) -> list[float]:
        sizes.append(len(completions))
        return [1.0] * len(completions)

    await score(count, *"abcde", max_batch=2)
    assert sizes == [2, 2, 1]


async def test_async_functions_and_objects_are_awaited():
    class Judge:
        async def __call__(self, completions: list[str]) -> list[float]:
            await asyncio.sleep(0)
            return [float(len(c)) for c in completions]

    assert await score(Judge(), "a", "bb") == [1.0, 2.0]


async def test_a_sync_function_runs_one_call_at_a_time_off_the_loop():
    running, seen = threading.Lock(), []

    def slow(completions: list[str]) -> list[float]:
        assert running.acquire(blocking=False)
        seen.append(threading.current_thread() is threading.main_thread())
        running.release()
        return [0.0] * len(completions)

    assert await score(slow, *"abcd", max_batch=1) == [0.0] * 4
    assert seen == [False] * 4


async def test_none_is_unscored():
    assert await score(lambda completions: [None, 0.5], "a", "b") == [None, 0.5]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "must return 2 scores, got 1"),
        ([1.0] * 3, "must return 2 scores, got 3"),
        (0.5, "must return a list, got float"),
        (None, "must return a list, got NoneType"),
    ],
)
async def test_a_wrong_answer_is_a_task_error_of_the_whole_batch(returned: Any, message: str):
    def bad(completions: list[str]) -> Any:
        return returned

    results = await score(bad, "a", "b")
    assert all(isinstance(r, TaskError) and str(r) == f"reward function bad {message}" for r in results)


async def test_an_exception_is_a_task_error_that_names_it():
    def bad(completions: list[str]) -> Any:
        raise KeyError("answer")

    (error,) = await score(bad, "a")
    assert isinstance(error, TaskError)
    assert str(error) == "reward function bad raised KeyError: 'answer'"


async def test_an_error_of_longtail_in_a_task_group_keeps_its_class():
    async def ask_a_judge() -> None:
        raise EngineError("the judge is down")

    async def judged(completions: list[str]) -> Any:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask_a_judge())

    (error,) = await score(judged, "a")
    assert isinstance(error, EngineError)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "high"])
async def test_a_bad_number_fails_its_own_episode_alone(value: Any):
    results = await score(lambda completions: [value, 1.0], "a", "b")
    assert isinstance(results[0], TaskError)
    assert results[1] == 1.0


class Unfloatable:
    def __float__(self) -> float:
        raise RuntimeError("a tensor with 2 elements cannot be converted")


@pytest.mark.parametrize("value", [Unfloatable(), 10**400], ids=["raises", "overflows"])
async def test_a_score_that_is_no_number_never_leaves_its_episode_waiting(value: Any):
    results = await asyncio.wait_for(score(lambda completions: [value, 1.0], "a", "b"), 10)
    assert isinstance(results[0], TaskError)
    assert results[1] == 1.0


def _generator(completions: list[str]) -> Any:
    yield 1.0
    raise ZeroDivisionError("half way")


def _stops(completions: list[str]) -> Any:
    return next(iter(()))


def _exits(completions: list[str]) -> Any:
    sys.exit(3)


@pytest.mark.parametrize("function", [_generator, _stops, _exits])
async def test_no_way_to_raise_leaves_an_episode_waiting(function: Any):
    (error,) = await asyncio.wait_for(score(function, "a"), 10)
    assert isinstance(error, TaskError)
    assert f"reward function {function.__name__} raised" in str(error)


def test_a_function_that_hangs_does_not_hold_up_the_end_of_the_program():
    program = """
import asyncio, sys, time
sys.path.insert(0, sys.argv[1])
from test_reward import score
async def main():
    async with asyncio.timeout(0.2):
        await score(lambda completions: time.sleep(60), "a")
try:
    asyncio.run(main())
except TimeoutError:
    print("ended")
"""
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, timeout=30, check=True)
    assert done.stdout == b"ended\n"


async def test_a_conversation_is_given_as_message_dicts():
    def polite(prompts: Any, completions: Any) -> list[float]:
        assert prompts == [[{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]]
        assert completions == [[{"role": "assistant", "content": "hello"}]]
        return [1.0]

    prompt = (Message(role="system", content="be kind"), Message(role="user", content="hi"))
    assert await reward(polite)(Task(id="t", prompt=prompt), Says("hello")) == 1.0


async def test_a_single_user_message_can_be_a_conversation_too():
    def first(completions: Any) -> list[float]:
        return [float(completions[0][0]["content"] == "hello")]

    assert await score(first, "hello", conversational=True) == [1.0]


async def test_tasks_of_other_columns_are_scored_apart():
    def columns(completions: list[str], **kwargs: Any) -> list[float]:
        assert all(len(values) == len(completions) for values in kwargs.values())
        return [1.0] * len(completions)

    rollout = reward(columns)
    episodes = [rollout(task(a=1), Says("x")), rollout(task(b=2), Says("y"))]
    assert await asyncio.gather(*episodes) == [1.0, 1.0]


async def test_a_cancelled_episode_does_not_disturb_the_others():
    started, finish = asyncio.Event(), asyncio.Event()

    async def slow(completions: list[str]) -> list[float]:
        started.set()
        await finish.wait()
        return [1.0] * len(completions)

    rollout = reward(slow)
    first, second = (asyncio.ensure_future(rollout(task(), Says("x"))) for _ in range(2))
    await started.wait()
    first.cancel()
    finish.set()
    assert await second == 1.0
    with pytest.raises(asyncio.CancelledError):
        await first


def test_the_same_rollout_serves_several_event_loops():
    rollout = reward(lambda completions: [1.0] * len(completions))
    for _ in range(2):
        assert asyncio.run(rollout(task(), Says("x"))) == 1.0


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(UserError, match="max_batch must be at least 1, got 0"):
        reward(lambda completions: [], max_batch=0)
