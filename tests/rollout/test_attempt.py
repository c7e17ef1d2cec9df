"""How attempts end: the time limit is the policy's, a stuck engine is not, a score is checked."""

import asyncio
import json
from dataclasses import replace

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import events
from longtail.data import trajectories_to_samples
from longtail.errors import ContextFull, EngineError, LimitReached, PolicyFailure, SandboxLost
from longtail.fakes import MemoryJournal, MemorySandboxes, NoTrace, ScriptedEngine, ToyRenderer, VirtualClock
from longtail.rollout.attempt import Assignment, World, run_attempt
from longtail.types import Finish, Group, Limits, Message, Outcome, Sampling, SandboxSpec, Task

TASK = Task(id="t0", prompt=(Message(role="user", content="go"),), limits=Limits(seconds=100.0))


def world_of(rollout, *, attempt_s=1000.0, delay=lambda request: 1.0, queue=lambda request: 0.0):
    clock = VirtualClock()
    return World(
        rollout=rollout,
        engine=ScriptedEngine(lambda request: "I am thinking", clock=clock, delay=delay, queue=queue),
        renderer=ToyRenderer(),
        sandboxes=MemorySandboxes(),
        journal=MemoryJournal(),
        trace=NoTrace(),
        clock=clock,
        attempt_s=attempt_s,
    )


ASSIGNMENT = Assignment(task=TASK, group_id="g0", member=0, attempt=0, seed=1, sampling=Sampling())


async def attempt(world, **limits):
    async with world.clock.running():
        task = replace(TASK, limits=Limits(**limits)) if limits else TASK
        return await run_attempt(world, replace(ASSIGNMENT, task=task))


async def chats(task, ctx):
    await ctx.model.chat(task.prompt)
    return 1.0


async def never():
    await asyncio.Event().wait()


async def uses_a_slow_tool(task, ctx):
    await ctx.tool("think", {}, never)


@pytest.mark.parametrize("rollout", [chats, uses_a_slow_tool])
async def test_a_wait_ends_at_the_time_limit_and_the_attempt_is_scored(rollout):
    world = world_of(rollout, attempt_s=50.0, delay=lambda request: 1e6)
    ended = await attempt(world)
    assert (ended.outcome, ended.reason, ended.reward) == (Outcome.POLICY, "time limit of 100 s", 0.0)
    assert ended.ended_s == 100.0


async def test_a_reply_that_the_time_limit_cuts_is_recorded_and_trained_as_far_as_it_went():
    world = world_of(chats, delay=lambda request: 200.0)
    ended = await attempt(world)
    assert (ended.outcome, ended.reward) == (Outcome.POLICY, 0.0)
    (call,) = ended.model_calls
    assert ToyRenderer().text(call.completion.ids) == "I am th"
    assert call.completion.finish is Finish.CANCELLED
    assert events.trajectory_from(world.journal.events) == ended
    group = Group(id="g0", index=0, task=TASK, epoch=0, trajectories=(ended,), version_first=0)
    (sample,) = trajectories_to_samples([group], [[[-1.0]]], "token")
    assert sum(sample.mask) == len("I am th")


async def test_a_tool_that_the_time_limit_cuts_is_recorded_with_what_it_said_and_why_it_ended():
    async def works(task, ctx):
        async def half():
            ctx.progress(0.5)
            await never()

        await ctx.tool("edit", {"file": "a.py"}, half)

    world = world_of(works)
    ended = await attempt(world)
    (call,) = ended.calls
    assert (call.name, call.error, call.progress) == ("edit", "LimitReached: time limit of 100 s", 0.5)
    assert events.trajectory_from(world.journal.events) == ended


async def test_a_tool_is_not_begun_when_the_time_is_up():
    async def works(task, ctx):
        await ctx.tool("edit", {}, never)

    assert (await attempt(world_of(works), seconds=0)).calls == ()


@pytest.mark.parametrize("raised", [PolicyFailure("its own doing"), SandboxLost("gone"), ConnectionError("down")])
async def test_a_tool_that_ends_the_attempt_is_recorded_with_the_reason(raised):
    async def works(task, ctx):
        async def breaks():
            raise raised

        await ctx.tool("run", {}, breaks)

    (call,) = (await attempt(world_of(works))).calls
    assert call.error == f"{type(raised).__name__}: {raised}"


async def test_an_episode_may_score_what_it_has_when_its_time_is_up():
    async def half_done(task, ctx):
        try:
            await uses_a_slow_tool(task, ctx)
        except LimitReached:
            await ctx.event("ended", reason="no time left")
        await asyncio.sleep(0)
        return 0.5

    ended = await attempt(world_of(half_done))
    assert (ended.outcome, ended.reason, ended.reward) == (Outcome.DONE, "no time left", 0.5)


