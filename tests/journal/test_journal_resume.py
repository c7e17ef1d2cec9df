"""A step is committed or it is not, and a resumed run starts from the last one that has a checkpoint."""

import asyncio
import errno
import os
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longtail import events as ev
from longtail.errors import DiskFull
from longtail.history import Position, history
from longtail.journal import SqliteJournal, list_trajectories, load_trajectory, read_events, read_history
from longtail.types import Group, Outcome, StepResult, Tally, Task, Trajectory


class CountingTrainer:
    """Weights are the number of steps taken; a checkpoint is a directory that holds it."""

    def __init__(self, fail=None):
        self.weights = 0
        self.fail = fail

    async def save(self, path):
        if self.fail:
            raise self.fail
        half = path.with_name(f".{path.name}.tmp")
        half.mkdir(exist_ok=True)
        (half / "weights").write_text(str(self.weights))
        half.rename(path)

    async def load(self, path):
        self.weights = int((path / "weights").read_text())


def opened(path, *, checkpoint_every=1, keep=2):
    return SqliteJournal.open(path, checkpoint_every=checkpoint_every, keep=keep, wall=lambda: 5.0)


def group(index):
    one = (ended(f"g{index}.0.0", f"g{index}", index / 2),)
    return Group(id=f"g{index}", index=index, task=Task(id=f"t{index}"), epoch=0, trajectories=one, version_first=0)


async def train(journal, trainer, step, indices):
    trainer.weights += 1
    groups = [group(i) for i in indices]
    await journal.commit(step, groups, [[[0.25]]] * len(groups), StepResult(metrics={"loss": 0.5}, seconds=1.0))


def saved(path):
    return sorted(p.name for p in (path / "checkpoints").iterdir())


async def test_a_new_run_starts_at_zero_and_says_nothing_of_a_resume(tmp_path):
    journal = opened(tmp_path)
    await journal.append(ev.run_started(manifest={}, config={}))
    assert await journal.resume(CountingTrainer()) == 0
    assert journal.position() == Position()
    assert [e.kind for e in read_events(tmp_path)] == [ev.RUN_STARTED]
    await journal.close()


async def test_a_run_that_died_before_its_first_step_starts_at_zero_and_says_so(tmp_path):
    journal = opened(tmp_path)
    await journal.append(ev.group_admitted(group_id="g0", index=0, task=Task(id="t"), epoch=0))
    await journal.close()
    journal = opened(tmp_path)
    assert await journal.resume(CountingTrainer()) == 0
    assert read_history(tmp_path).resumes == 1
    await journal.close()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(every=st.integers(1, 4), keep=st.integers(1, 3), lives=st.lists(st.integers(0, 5), min_size=1, max_size=4))
