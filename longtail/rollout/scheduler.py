"""Keeps groups of attempts in flight, and hands finished ones to training, none staler than `max_lag`.

Not a queue of requests (the engine batches those) and not the loop. One asyncio task per group, one per attempt.

    tasks --admit()--> group task --run_attempt() x G--> ready --take()--> training --release()

Who waits for whom: attempts wait for a slot (`max_attempts`); take() waits for ready groups. take() admits into the
places that release() has freed, and a group that is dropped is replaced at once. Nothing else queues.

The staleness bound. A group admitted at version v must be trained by step v + max_lag: its deadline. With P groups per
step at most (max_lag + 1) * P groups are alive (in flight, ready or being trained). take() picks ready groups by
deadline, and waits when what it would leave behind could no longer be trained in time. So no group is consumed more
than max_lag versions after its admission, and none is thrown away for being slow.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from longtail import events
from longtail.errors import RETRIES, InfrastructureError, TaskError, first_cause
from longtail.history import Position
from longtail.rollout.attempt import Assignment, World, deadline_s, run_attempt
from longtail.rollout.model import derive_seed
from longtail.types import Group, Outcome, PolicyVersion, Sampling, Task, Trajectory

CLOSING_S = 30.0  # what an attempt has after its deadline to give back its sandboxes, before the run counts as stalled


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the scheduler has to keep to."""

    seed: int
    num_steps: int
    groups_per_step: int
    group_size: int
    max_lag: int
    max_attempts: int
    min_usable: int
    retries: int
    backoff_s: float
    stall_s: float
    failure_limit: float
    sampling: Sampling


@dataclass(slots=True, kw_only=True)
class _Flight:
    """A group that is alive."""

    index: int
    admitted: PolicyVersion
    group: Group | None = None  # set when ready


