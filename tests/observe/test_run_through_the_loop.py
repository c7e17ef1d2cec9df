"""The real loop and scheduler on this journal and observer: killed in a step, resumed, looked at."""

import asyncio
import io
import json
import time
from types import SimpleNamespace

import pytest

from longtail import events as ev
from longtail.algorithms.presets import preset
from longtail.config import validate_config
from longtail.errors import EngineError
from longtail.fakes import CountingTrainer, MemorySandboxes, ScriptedEngine, ToyRenderer
from longtail.history import history
from longtail.journal import SqliteJournal, list_trajectories, load_trajectory, read_events, read_history
from longtail.loop import Run, train
from longtail.observe.metrics import read_metrics
from longtail.observe.observer import Observer
from longtail.observe.progress import JsonProgress
from longtail.rollout.attempt import World
from longtail.rollout.scheduler import Plan, Scheduler
from longtail.runs import gather, write_report
from longtail.types import Message, Sampling, Task

TASKS = [Task(id=f"t{i}", prompt=(Message(role="user", content=f"task {i}"),)) for i in range(12)]
STEPS = 4


class Clock:
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    timeout = staticmethod(asyncio.timeout)

    async def sleep(self, seconds):
        raise AssertionError("nothing is retried here")


class DyingTrainer(CountingTrainer):
    """Dies in its nth step."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    async def step(self, microbatches, loss):
        if len(self.steps) == self.last:
            raise EngineError("killed")
        return await super().step(microbatches, loss)


async def episode(task, ctx):
    reply = await ctx.model.chat(task.prompt)
    await ctx.tool("look", {"at": reply.message.content}, lambda: _seen())
    return {"solved": float(int(task.id[1:]) % 2), "format": 0.1}


async def _seen():
    return "seen"


async def live(path, trainer, out):
    """One life of the driver."""
    clock = Clock()
    config = validate_config({"name": "loop", "num_steps": STEPS, "groups_per_step": 2, "run_dir": str(path)})
    journal = SqliteJournal.open(path, checkpoint_every=2, keep=1, wall=clock.wall)
    observer = Observer(path, num_steps=STEPS, progress=JsonProgress(out), now=clock.now)
    world = World(
        rollout=episode,
        engine=ScriptedEngine(lambda request: "ok"),
        renderer=ToyRenderer(),
        sandboxes=MemorySandboxes(),
        journal=journal,
        trace=observer.trace,
        clock=clock,
        attempt_s=60.0,
    )
    plan = Plan(
        seed=0,
        num_steps=STEPS,
        groups_per_step=2,
        group_size=2,
        max_lag=0,
        max_attempts=8,
        min_usable=2,
        retries=0,
        backoff_s=0.0,
        stall_s=60.0,
        failure_limit=0.5,
        sampling=Sampling(),
    )

    async def publish(trainer, version):
        await journal.append(ev.version_published(version))
        await world.engine.load(path, version)

    try:
        await train(
            Run(
                config=config,
                journal=journal,
                trainer=trainer,
                weights=SimpleNamespace(publish=publish),
                rollouts=Scheduler(world, TASKS, plan, journal.position),
                algorithm=preset("grpo", {}),
                trace=observer.trace,
                evaluations={"test": TASKS[:5]},
                report=observer.report,
                report_evaluation=observer.report_evaluation,
                evaluated=set(read_history(path).evaluations),
            )
        )
    finally:
        observer.close()
        await journal.close()


def trained(path):
    return [(s.step, s.groups, s.indices) for s in read_history(path).steps]


async def test_killed_and_resumed_the_same_groups_are_trained_in_the_same_order(tmp_path):
    whole, killed, out = tmp_path / "whole", tmp_path / "killed", io.StringIO()
    await live(whole, CountingTrainer(), io.StringIO())
    with pytest.raises(EngineError):
        await live(killed, DyingTrainer(3), out)
    assert [s.step for s in read_history(killed).steps] == [1, 2, 3]
    trainer = CountingTrainer()
    await live(killed, trainer, out)
    assert trained(killed) == trained(whole)
    assert len(trainer.steps) == STEPS
    past = read_history(killed)
    assert (past.ended, past.resumes, sorted(past.evaluations)) == (ev.RUN_FINISHED, 1, [(0, "test"), (4, "test")])
    assert [p.name for p in (killed / "checkpoints").iterdir()] == ["step-000004"]

    lines = read_metrics(killed / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["staleness_max"] == 0 and line["attempts"] == 4 for line in lines)
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [t["step"] for t in told if t["event"] == "step"] == [1, 2, 3, 3, 4]
    assert [(t["step"], t["successes"], t["scored"]) for t in told if t["event"] == "evaluation"] == [
        (0, 2, 5),
        (4, 2, 5),
    ]


async def test_what_the_loop_left_can_be_read_back(tmp_path):
    await live(tmp_path, CountingTrainer(), io.StringIO())
    lines = list_trajectories(tmp_path)
    assert sum(line.step is not None for line in lines) == STEPS * 4
    record = load_trajectory(tmp_path, "g0.0.0")
    assert [type(call).__name__ for call in record.calls] == ["ModelCall", "ToolCall"]
    assert ToyRenderer().text(record.model_calls[0].completion.ids) == "ok"
    data = gather(tmp_path, ToyRenderer())
    assert len(data.episodes) == 4
    write_report(tmp_path, ToyRenderer())
    assert "task 0" in (tmp_path / "report.html").read_text()
    assert history(read_events(tmp_path)).position().next_index == STEPS * 2
