"""The scheduler on a virtual clock: staleness, identity, retries, losses."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import events
from longtail.errors import InfrastructureError, LongtailError, SandboxLost, TaskError
from longtail.fakes import (
    MemoryJournal,
    MemorySandboxes,
    NoTrace,
    ScriptedEngine,
    ToyRenderer,
    VirtualClock,
)
from longtail.history import Position
from longtail.rollout.attempt import World
from longtail.rollout.scheduler import Plan, Scheduler
from longtail.types import Limits, Message, Outcome, Sampling, SandboxSpec, Task

TASKS = [Task(id=f"t{i}", prompt=(Message(role="user", content=f"task {i}"),)) for i in range(64)]


async def say_and_score(task, ctx):
    await ctx.model.chat(task.prompt)
    return 1.0


def world_of(rollout=say_and_score, delay=lambda request: 1.0, script=lambda request: "ok"):
    clock = VirtualClock()
    return World(
        rollout=rollout,
        engine=ScriptedEngine(script, clock=clock, delay=delay),
        renderer=ToyRenderer(),
        sandboxes=MemorySandboxes(),
        journal=MemoryJournal(),
        trace=NoTrace(),
        clock=clock,
        attempt_s=1000.0,
    )


def plan_of(**changes):
    values = {
        "seed": 0,
        "num_steps": 6,
        "groups_per_step": 4,
        "group_size": 2,
        "max_lag": 0,
        "max_attempts": 64,
        "min_usable": 2,
        "retries": 3,
        "backoff_s": 0.1,
        "stall_s": 2000.0,
        "failure_limit": 0.5,
        "sampling": Sampling(),
    }
    return Plan(**{**values, **changes})


async def run_steps(world, plan, *, train_s=5.0, tasks=TASKS):
    """The loop with a trainer that only takes time. Returns the groups of each step."""
    steps = []
    scheduler = Scheduler(world, tasks, plan)
    async with world.clock.running(), scheduler.start(0) as rollouts:
        for step in range(plan.num_steps):
            groups = await rollouts.take(plan.groups_per_step)
            await world.clock.sleep(train_s)
            world.engine.version = step + 1
            rollouts.release(groups, step + 1)
            steps.append(groups)
    return steps


async def test_on_policy_steps_take_their_groups_in_admission_order_and_of_one_version():
    world = world_of(delay=lambda request: random.Random(request.seed).expovariate(1.0))
    steps = await run_steps(world, plan_of())
    assert [group.index for groups in steps for group in groups] == list(range(24))
    for version, groups in enumerate(steps):
        assert {v for g in groups for t in g.trajectories for v in t.model_calls[0].completion.versions} == {version}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), max_lag=st.integers(0, 4), sigma=st.sampled_from([0.5, 1.5]))
def test_no_group_is_trained_staler_than_the_bound_and_none_is_lost(seed: int, max_lag: int, sigma: float):
    world = world_of(delay=lambda request: random.Random(seed ^ request.seed).lognormvariate(1.0, sigma))
    steps = asyncio.run(run_steps(world, plan_of(seed=seed, max_lag=max_lag)))
    for version, groups in enumerate(steps):
        assert len(groups) == 4
        assert all(version - group.version_first <= max_lag for group in groups)
    taken = [group.index for groups in steps for group in groups]
    assert sorted(taken) == list(range(24))


async def test_asynchronous_training_does_not_wait_for_a_slow_group_before_its_bound():
    slow = lambda request: 60.0 if request.key.startswith("g0.") else 1.0  # noqa: E731
    world = world_of(delay=slow)
    steps = await run_steps(world, plan_of(max_lag=3))
    where = next(step for step, groups in enumerate(steps) if any(group.index == 0 for group in groups))
    assert where == 3
    assert all(len(groups) == 4 for groups in steps)


async def test_members_of_a_group_are_seeded_apart_and_a_retry_samples_the_same_again():
    failed = set()

    async def flaky(task, ctx):
        await ctx.model.chat(task.prompt)
        if task.id == "t0" and task.id not in failed:
            failed.add(task.id)
            raise SandboxLost("gone")
        return 1.0

    world = world_of(flaky)
    steps = await run_steps(world, plan_of(num_steps=1))
    group = steps[0][0]
    assert sorted(t.attempt for t in group.trajectories) == [0, 1]
    seeds = {}
    for request in world.engine.requests:
        seeds.setdefault(request.key.rsplit(".", 1)[0], set()).add(request.seed)
    assert all(len(values) == 1 for values in seeds.values())
    assert len({value for values in seeds.values() for value in values}) == len(seeds)


@settings(max_examples=40, deadline=None)
@given(losses=st.lists(st.sampled_from([SandboxLost, KeyError, None]), max_size=8), retries=st.integers(0, 3))
def test_each_class_of_failure_has_its_own_budget_of_retries(losses, retries):
    """None is a score. Whatever comes between, TASK is tried again once, INFRASTRUCTURE `retries` times."""
    ends = iter([*losses, None])

    async def loses(task, ctx):
        if (error := next(ends)) is not None:
            raise error("lost")
        return 1.0

    world = world_of(loses)
    plan = plan_of(num_steps=0, retries=retries, failure_limit=1.0)
    budgets = {SandboxLost: retries, KeyError: min(1, retries)}
    expected = []
    for loss in [*losses, None]:
        expected.append(loss)
        if loss is None or expected.count(loss) > budgets[loss]:
            break

    async def run():
        async with world.clock.running(), Scheduler(world, TASKS, plan).start(0) as rollouts:
            (group,) = await rollouts.once(TASKS[:1], name="eval", sampling=Sampling())
        return group.trajectories

    (last,) = asyncio.run(run())
    assert last.attempt == len(expected) - 1
    assert last.usable == (expected[-1] is None)
    started = world.journal.of(events.ATTEMPT_STARTED)
    assert [event.trajectory for event in started] == [f"eval-0.0.{number}" for number in range(len(expected))]


async def test_an_infrastructure_failure_never_becomes_a_reward():
    async def lost(task, ctx):
        await ctx.model.chat(task.prompt)
        if ctx.seed % 3 == 0:
            raise SandboxLost("host down")
        return 0.0

    world = world_of(lost)
    steps = await run_steps(world, plan_of(group_size=8, retries=1, failure_limit=0.9))
    ended = [t for groups in steps for g in groups for t in g.trajectories]
    assert all(t.reward is None for t in ended if t.outcome is Outcome.INFRASTRUCTURE)
    assert any(t.outcome is Outcome.INFRASTRUCTURE for t in ended)
    assert all(t not in g.usable for groups in steps for g in groups for t in g.trajectories if t.reward is None)


async def test_a_step_lost_to_infrastructure_is_held_and_the_cause_named():
    async def mostly_lost(task, ctx):
        await ctx.model.chat(task.prompt)
        if ctx.seed % 4:
            raise SandboxLost("host down")
        return 0.0

    with pytest.raises(InfrastructureError, match="host down"):
        await run_steps(world_of(mostly_lost), plan_of(group_size=8, retries=0))


async def test_tasks_that_cannot_be_graded_stop_the_run_with_the_reason():
    async def broken(task, ctx):
        raise KeyError("answer")

    with pytest.raises(TaskError, match="KeyError: 'answer'"):
        await run_steps(world_of(broken), plan_of())


async def test_an_evaluation_that_cannot_be_graded_is_not_a_result():
    async def mostly_broken(task, ctx):
        if task.id != "t0":
            raise KeyError("answer")
        return 1.0

    world = world_of(mostly_broken)
    async with world.clock.running(), Scheduler(world, TASKS, plan_of()).start(0) as rollouts:
        with pytest.raises(TaskError, match="of 8 tasks could not be graded, most often: KeyError: 'answer'"):
            await rollouts.once(TASKS[:8], name="eval-test-0", sampling=Sampling())


class Shelf(Sequence):
    """A data set that makes its tasks when they are asked for."""

    def __init__(self, make):
        self._make = make

    def __len__(self):
        return len(TASKS)

    def __getitem__(self, place):
        return TASKS[place] if place < 5 else self._make(place)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda place: {}[place], "task 5 of the data set cannot be read: KeyError: 5"),
        (lambda place: "task", "task 5 of the data set: expected a longtail.Task, got one of str"),
        (
            lambda place: Task(id="t", data={"x": object()}),
            "task 5 of the data set: task 't' cannot be written as JSON",
        ),
    ],
)
async def test_a_place_of_the_data_set_that_holds_no_task_stops_the_run_with_the_reason(make, sentence):
    with pytest.raises(TaskError, match=sentence):
        await run_steps(world_of(), plan_of(), tasks=Shelf(make))


async def test_an_evaluation_with_a_place_that_holds_no_task_starts_no_attempt():
    world = world_of()
    async with world.clock.running(), Scheduler(world, TASKS, plan_of()).start(0) as rollouts:
        with pytest.raises(TaskError, match=r"task 5 of the data set: expected a longtail\.Task, got one of str"):
            await rollouts.once(Shelf(lambda place: "task"), name="eval-test-0", sampling=Sampling())
        await world.clock.sleep(10.0)
    assert world.journal.events == []


async def test_a_group_whose_scores_are_all_none_is_lost_as_not_scored():
    async def unscored(task, ctx):
        await ctx.model.chat(task.prompt)

    with pytest.raises(TaskError, match="0 of 2 attempts usable; not scored"):
        await run_steps(world_of(unscored), plan_of())


async def test_a_lost_group_is_dropped_with_a_reason_and_replaced():
    async def one_bad(task, ctx):
        await ctx.model.chat(task.prompt)
        return float("nan") if task.id == "t1" else 1.0

    world = world_of(one_bad)
    steps = await run_steps(world, plan_of(num_steps=2))
    assert [len(groups) for groups in steps] == [4, 4]
    dropped = world.journal.of(events.GROUP_DROPPED)
    assert [event.data["index"] for event in dropped] == [1]
    assert "finite number, got nan" in str(dropped[0].data["reason"])
    assert all(group.index != 1 for groups in steps for group in groups)


async def test_attempts_that_do_not_even_end_at_their_deadline_stop_the_run():
    async def never():
        await asyncio.Event().wait()

    async def silent(task, ctx):
        (await ctx.sandbox(SandboxSpec())).close = never
        await never()

    world = world_of(silent)
    with pytest.raises(InfrastructureError, match=r"no attempt ended for 1030 s; groups in flight: \[0, 1, 2, 3\]"):
        await run_steps(world, plan_of(stall_s=20.0))
    assert world.clock.now() == 1030.0


async def test_a_run_with_nothing_in_flight_stops_at_the_stall_limit():
    world = world_of()
    async with world.clock.running(), Scheduler(world, TASKS, plan_of(num_steps=1, stall_s=20.0)).start(0) as rollouts:
        with pytest.raises(InfrastructureError, match="no attempt ended for 20 s"):
            await rollouts.take(5)


@pytest.mark.parametrize("stall_s", [20.0, 5000.0])
async def test_an_attempt_that_never_ends_is_lost_at_its_deadline(stall_s):
    async def silent(task, ctx):
        await asyncio.Event().wait()

    world = world_of(silent)
    with pytest.raises(InfrastructureError, match="did not end within 1000 s"):
        await run_steps(world, plan_of(stall_s=stall_s, retries=0))
    assert world.clock.now() == 1000.0


@settings(max_examples=20, deadline=None)
@given(seconds=st.floats(1.0, 1800.0), stall_s=st.floats(1.0, 2000.0), max_attempts=st.integers(1, 8))
def test_attempts_within_the_limits_of_their_task_are_never_a_stall(seconds, stall_s, max_attempts):
    tasks = [replace(task, limits=Limits(seconds=1800.0)) for task in TASKS]
    world = world_of(delay=lambda request: seconds)
    plan = plan_of(num_steps=2, stall_s=stall_s, max_attempts=max_attempts)
    assert len(asyncio.run(run_steps(world, plan, tasks=tasks))) == 2


async def test_a_training_step_longer_than_the_stall_limit_is_not_a_stall():
    steps = await run_steps(world_of(), plan_of(num_steps=3, stall_s=20.0), train_s=100.0)
    assert len(steps) == 3


async def test_a_group_slower_than_the_stall_limit_is_not_a_stall_while_attempts_end():
    world = world_of(delay=lambda request: 15.0)
    steps = await run_steps(world, plan_of(num_steps=1, group_size=8, max_attempts=1, stall_s=20.0))
    assert len(steps) == 1


@pytest.mark.parametrize("kind", ["group.admitted", "attempt.started", "attempt.ended"])
async def test_a_fault_in_the_scheduler_reaches_the_loop_as_the_first_cause(kind):
    world = world_of()
    append = world.journal.append

    async def full(*events):
        if any(event.kind == kind for event in events):
            raise LongtailError("disk full")
        await append(*events)

    world.journal.append = full
    with pytest.raises(LongtailError, match="disk full"):
        await run_steps(world, plan_of())


async def test_leaving_the_scheduler_cancels_what_is_in_flight_at_the_engine_too():
    world = world_of(delay=lambda request: 1e9)
    async with Scheduler(world, TASKS, plan_of()).start(0) as scheduler:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scheduler.take(2), 0.05)
    assert len(world.engine.cancelled) == len(world.engine.requests) == 8


async def test_evaluation_runs_each_task_once_beside_training():
    world = world_of()
    scheduler = Scheduler(world, TASKS, plan_of())
    async with world.clock.running(), scheduler.start(0) as rollouts:
        groups = await rollouts.once(TASKS[:5], name="eval-test-0", sampling=Sampling())
    assert [group.task.id for group in groups] == [f"t{i}" for i in range(5)]
    assert all(len(group.trajectories) == 1 for group in groups)


async def test_a_resumed_run_first_repeats_what_was_in_flight_at_the_cut():
    world = world_of()
    plan = plan_of(num_steps=4)
    scheduler = Scheduler(world, TASKS, plan, lambda: Position(next_index=9, redo=(3, 7)))
    async with world.clock.running(), scheduler.start(2) as rollouts:
        groups = await rollouts.take(4)
    assert [group.index for group in groups] == [3, 7, 9, 10]


async def test_an_evaluation_lost_to_infrastructure_is_not_a_result():
    async def lost(task, ctx):
        raise SandboxLost("host down")

    world = world_of(lost)
    scheduler = Scheduler(world, TASKS, plan_of(num_steps=0, retries=0))
    async with world.clock.running(), scheduler.start(0) as rollouts:
        with pytest.raises(InfrastructureError, match="host down"):
            await rollouts.once(TASKS[:5], name="eval-test-0", sampling=Sampling())