class Scheduler:
    """Implements ports.Rollouts once started. Owns the group tasks."""

    def __init__(
        self, world: World, tasks: Sequence[Task], plan: Plan, position: Callable[[], Position] = Position
    ) -> None:
        self._world = world
        self._tasks = tasks
        self._plan = plan
        self._position = position  # asked at start(): where the data stands after a resume
        self._redo: deque[int] = deque()  # admission numbers to run again
        self._next = 0  # the next new admission number: task and epoch follow from it
        self._version: PolicyVersion = 0
        self._alive: dict[int, _Flight] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(plan.max_attempts)
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._ended: Counter[str] = Counter()  # attempts since the last take(), by class of outcome
        self._lost_groups = 0  # dropped one after the other
        self._progress_s = 0.0
        self._deadlines: dict[str, float] = {}  # of the attempts in flight, by trajectory id

    @asynccontextmanager
    async def start(self, version: PolicyVersion) -> AsyncGenerator[Scheduler]:
        """Serve take() until the block ends; then whatever is in flight is cancelled."""
        position = self._position()
        self._redo.extend(position.redo)
        self._next = position.next_index
        self._version = version
        self._progress_s = self._world.clock.now()
        try:
            yield self
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def take(self, count: int) -> list[Group]:
        self._admit()  # not in release(): at max_lag = 0 an evaluation between two steps has the machine to itself
        self._progress_s = self._world.clock.now()  # nobody waited while a step was trained
        while True:
            if self._failure is not None:
                raise self._failure
            chosen = self._choose(count)
            if chosen is not None:
                break
            await self._wait()
        self._check_failures()
        groups = [flight.group for flight in chosen if flight.group is not None]
        step = self._version + 1
        await self._world.journal.append(*(events.group_taken(group, step=step) for group in groups))
        return groups

    def release(self, groups: Sequence[Group], version: PolicyVersion) -> None:
        for group in groups:
            del self._alive[group.index]
        self._version = version

    async def once(self, tasks: Sequence[Task], *, name: str, sampling: Sampling) -> list[Group]:
        async def one(number: int, task: Task) -> Group:
            group_id = f"{name}-{number}"
            await self._world.journal.append(
                events.group_admitted(group_id=group_id, index=-1, task=task, epoch=0, split=name)
            )
            seed = derive_seed(self._plan.seed, "once", task.id)
            base = Assignment(
                task=task, group_id=group_id, member=0, attempt=0, seed=seed, sampling=sampling, split=name
            )
            return self._group(group_id, -1, task, 0, (await self._member(base),))

        read = [_task(tasks, number) for number in range(len(tasks))]  # all of them, before anything starts
        jobs = [asyncio.create_task(one(number, task)) for number, task in enumerate(read)]
        for job in jobs:
            job.add_done_callback(lambda _: self._changed.set())
        self._progress_s = self._world.clock.now()
        try:
            while len(groups := [job.result() for job in jobs if job.done()]) < len(jobs):
                self._check_grades(groups, len(jobs))
                await self._wait()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        self._check_failures()
        self._check_grades(groups, len(jobs))
        return groups

    def _check_grades(self, groups: Sequence[Group], total: int) -> None:
        """An evaluation of which too much cannot be graded is no result."""
        lost = Counter(t.reason for group in groups for t in group.trajectories if t.outcome is Outcome.TASK)
        if lost.total() > self._plan.failure_limit * total:
            raise TaskError(f"{lost.total()} of {total} tasks could not be graded, most often: {_commonest(lost)}")

    # --- admission and choice -------------------------------------------------------------------------------------

    def _admit(self) -> None:
        plan = self._plan
        wanted = min(plan.max_lag + 1, plan.num_steps - self._version) * plan.groups_per_step
        while len(self._alive) < wanted:
            flight = _Flight(index=self._next_index(), admitted=self._version)
            self._alive[flight.index] = flight
            task = asyncio.create_task(self._run_group(flight), name=f"group-{flight.index}")
            self._running.add(task)
            task.add_done_callback(self._group_done)

    def _next_index(self) -> int:
        if self._redo:
            return self._redo.popleft()
        self._next += 1
        return self._next - 1

    def _choose(self, count: int) -> list[_Flight] | None:
        """The groups of the next step in admission order, or None while it must wait for one that is not ready."""
        ready = sorted((f for f in self._alive.values() if f.group is not None), key=lambda f: (f.admitted, f.index))
        chosen = ready[:count]
        left = self._alive.keys() - {flight.index for flight in chosen}
        due = Counter(self._alive[index].admitted + self._plan.max_lag - self._version for index in left)
        late = any(sum(n for steps, n in due.items() if steps <= limit) > limit * count for limit in due)
        if len(chosen) < count or late:
            return None
        return sorted(chosen, key=lambda flight: flight.index)

    async def _wait(self) -> None:
        """Until something ends. Raises InfrastructureError when nothing does for `stall_s`, nor by the deadline of any
        attempt in flight."""
        self._changed.clear()
        while not self._changed.is_set():
            now = self._world.clock.now()
            left = max(self._progress_s + self._plan.stall_s, self._last_deadline() + CLOSING_S) - now
            if left <= 0:
                waiting = sorted(flight.index for flight in self._alive.values() if flight.group is None)
                groups = f"; groups in flight: {waiting[:8]}" if waiting else ""
                raise InfrastructureError(f"no attempt ended for {now - self._progress_s:g} s{groups}")
            with suppress(TimeoutError):
                async with self._world.clock.timeout(left):
                    await self._changed.wait()

    def _last_deadline(self) -> float:
        return max(self._deadlines.values(), default=-math.inf)

    def _check_failures(self) -> None:
        """Hold the step when too much of it was lost to infrastructure."""
        share = self._infrastructure_share()
        if share > self._plan.failure_limit:
            reason = _commonest(Counter({name: count for name, count in self._ended.items() if name}))
            raise InfrastructureError(
                f"{share:.0%} of the attempts of this step failed for infrastructure reasons, most often: {reason}"
            )
        self._ended.clear()

    def _infrastructure_share(self) -> float:
        total = sum(self._ended.values())
        return 1 - self._ended[""] / total if total else 0.0

    # --- one group ------------------------------------------------------------------------------------------------

    def _group_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
            self._failure = first_cause(error) or error
        self._changed.set()

    async def _run_group(self, flight: _Flight) -> None:
        plan, index = self._plan, flight.index
        epoch, place = divmod(index, len(self._tasks))
        task = _task(self._tasks, place)
        group_id = f"g{index}"
        await self._world.journal.append(events.group_admitted(group_id=group_id, index=index, task=task, epoch=epoch))
        members = [
            Assignment(
                task=task,
                group_id=group_id,
                member=member,
                attempt=0,
                seed=derive_seed(plan.seed, task.id, epoch, member),
                sampling=plan.sampling,
            )
            for member in range(plan.group_size)
        ]
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(self._member(member)) for member in members]
        group = self._group(group_id, index, task, epoch, tuple(job.result() for job in jobs))
        if len(group.usable) >= min(plan.min_usable, plan.group_size):
            await self._world.journal.append(events.group_ready(group))
            flight.group = group
            self._lost_groups = 0
        else:
            await self._drop(group)

    async def _drop(self, group: Group) -> None:
        reasons = Counter(t.reason or "not scored" for t in group.trajectories if not t.usable)
        reason = f"{len(group.usable)} of {len(group.trajectories)} attempts usable; {_commonest(reasons)}"
        await self._world.journal.append(events.group_dropped(group_id=group.id, index=group.index, reason=reason))
        self._lost_groups += 1
        if self._lost_groups >= max(4, self._plan.groups_per_step):
            kind = InfrastructureError if self._infrastructure_share() > 0 else TaskError
            raise kind(f"{self._lost_groups} groups in a row were lost; the last one: {reason}")
        del self._alive[group.index]
        self._admit()

    async def _member(self, assignment: Assignment) -> Trajectory:
        """Attempts of one member until one is not lost, or the budget of how it was lost is spent."""
        spent: Counter[Outcome] = Counter()  # retries
        while True:
            trajectory = await self._attempt(replace(assignment, attempt=spent.total()))
            self._note_end(trajectory)
            outcome = trajectory.outcome
            if spent[outcome] >= min(RETRIES[outcome], self._plan.retries):
                return trajectory
            await self._world.clock.sleep(self._plan.backoff_s * 2 ** spent[outcome])
            spent[outcome] += 1

    async def _attempt(self, assignment: Assignment) -> Trajectory:
        name = assignment.trajectory_id
        async with self._slots:
            self._deadlines[name] = self._world.clock.now() + deadline_s(self._world, assignment.task)
            try:
                return await run_attempt(self._world, assignment)
            finally:
                del self._deadlines[name]

    def _note_end(self, trajectory: Trajectory) -> None:
        lost = trajectory.outcome is Outcome.INFRASTRUCTURE
        self._ended[trajectory.reason if lost else ""] += 1
        self._progress_s = self._world.clock.now()
        self._changed.set()

    def _group(self, group_id: str, index: int, task: Task, epoch: int, trajectories: tuple[Trajectory, ...]) -> Group:
        versions = [version for t in trajectories for call in t.model_calls for version in call.completion.versions]
        return Group(
            id=group_id,
            index=index,
            task=task,
            epoch=epoch,
            trajectories=trajectories,
            version_first=min(versions, default=self._version),
        )


def _task(tasks: Sequence[Task], place: int) -> Task:
    """Raises TaskError for whatever the data set makes of a place that holds no task."""
    try:
        task = tasks[place]
    except Exception as error:  # the data set is the user's code
        raise TaskError(f"task {place} of the data set cannot be read: {type(error).__name__}: {error}") from error
    if why := events.why_no_task(task):
        raise TaskError(f"task {place} of the data set: {why}")
    return task


def _commonest(reasons: Counter[str]) -> str:
    return reasons.most_common(1)[0][0]
