"""Runs one RolloutFn for one task and says how it ended. Every attempt ends in exactly one Outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import SupportsFloat, cast

from longtail import events
from longtail.errors import (
    DeadlineExpired,
    LimitReached,
    LongtailError,
    PolicyFailure,
    TaskError,
    classify,
    deciding,
)
from longtail.ports import Clock, Engine, Journal, Renderer, RolloutFn, Sandbox, Sandboxes, Timeout, Tracer
from longtail.rollout.limit import TimeLimit
from longtail.rollout.model import RecordedModel
from longtail.rollout.record import Recorder
from longtail.types import (
    Json,
    Outcome,
    Sampling,
    SandboxSpec,
    Score,
    Task,
    ToolCall,
    Trajectory,
)

# what ctx.progress() says within one tool call; calls may overlap
_said: ContextVar[list[float]] = ContextVar("said")
SCORING_S = 60.0  # what an attempt always has, after the time limit of its task, to be scored and closed


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all attempts of a run share."""

    rollout: RolloutFn
    engine: Engine
    renderer: Renderer
    sandboxes: Sandboxes
    journal: Journal
    trace: Tracer
    clock: Clock
    attempt_s: float  # deadline of one attempt, seconds; never before its time limit + SCORING_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One attempt to run."""

    task: Task
    group_id: str
    member: int
    attempt: int
    seed: int  # of the member: a retry samples the same tokens
    sampling: Sampling
    split: str = "train"

    @property
    def trajectory_id(self) -> str:
        return f"{self.group_id}.{self.member}.{self.attempt}"


class AttemptCtx:
    """Implements ports.Ctx for one attempt."""

    def __init__(self, world: World, assignment: Assignment, recorder: Recorder) -> None:
        self.task = assignment.task
        self.seed = assignment.seed
        self._time_limit = TimeLimit(world.clock, assignment.task.limits.seconds)
        self.model = RecordedModel(
            engine=world.engine,
            renderer=world.renderer,
            recorder=recorder,
            trace=world.trace,
            clock=world.clock,
            sampling=assignment.sampling,
            limits=assignment.task.limits,
            time_limit=self._time_limit,
            seed=assignment.seed,
        )
        self._world = world
        self._recorder = recorder
        self._tools = 0
        self._sandboxes: list[Sandbox] = []

    async def sandbox(self, spec: SandboxSpec) -> Sandbox:
        with self._world.trace.busy("sandbox"), self._time_limit.waiting():
            sandbox = await self._world.sandboxes.create(spec)
        self._sandboxes.append(sandbox)
        return sandbox

    async def tool(self, name: str, arguments: Mapping[str, Json], run: Callable[[], Awaitable[str]]) -> ToolCall:
        if self._tools >= self.task.limits.calls:
            raise LimitReached(f"limit of {self.task.limits.calls} tool calls")
        self._time_limit.left()  # none: nothing runs
        key = f"{self._recorder.trajectory_id}/t{self._tools}"
        self._tools += 1
        started = self._world.clock.now()
        said: list[float] = []
        result, raised = await self._outcome(name, run, said)
        call = ToolCall(
            index=self._recorder.next_index,
            key=key,
            name=name,
            arguments=arguments,
            result=result,
            error=None if raised is None else f"{type(raised).__name__}: {raised}",
            progress=said[-1] if said else None,
            started_s=started,
            ended_s=self._world.clock.now(),
        )
        await self._recorder.tool_call(call)
        if isinstance(raised, LongtailError) or (raised is not None and classify(raised) is Outcome.INFRASTRUCTURE):
            raise raised  # an outage is no observation: the policy would be scored for it
        return call

    async def _outcome(
        self, name: str, run: Callable[[], Awaitable[str]], said: list[float]
    ) -> tuple[str, BaseException | None]:
        """What a tool answers, or what it raised. What it says of its progress goes to `said`."""
        token = _said.set(said)
        try:
            with self._world.trace.busy("tool", tool=name):
                async with self._time_limit.spending():
                    return await run(), None
        except Exception as raised:
            return "", deciding(raised)
        finally:
            _said.reset(token)

    def progress(self, reward: float) -> None:
        _said.get([]).append(checked_reward(reward))

    async def event(self, kind: str, **data: Json) -> None:
        await self._recorder.note(kind, data)

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in self._sandboxes), return_exceptions=True)


