"""How attempts end: the time limit is the policy's, a stuck engine is not, a score is checked."""

import asyncio
import dataclasses
import json

import numpy
import pytest
import torch

from longtail import events
from longtail.errors import ContextFull, EngineError, LimitReached
from longtail.fakes import MemoryJournal, MemorySandboxes, NoTrace, ScriptedEngine, ToyRenderer, VirtualClock
from longtail.rollout.attempt import Assignment, World, run_attempt
from longtail.types import Limits, Message, Outcome, Sampling, SandboxSpec, Task

TASK = Task(id="t0", prompt=(Message(role="user", content="go"),), limits=Limits(seconds=100.0))


def world_of(rollout, *, attempt_s=1000.0, delay=lambda request: 1.0):
    clock = VirtualClock()
    return World(
        rollout=rollout,
        engine=ScriptedEngine(lambda request: "ok", clock=clock, delay=delay),
        renderer=ToyRenderer(),
        sandboxes=MemorySandboxes(),
        journal=MemoryJournal(),
        trace=NoTrace(),
        clock=clock,
        attempt_s=attempt_s,
    )


ASSIGNMENT = Assignment(task=TASK, group_id="g0", member=0, attempt=0, seed=1, sampling=Sampling())


async def attempt(world):
    async with world.clock.running():
        return await run_attempt(world, ASSIGNMENT)


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
    assert world.engine.cancelled == [request.key for request in world.engine.requests]


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
    world = world_of(patient, delay=lambda request: 30.0)
    generate, create = world.engine.generate, world.sandboxes.create

    async def queued(request):
        await world.clock.sleep(30.0)
        return dataclasses.replace(await generate(request), queue_s=30.0)

    async def late(spec):
        await world.clock.sleep(90.0)
        return await create(spec)

    world.engine.generate, world.sandboxes.create = queued, late
    ended = await attempt(world)
    assert (ended.outcome, ended.reward, ended.ended_s) == (Outcome.DONE, 1.0, 210.0)


async def patient(task, ctx):
    await ctx.sandbox(SandboxSpec())
    await ctx.model.chat(task.prompt)
    await ctx.model.chat(task.prompt)
    return 1.0


def world_whose_engine_cannot_cancel(reason):
    world = world_of(chats, delay=lambda request: 1e6)

    async def cancel(key):
        raise EngineError(reason)

    world.engine.cancel = cancel
    return world


async def test_an_engine_that_does_not_even_cancel_is_to_blame_for_the_time():
    world = world_whose_engine_cannot_cancel("no answer to cancel within 10 s")
    ended = await attempt(world)
    assert (ended.outcome, ended.reward) == (Outcome.INFRASTRUCTURE, None)
    assert "no answer to cancel" in ended.reason


async def test_a_conversation_that_fills_the_context_of_the_engine_ends_as_the_policys_doing():
    async def full(request):
        raise ContextFull("the prompt has 100 tokens and leaves no room for a reply in 100")

    world = world_of(chats)
    world.engine.generate = full
    ended = await attempt(world)
    assert (ended.outcome, ended.reason, ended.reward) == (Outcome.POLICY, "context limit of the engine", 0.0)


async def test_a_dead_engine_does_not_swallow_the_cancellation_of_an_attempt():
    world = world_whose_engine_cannot_cancel("the engine died")
    job = asyncio.create_task(run_attempt(world, ASSIGNMENT))
    await asyncio.sleep(0.01)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


async def test_an_attempt_stuck_outside_its_calls_is_infrastructure_behind_its_time_limit():
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