async def test_time_in_queues_is_not_the_policys():
    """60 s in the queue of the engine, 90 s until a sandbox has a place, and 60 s of work, within 100 s."""
    world = world_of(patient, delay=lambda request: 30.0, queue=lambda request: 30.0)
    sandboxes_come_late(world, 90.0)
    ended = await attempt(world)
    assert (ended.outcome, ended.reward, ended.ended_s) == (Outcome.DONE, 1.0, 210.0)


def sandboxes_come_late(world, seconds):
    create = world.sandboxes.create

    async def late(spec):
        await world.clock.sleep(seconds)
        return await create(spec)

    world.sandboxes.create = late


async def test_a_request_that_is_still_queued_at_the_time_limit_has_its_time_after_the_queue():
    ended = await attempt(world_of(chats, delay=lambda request: 60.0, queue=lambda request: 500.0))
    assert (ended.outcome, ended.reward, ended.ended_s) == (Outcome.DONE, 1.0, 560.0)


async def test_a_request_that_never_leaves_the_queue_is_not_the_policys_failure():
    ended = await attempt(world_of(chats, queue=lambda request: 1e6))
    assert (ended.outcome, ended.reward, ended.ended_s) == (Outcome.INFRASTRUCTURE, None, 1000.0)


@settings(max_examples=40, deadline=None)
@given(calls=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 90)), max_size=6), limit=st.integers(1, 200))
def test_the_time_limit_is_reached_by_what_was_sampled_whatever_was_waited(calls, limit):
    async def talks(task, ctx):
        for number in range(len(calls)):
            await ctx.model.generate((2 + number,))
        return 1.0

    def part(which):
        return lambda request: float(calls[int(request.key.rsplit("/", 1)[-1])][which])

    ended = asyncio.run(attempt(world_of(talks, queue=part(0), delay=part(1)), seconds=float(limit)))
    late = sum(seconds for _, seconds in calls) > limit
    assert ended.outcome is (Outcome.POLICY if late else Outcome.DONE)


async def test_calls_that_queue_side_by_side_give_the_time_back_once():
    """Three wait for the same 50 s, then run for 40 s; 20 s more are the tool's, of 100 s."""

    async def asks_at_once(task, ctx):
        await asyncio.gather(*(ctx.model.generate((2 + number,)) for number in range(3)))
        await ctx.tool("think", {}, never)

    world = world_of(asks_at_once, queue=lambda request: 50.0, delay=lambda request: 40.0)
    ended = await attempt(world)
    assert (ended.outcome, ended.ended_s) == (Outcome.POLICY, 150.0)


async def test_a_tool_that_waits_for_a_sandbox_has_its_time_after_the_wait():
    async def tests_at_last(task, ctx):
        async def run():
            await ctx.sandbox(SandboxSpec())
            await world.clock.sleep(60.0)
            return "passed"

        await ctx.tool("test", {}, run)
        return 1.0

    world = world_of(tests_at_last)
    sandboxes_come_late(world, 500.0)
    ended = await attempt(world)
    assert (ended.outcome, ended.reward, ended.ended_s) == (Outcome.DONE, 1.0, 560.0)


async def patient(task, ctx):
    await ctx.sandbox(SandboxSpec())
    await ctx.model.chat(task.prompt)
    await ctx.model.chat(task.prompt)
    return 1.0


async def test_an_engine_that_never_answers_is_to_blame_for_the_time():
    async def silent(request):
        await never()

    world = world_of(chats)
    world.engine.generate = silent
    ended = await attempt(world)
    assert (ended.outcome, ended.reward, ended.ended_s) == (Outcome.INFRASTRUCTURE, None, 1000.0)
    assert world.engine.cancelled == ["g0.0.0/0"]


async def test_a_conversation_that_fills_the_context_of_the_engine_ends_as_the_policys_doing():
    async def full(request):
        raise ContextFull("the prompt has 100 tokens and leaves no room for a reply in 100")

    world = world_of(chats)
    world.engine.generate = full
    ended = await attempt(world)
    assert (ended.outcome, ended.reason, ended.reward) == (Outcome.POLICY, "context limit of the engine", 0.0)


async def test_a_dead_engine_does_not_swallow_the_cancellation_of_an_attempt():
    async def cancel(key):
        raise EngineError("the engine died")

    world = world_of(chats, delay=lambda request: 1e6)
    world.engine.cancel = cancel
    job = asyncio.create_task(run_attempt(world, ASSIGNMENT))
    await asyncio.sleep(0.01)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


async def test_an_attempt_stuck_outside_its_calls_is_infrastructure_after_its_time_limit():
    async def stuck(task, ctx):
        await never()

    ended = await attempt(world_of(stuck, attempt_s=50.0))
    assert (ended.outcome, ended.reward, ended.ended_s) == (Outcome.INFRASTRUCTURE, None, 160.0)
    assert "did not end within 160 s" in ended.reason


