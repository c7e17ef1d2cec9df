"""A role that hangs without dying (kill -STOP) ends waits at their deadlines: it never holds the run for ever."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from longtail.build import SystemClock
from longtail.cluster import processes
from longtail.cluster.processes import ProcessCluster
from longtail.errors import DeadlineExpired, InfrastructureError
from longtail.fakes import MemoryJournal, MemorySandboxes, NoTrace, ToyRenderer
from longtail.rollout.attempt import World
from longtail.rollout.scheduler import Plan, Scheduler
from longtail.types import Message, Sampling, Task
from longtail.weights.files import FileWeights

TASKS = [Task(id=f"t{i}", prompt=(Message(role="user", content="go"),)) for i in range(3)]


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(processes, "CLOSE_S", 0.2)
    for method in ("cancel", "load"):
        monkeypatch.setitem(processes.DEADLINES_S, method, 0.3)
    cluster = ProcessCluster(tmp_path)
    yield await cluster.start("sampler", "quiet_engine:QuietEngine")
    await cluster.close()


def scheduler_of(engine, stall_s: float, retries: int = 3) -> Scheduler:
    world = World(
        rollout=chats,
        engine=engine,
        renderer=ToyRenderer(),
        sandboxes=MemorySandboxes(),
        journal=MemoryJournal(),
        trace=NoTrace(),
        clock=SystemClock(),
        attempt_s=600.0,
    )
    plan = Plan(
        seed=0,
        num_steps=0,
        groups_per_step=1,
        group_size=1,
        max_lag=0,
        max_attempts=8,
        min_usable=1,
        retries=retries,
        backoff_s=0.1,
        stall_s=stall_s,
        failure_limit=0.5,
        sampling=Sampling(),
    )
    return Scheduler(world, TASKS, plan)


async def chats(task, ctx):
    await ctx.model.chat(task.prompt)
    return 1.0


async def evaluate(scheduler: Scheduler) -> None:
    async with scheduler.start(0) as rollouts:
        await rollouts.once(TASKS, name="eval", sampling=Sampling())


async def stop_when_busy(engine) -> None:
    pid = await engine.pid()
    while await engine.requests() < len(TASKS):  # noqa: ASYNC110 (another process)
        await asyncio.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)


async def ends(job: asyncio.Task[None]) -> bool:
    done, _ = await asyncio.wait({job}, timeout=10)
    return bool(done)


async def test_publishing_to_a_hung_engine_ends_at_its_deadline(engine, tmp_path: Path):
    class Exports:
        async def export(self, path: Path) -> None: ...

    os.kill(await engine.pid(), signal.SIGSTOP)
    weights = FileWeights(tmp_path, [engine], MemoryJournal(), SystemClock())
    with pytest.raises(DeadlineExpired, match=r"the sampler process did not answer load\(\) within 0\.3 s"):
        await weights.publish(Exports(), 1)


async def test_an_evaluation_on_a_hung_engine_ends_with_its_attempts(engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("longtail.rollout.attempt.deadline_s", lambda world, task: 1.0)
    job = asyncio.create_task(evaluate(scheduler_of(engine, stall_s=600.0, retries=0)))
    await stop_when_busy(engine)
    assert await ends(job)
    with pytest.raises(InfrastructureError, match="most often: DeadlineExpired: the attempt did not end within 1 s"):
        job.result()


async def test_a_run_on_a_hung_engine_can_be_cancelled(engine):
    job = asyncio.create_task(evaluate(scheduler_of(engine, stall_s=600.0)))
    await stop_when_busy(engine)
    job.cancel()
    assert await ends(job)
    assert job.cancelled()