async def test_after_any_crashes_the_live_steps_are_those_of_an_uninterrupted_run(every, keep, lives, tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    done = 0
    for steps in lives:
        journal, trainer = opened(path, checkpoint_every=every, keep=keep), CountingTrainer()
        step = await journal.resume(trainer)
        assert step == done - done % every == trainer.weights
        assert journal.rolled_back == tuple(range(step + 1, done + 1))
        assert journal.position() == Position(next_index=2 * step)
        for n in range(step + 1, step + 1 + steps):
            await train(journal, trainer, n, [2 * n - 2, 2 * n - 1])
        done = step + steps
        assert len(saved(path)) == min(keep, done // every)
        await journal.close()
    past = read_history(path)
    assert [s.step for s in past.steps] == list(range(1, done + 1))
    assert [i for s in past.steps for i in s.indices] == list(range(2 * done))


async def test_the_last_step_always_has_a_checkpoint(tmp_path):
    journal, trainer = opened(tmp_path, checkpoint_every=5), CountingTrainer()
    await journal.resume(trainer)
    for step in (1, 2, 3):
        await train(journal, trainer, step, [step])
    await journal.finish(3)
    await journal.close()
    assert read_history(tmp_path).ended == ev.RUN_FINISHED
    journal, trainer = opened(tmp_path, checkpoint_every=5), CountingTrainer()
    assert await journal.resume(trainer) == 3 == trainer.weights
    assert read_history(tmp_path).ended == ""
    await journal.finish(3)
    await journal.close()
    assert saved(tmp_path) == ["step-000003"]


async def test_a_committed_step_whose_checkpoint_was_deleted_is_not_resumed_from(tmp_path):
    journal, trainer = opened(tmp_path), CountingTrainer()
    await journal.resume(trainer)
    for step in (1, 2):
        await train(journal, trainer, step, [step - 1])
    await journal.close()
    shutil.rmtree(tmp_path / "checkpoints/step-000002")
    journal = opened(tmp_path)
    assert await journal.resume(trainer) == 1
    assert (journal.rolled_back, journal.position()) == ((2,), Position(next_index=1))
    await journal.close()


async def test_groups_dropped_before_a_commit_stay_dropped_and_those_after_it_come_again(tmp_path):
    journal, trainer = opened(tmp_path), CountingTrainer()
    await journal.resume(trainer)
    await journal.append(ev.group_dropped(group_id="g1", index=1, reason="no usable attempts"))
    await journal.append(ev.group_dropped(group_id="e", index=-1, reason="an evaluation is no training data"))
    await train(journal, trainer, 1, [0, 3])
    await journal.append(ev.group_dropped(group_id="g4", index=4, reason="stale"))
    await journal.close()
    journal = opened(tmp_path)
    await journal.resume(trainer)
    assert journal.position() == Position(next_index=4, redo=(2,))
    await train(journal, trainer, 2, [2, 4])
    assert history(read_events(tmp_path)).position() == Position(next_index=5)
    await journal.close()


async def test_the_last_configuration_holds_and_the_first_start_counts(tmp_path):
    for num_steps in (3, 9):
        journal = SqliteJournal.open(tmp_path, wall=lambda: float(num_steps))  # noqa: B023 called in this life only
        await journal.append(ev.run_started(manifest={}, config={"num_steps": num_steps}))
        await journal.close()
    past = read_history(tmp_path)
    assert (past.started["config"]["num_steps"], past.started_at_s) == (9, 3.0)


async def test_a_stop_is_told_from_a_crash(tmp_path):
    journal, trainer = opened(tmp_path), CountingTrainer()
    await journal.resume(trainer)
    await train(journal, trainer, 1, [0])
    assert read_history(tmp_path).ended == ""
    await journal.stop("interrupted")
    past = read_history(tmp_path)
    assert (past.ended, past.ended_reason, past.step) == (ev.RUN_STOPPED, "interrupted", 1)
    await journal.close()


@pytest.mark.parametrize("full", [False, True])
async def test_a_stop_saves_the_last_step_where_it_can_and_is_a_stop_all_the_same(tmp_path, full):
    journal, trainer = opened(tmp_path, checkpoint_every=5), CountingTrainer()
    await journal.resume(trainer)
    await train(journal, trainer, 1, [0])
    trainer.fail = OSError(errno.ENOSPC, "no room") if full else None
    await journal.stop("interrupted", save=True)
    assert read_history(tmp_path).ended == ev.RUN_STOPPED
    await journal.close()
    journal, trainer = opened(tmp_path, checkpoint_every=5), CountingTrainer()
    assert await journal.resume(trainer) == trainer.weights == (0 if full else 1)
    await journal.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_disk_that_fills_during_a_checkpoint_leaves_the_step_before(tmp_path, code):
    journal, trainer = opened(tmp_path), CountingTrainer()
    await journal.resume(trainer)
    await train(journal, trainer, 1, [0])
    trainer.fail = OSError(code, "no room")
    with pytest.raises(DiskFull, match=str(tmp_path)):
        await train(journal, trainer, 2, [1])
    await journal.close()
    journal, trainer = opened(tmp_path), CountingTrainer()
    assert await journal.resume(trainer) == 1 == trainer.weights
    await journal.close()


async def test_a_step_out_of_order_is_a_broken_invariant(tmp_path):
    journal = opened(tmp_path)
    await journal.resume(CountingTrainer())
    with pytest.raises(AssertionError, match="must follow"):
        await journal.commit(2, [], [], StepResult(metrics={}))
    await journal.close()


def run_until_line(path: Path, last: int) -> bool:
    """Two steps in a process that dies, as by kill -9, at its `last` line of journal code; True: it got through."""

    def trace(frame, what, _):
        nonlocal last
        if "longtail/journal/" not in frame.f_code.co_filename:
            return None
        if what == "line":
            last -= 1
            if last < 0:
                os._exit(9)
        return trace

    async def two_steps():
        journal, trainer = opened(path, keep=1), CountingTrainer()
        start = await journal.resume(trainer)
        sys.settrace(trace)
        for step in (start + 1, start + 2):
            await train(journal, trainer, step, [step - 1])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child runs nothing of the parent's threads
        child = os.fork()
    if child == 0:
        try:
            asyncio.run(two_steps())
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), code
    return code == 0


def resumed_step(path):
    async def resume():
        journal, trainer = opened(path, keep=1), CountingTrainer()
        step = await journal.resume(trainer)
        await journal.close()
        return step, trainer.weights, journal.position()

    return asyncio.run(resume())


def test_a_crash_at_any_line_of_a_commit_leaves_the_old_step_or_the_new_one(tmp_path):
    seen, lines = set(), 0
    while True:
        path = tmp_path / str(lines)
        through = run_until_line(path, lines)
        step, weights, position = resumed_step(path)
        assert weights == step
        assert position == Position(next_index=step)
        assert saved(path) == ([f"step-{step:06d}"] if step else [])
        seen.add(step)
        if through:
            break
        lines += 4
    assert seen == {0, 1, 2}
    assert lines > 60


def attempt(trajectory_id, group_id, *, reward, split="train"):
    start = ev.attempt_started(
        trajectory_id=trajectory_id, task_id="t", group_id=group_id, member=0, attempt=0, started_s=0.0, split=split
    )
    return start, ev.attempt_ended(ended(trajectory_id, group_id, reward))


def ended(trajectory_id, group_id, reward):
    return Trajectory(
        id=trajectory_id,
        task_id="t",
        group_id=group_id,
        member=0,
        attempt=0,
        calls=(),
        outcome=Outcome.DONE,
        reward=reward,
        score={"solved": reward},
        ended_s=2.0,
    )


async def test_trajectories_of_rolled_back_groups_are_left_out_until_they_live_again(tmp_path):
    journal, trainer = opened(tmp_path, checkpoint_every=2), CountingTrainer()
    await journal.resume(trainer)
    await journal.append(*attempt("e0", "eval", reward=1.0, split="test"))
    await journal.append(
        ev.eval_finished(step=0, split="test", tally=Tally(successes=1, scored=1, unscored=0, reward=1.0))
    )
    for step in (1, 2, 3):
        await journal.append(*attempt(f"g{step}.0.0", f"g{step}", reward=step / 2))
        await journal.append(ev.group_taken(group(step), step=step))
        await train(journal, trainer, step, [step])
    unfinished, _ = attempt("g4.0.0", "g4", reward=0.0)
    await journal.append(unfinished)
    await journal.close()
    lines = {line.id: line for line in list_trajectories(tmp_path)}
    assert [line.step for line in lines.values()] == [None, 1, 2, 3, None]
    assert [line.solved for line in lines.values()] == [True, False, True, True, False]
    assert (lines["g4.0.0"].outcome, lines["g4.0.0"].reason) == (None, ev.UNFINISHED)
    assert (lines["g2.0.0"].advantages, lines["g2.0.0"].seconds) == ([0.25], 2.0)
    journal = opened(tmp_path, checkpoint_every=2)
    assert await journal.resume(trainer) == 2
    assert [line.id for line in list_trajectories(tmp_path)] == ["e0", "g1.0.0", "g2.0.0"]
    assert len(list_trajectories(tmp_path, superseded=True)) == 5
    await journal.append(*attempt("g3.0.0", "g3", reward=0.0))
    await train(journal, trainer, 3, [3])
    again = list_trajectories(tmp_path)[-1]
    assert (again.id, again.reward, again.step) == ("g3.0.0", 0.0, 3)
    assert load_trajectory(tmp_path, "g3.0.0").reward == 0.0
    assert list(read_history(tmp_path).evaluations) == [(0, "test")]
    await journal.close()