@pytest.mark.parametrize(
    "score",
    [
        {"solved": None},
        [1.0],
        "done",
        {"reward": 10**400},
        float("nan"),
        {"a": 1e308, "b": 1e308},
        {"a": float("-inf"), "b": float("inf")},
        object,
    ],
)
async def test_a_score_that_is_no_number_is_the_fault_of_the_task(score):
    async def scores(task, ctx):
        return score

    ended = await attempt(world_of(scores))
    assert (ended.outcome, ended.score, ended.reward) == (Outcome.TASK, None, None)
    assert "TaskError: the score must be a" in ended.reason


async def test_progress_is_recorded_with_the_tool_call_that_made_it():
    async def works(task, ctx):
        async def half():
            ctx.progress(numpy.float32(0.5))
            return "half"

        async def nothing():
            return ""

        await ctx.tool("edit", {}, half)
        await ctx.tool("look", {}, nothing)
        return 1.0

    world = world_of(works)
    ended = await attempt(world)
    assert [call.progress for call in ended.calls] == [0.5, None]
    assert events.trajectory_from(world.journal.events) == ended


async def test_progress_of_calls_that_overlap_goes_to_the_call_that_said_it():
    async def works(task, ctx):
        begun = asyncio.Event()

        async def says():
            ctx.progress(0.5)
            begun.set()
            return ""

        async def is_silent():
            await begun.wait()
            return ""

        await asyncio.gather(ctx.tool("silent", {}, is_silent), ctx.tool("says", {}, says))

    ended = await attempt(world_of(works))
    assert {call.name: call.progress for call in ended.calls} == {"says": 0.5, "silent": None}


@pytest.mark.parametrize("raised", [ConnectionRefusedError("the search service is down"), TimeoutError("no answer")])
async def test_an_outage_inside_a_tool_is_not_the_policys_failure(raised):
    async def works(task, ctx):
        async def search():
            raise raised

        await ctx.tool("search", {}, search)
        return 0.0

    ended = await attempt(world_of(works))
    assert (ended.outcome, ended.reward) == (Outcome.INFRASTRUCTURE, None)


@pytest.mark.parametrize(
    ("errors", "outcome", "reward"),
    [
        ([LimitReached("turn limit of 2")], Outcome.POLICY, 0.0),
        ([SandboxLost("gone"), LimitReached("turn limit of 2")], Outcome.INFRASTRUCTURE, None),
        ([KeyError("answer"), ConnectionError("down")], Outcome.INFRASTRUCTURE, None),
        ([ExceptionGroup("inner", [TimeoutError("no answer")])], Outcome.INFRASTRUCTURE, None),
        ([KeyError("answer"), LimitReached("turn limit of 2")], Outcome.TASK, None),
    ],
)
@pytest.mark.parametrize("inside", ["the rollout", "a tool"])
async def test_errors_of_a_task_group_end_an_attempt_as_the_one_that_decides_would_alone(
    inside, errors, outcome, reward
):
    async def fails():
        async with asyncio.TaskGroup() as tasks:
            for error in errors:
                tasks.create_task(raises(error))

    async def rollout(task, ctx):
        await (fails() if inside == "the rollout" else ctx.tool("run", {}, fails))

    ended = await attempt(world_of(rollout))
    if inside == "a tool" and outcome is Outcome.TASK:  # what a tool raises is its answer
        assert (ended.outcome, ended.calls[0].error) == (Outcome.DONE, "KeyError: 'answer'")
    else:
        assert (ended.outcome, ended.reward) == (outcome, reward)


async def raises(error):
    raise error


@pytest.mark.parametrize("progress", [float("nan"), None, "half", {"reward": 1.0}])
async def test_progress_that_is_no_number_is_the_fault_of_the_task(progress):
    async def works(task, ctx):
        async def wrong():
            ctx.progress(progress)
            return ""

        await ctx.tool("edit", {}, wrong)

    ended = await attempt(world_of(works))
    assert (ended.outcome, ended.reward) == (Outcome.TASK, None)
    assert "TaskError: the " in ended.reason


@pytest.mark.parametrize(
    ("score", "stored", "reward"),
    [
        (None, None, None),
        (True, 1.0, 1.0),
        (numpy.float32(0.5), 0.5, 0.5),
        ({"reward": numpy.float32(0.5), "solved": torch.tensor(1)}, {"reward": 0.5, "solved": 1.0}, 0.5),
        ({"tests": 1, "format": 0.5}, {"tests": 1.0, "format": 0.5}, 1.5),
    ],
)
async def test_a_score_is_stored_as_plain_numbers(score, stored, reward):
    async def scores(task, ctx):
        return score

    world = world_of(scores)
    ended = await attempt(world)
    assert (ended.outcome, ended.score, ended.reward) == (Outcome.DONE, stored, reward)
    json.dumps(world.journal.of(events.ATTEMPT_ENDED)[0].data)