def deadline_s(world: World, task: Task) -> float:
    """Seconds after which an attempt of the task is lost, whatever it does."""
    return max(world.attempt_s, task.limits.seconds + SCORING_S)


async def run_attempt(world: World, assignment: Assignment) -> Trajectory:
    """The record of one attempt; never raises for what the episode did. Cancellation passes through."""
    recorder = Recorder(assignment.trajectory_id, world.journal)
    started = world.clock.now()
    await world.journal.append(
        events.attempt_started(
            trajectory_id=assignment.trajectory_id,
            task_id=assignment.task.id,
            group_id=assignment.group_id,
            member=assignment.member,
            attempt=assignment.attempt,
            started_s=started,
            split=assignment.split,
        )
    )
    outcome, reason, score = await _run(world, assignment, recorder)
    trajectory = Trajectory(
        id=assignment.trajectory_id,
        task_id=assignment.task.id,
        group_id=assignment.group_id,
        member=assignment.member,
        attempt=assignment.attempt,
        calls=tuple(recorder.calls),
        outcome=outcome,
        reason=reason or recorder.ended,
        score=score,
        reward=reward_of(score),
        started_s=started,
        ended_s=world.clock.now(),
    )
    recorded = events.reward_recorded(trajectory.id, score=trajectory.score, reward=trajectory.reward)
    await world.journal.append(*([] if score is None else [recorded]), events.attempt_ended(trajectory))
    return trajectory


async def _run(world: World, assignment: Assignment, recorder: Recorder) -> tuple[Outcome, str, Score]:
    ctx = AttemptCtx(world, assignment, recorder)
    seconds = deadline_s(world, assignment.task)
    limit: Timeout | None = None
    try:
        async with world.clock.timeout(seconds) as limit:
            return Outcome.DONE, "", checked_score(await world.rollout(assignment.task, ctx))
    except Exception as error:
        cause = deciding(error)
        if isinstance(cause, PolicyFailure):
            return Outcome.POLICY, str(cause), 0.0
        if limit is not None and limit.expired():
            cause = DeadlineExpired(f"the attempt did not end within {seconds:g} s")
        return classify(cause), f"{type(cause).__name__}: {cause}", None
    finally:
        await ctx.close()


def checked_score(score: object) -> Score:
    """What a rollout returned, as plain finite numbers. Raises TaskError for anything else."""
    if score is None:
        return None
    try:
        if isinstance(score, Mapping):
            parts = cast("Mapping[object, SupportsFloat]", score)
            checked = {str(name): float(value) for name, value in parts.items()}
        else:
            checked = float(cast("SupportsFloat", score))
    except Exception as error:  # numbers of other libraries raise what they like
        raise TaskError(f"the score must be a number, or numbers by name, got {score!r:.200}") from error
    if not math.isfinite(sum(checked.values()) if isinstance(checked, dict) else checked):
        raise TaskError(f"the score must be a finite number, got {score!r:.200}")
    return checked


def checked_reward(reward: object) -> float:
    """A plain finite number. Raises TaskError for anything else."""
    checked = checked_score(reward)
    if not isinstance(checked, float):
        raise TaskError(f"the progress must be a finite number, got {reward!r:.200}")
    return checked


def reward_of(score: Score) -> float | None:
    """The scalar that is trained: the part named "reward", else the sum of the parts."""
    if isinstance(score, Mapping):
        return score["reward"] if "reward" in score else float(sum(score.values()))
    return score
