"""The events of a run: one function per kind builds the Event from the nouns, and `*_from` builds the nouns back.

Pure; knows nothing of storage (journal/) nor of who writes when (rollout/, loop.py, build.py). `at_s` and `seq` are
left to the journal. Payloads are JSON; ids, logprobs, log_mass and versions travel in `Event.arrays`.

    run.started   run.resumed   run.stopped   run.finished      version.published   eval.finished   checkpoint.saved
    group.admitted -> attempt.started -> (model.sampled | tool.returned | note)* -> reward.recorded -> attempt.ended
                   -> group.ready -> group.taken | group.dropped -> step.committed

A run that resumes at step s appends run.resumed: every step above s that was committed before it is superseded, and
so is what was dropped after the commit of s. A trajectory id may then live twice: an attempt.started begins its
record anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from longtail.types import (
    Advantages,
    Call,
    Completion,
    Event,
    Finish,
    Group,
    Json,
    Limits,
    Message,
    ModelCall,
    Outcome,
    PolicyVersion,
    Score,
    StepResult,
    Tally,
    Task,
    ToolCall,
    Trajectory,
)

RUN_STARTED = "run.started"
RUN_RESUMED = "run.resumed"
RUN_STOPPED = "run.stopped"
RUN_FINISHED = "run.finished"
VERSION_PUBLISHED = "version.published"
EVAL_FINISHED = "eval.finished"
CHECKPOINT_SAVED = "checkpoint.saved"
GROUP_ADMITTED = "group.admitted"
GROUP_READY = "group.ready"
GROUP_TAKEN = "group.taken"
GROUP_DROPPED = "group.dropped"
ATTEMPT_STARTED = "attempt.started"
ATTEMPT_ENDED = "attempt.ended"
MODEL_SAMPLED = "model.sampled"
TOOL_RETURNED = "tool.returned"
REWARD_RECORDED = "reward.recorded"
STEP_COMMITTED = "step.committed"
NOTE = "note"

UNFINISHED = "unfinished"  # reason of a trajectory whose record has no end: it runs, or its driver died


# --- the run --------------------------------------------------------------------------------------------------------


def run_started(*, manifest: Mapping[str, Json], config: Mapping[str, Json]) -> Event:
    """Each life of the driver may write one; the last holds. `config` is the resolved one, `manifest` the versions of
    python, torch, longtail, of the model and of the renderer."""
    return Event(kind=RUN_STARTED, data={"manifest": dict(manifest), "config": dict(config)})


def run_resumed(*, step: int, rolled_back: Sequence[int], checkpoint: str) -> Event:
    """Written by Journal.resume: `step` is what stands, `rolled_back` the committed steps that are done again."""
    return Event(kind=RUN_RESUMED, data={"step": step, "rolled_back": list(rolled_back), "checkpoint": checkpoint})


def run_stopped(*, step: int, reason: str) -> Event:
    """The driver ended on purpose before the last step: a user's stop, or a typed failure."""
    return Event(kind=RUN_STOPPED, data={"step": step, "reason": reason})


def run_finished(*, step: int) -> Event:
    """Written by Journal.finish."""
    return Event(kind=RUN_FINISHED, data={"step": step})


def version_published(version: PolicyVersion, *, seconds: float = 0.0) -> Event:
    return Event(kind=VERSION_PUBLISHED, data={"version": version, "seconds": seconds})


def eval_finished(*, step: int, split: str, tally: Tally) -> Event:
    counts = {name: getattr(tally, name) for name in Tally.__slots__}
    return Event(kind=EVAL_FINISHED, data={"step": step, "split": split, **counts})


def checkpoint_saved(*, step: int, checkpoint: str) -> Event:
    """A checkpoint of an already committed step (the last one of a run)."""
    return Event(kind=CHECKPOINT_SAVED, data={"step": step, "checkpoint": checkpoint})


def step_committed(
    step: int,
    groups: Sequence[Group],
    advantages: Sequence[Advantages | None],
    result: StepResult,
    *,
    checkpoint: str = "",
) -> Event:
    """Written by Journal.commit. `advantages` as the loop has them: None for a group that was left out. `checkpoint` is
    relative to the run directory; "" when none was due."""
    by_id = {
        trajectory.id: list(of_turns)
        for group, of_group in zip(groups, advantages, strict=True)
        if of_group is not None
        for trajectory, of_turns in zip(group.usable, of_group, strict=True)
    }
    return Event(
        kind=STEP_COMMITTED,
        data={
            "step": step,
            "groups": [group.id for group in groups],
            "indices": [group.index for group in groups],
            "advantages": by_id,
            "metrics": dict(result.metrics),
            "seconds": result.seconds,
            "checkpoint": checkpoint,
        },
    )


# --- groups ---------------------------------------------------------------------------------------------------------


def group_admitted(*, group_id: str, index: int, task: Task, epoch: int, split: str = "train") -> Event:
    """The only place that holds the whole task. `split` is the data set, "train" for what is trained."""
    data = {"group": group_id, "index": index, "epoch": epoch, "split": split, "task": task_json(task)}
    return Event(kind=GROUP_ADMITTED, data=data)


def group_ready(group: Group) -> Event:
    return Event(
        kind=GROUP_READY, data={**_of_group(group), "usable": len(group.usable), "size": len(group.trajectories)}
    )


def group_taken(group: Group, *, step: int) -> Event:
    """`step` is the one it is trained in."""
    return Event(kind=GROUP_TAKEN, data={**_of_group(group), "step": step})


def group_dropped(*, group_id: str, index: int, reason: str) -> Event:
    """The group counts as consumed: a resumed run does not roll it out again (unless the drop itself rolled back)."""
    return Event(kind=GROUP_DROPPED, data={"group": group_id, "index": index, "reason": reason})


def _of_group(group: Group) -> dict[str, Json]:
    return {"group": group.id, "index": group.index, "version_first": group.version_first}


# --- attempts -------------------------------------------------------------------------------------------------------


def attempt_started(
    *,
    trajectory_id: str,
    task_id: str,
    group_id: str,
    member: int,
    attempt: int,
    started_s: float,
    split: str = "train",
) -> Event:
    data = {"task": task_id, "group": group_id, "member": member, "attempt": attempt}
    return Event(kind=ATTEMPT_STARTED, trajectory=trajectory_id, data={**data, "started_s": started_s, "split": split})


def model_sampled(trajectory_id: str, call: ModelCall) -> Event:
    done = call.completion
    return Event(
        kind=MODEL_SAMPLED,
        trajectory=trajectory_id,
        data={
            "index": call.index,
            "parent": call.parent,
            "temperature": call.temperature,
            "started_s": call.started_s,
            "ended_s": call.ended_s,
            "finish": done.finish.value,
            "cached_tokens": done.cached_tokens,
            "queue_s": done.queue_s,
            "run_s": done.run_s,
        },
        arrays={
            "delta_ids": call.delta_ids,
            "ids": done.ids,
            "logprobs": done.logprobs,
            "log_mass": done.log_mass,
            "versions": done.versions,
        },
    )


def tool_returned(trajectory_id: str, call: ToolCall) -> Event:
    return Event(
        kind=TOOL_RETURNED,
        trajectory=trajectory_id,
        data={
            "index": call.index,
            "key": call.key,
            "name": call.name,
            "arguments": dict(call.arguments),
            "result": call.result,
            "error": call.error,
            "progress": call.progress,
            "started_s": call.started_s,
            "ended_s": call.ended_s,
        },
    )


def note(kind: str, trajectory_id: str = "", data: Mapping[str, Json] | None = None) -> Event:
    """A free event of an environment: ctx.event(kind, **data)."""
    return Event(kind=NOTE, trajectory=trajectory_id, data={"kind": kind, "data": dict(data or {})})


def reward_recorded(trajectory_id: str, *, score: Score, reward: float | None) -> Event:
    return Event(kind=REWARD_RECORDED, trajectory=trajectory_id, data={"score": _plain(score), "reward": reward})


def attempt_ended(trajectory: Trajectory) -> Event:
    calls = trajectory.model_calls
    return Event(
        kind=ATTEMPT_ENDED,
        trajectory=trajectory.id,
        data={
            "outcome": trajectory.outcome.value,
            "reason": trajectory.reason,
            "score": _plain(trajectory.score),
            "reward": trajectory.reward,
            "started_s": trajectory.started_s,
            "ended_s": trajectory.ended_s,
            "turns": len(calls),
            "tokens": sum(len(call.completion.ids) for call in calls),
        },
    )


def _plain(score: Score) -> Json:
    return dict(score) if isinstance(score, Mapping) else score


# --- and back -------------------------------------------------------------------------------------------------------


def task_json(task: Task) -> dict[str, Json]:
    """A task as plain JSON."""
    limits = task.limits
    return {
        "id": task.id,
        "prompt": [[message.role, message.content] for message in task.prompt],
        "data": dict(task.data),
        "family": task.family,
        "limits": {name: getattr(limits, name) for name in Limits.__slots__},
    }


def why_no_task(task: object) -> str:
    """What keeps something from being a task that can be journaled; "" when nothing does."""
    if not isinstance(task, Task):
        return f"expected a longtail.Task, got one of {type(task).__name__}"
    try:
        json.dumps(task_json(task))
    except (TypeError, ValueError) as error:
        return f"task {task.id!r} cannot be written as JSON: {error}"
    return ""


def task_from(data: Mapping[str, Json]) -> Task:
    """The inverse of task_json()."""
    return Task(
        id=data["id"],
        prompt=tuple(Message(role=role, content=content) for role, content in data["prompt"]),
        data=data["data"],
        family=data["family"],
        limits=Limits(**data["limits"]),
    )


def model_call_from(event: Event) -> ModelCall:
    data, arrays = event.data, cast("Mapping[str, Sequence[Any]]", event.arrays)
    return ModelCall(
        index=data["index"],
        parent=data["parent"],
        delta_ids=tuple(arrays["delta_ids"]),
        completion=Completion(
            ids=tuple(arrays["ids"]),
            logprobs=tuple(arrays["logprobs"]),
            log_mass=tuple(arrays["log_mass"]),
            versions=tuple(arrays["versions"]),
            finish=Finish(data["finish"]),
            cached_tokens=data["cached_tokens"],
            queue_s=data["queue_s"],
            run_s=data["run_s"],
        ),
        temperature=data["temperature"],
        started_s=data["started_s"],
        ended_s=data["ended_s"],
    )


def tool_call_from(event: Event) -> ToolCall:
    return ToolCall(**event.data)


def trajectory_from(events: Iterable[Event]) -> Trajectory:
    """The record of one attempt from its events, in order. Without an end it is CONTROL with reason UNFINISHED.

    Raises ValueError when there is no attempt.started among them.
    """
    start: Event | None = None
    end: Mapping[str, Json] = {"outcome": Outcome.CONTROL.value, "reason": UNFINISHED}
    calls: list[Call] = []
    score: Mapping[str, Json] = {}
    for event in events:
        match event.kind:
            case "attempt.started":
                start, calls, score = event, [], {}
                end = {"outcome": Outcome.CONTROL.value, "reason": UNFINISHED}
            case "model.sampled":
                calls.append(model_call_from(event))
            case "tool.returned":
                calls.append(tool_call_from(event))
            case "reward.recorded":
                score = event.data
            case "attempt.ended":
                end = event.data
            case _:
                pass
    if start is None:
        raise ValueError("the events of a trajectory must begin with attempt.started")
    return _trajectory(start, tuple(calls), {**score, **end})


def _trajectory(start: Event, calls: tuple[Call, ...], end: Mapping[str, Json]) -> Trajectory:
    data = start.data
    last_s = calls[-1].ended_s if calls else data["started_s"]
    return Trajectory(
        id=start.trajectory,
        task_id=data["task"],
        group_id=data["group"],
        member=data["member"],
        attempt=data["attempt"],
        calls=calls,
        outcome=Outcome(end["outcome"]),
        reason=end["reason"],
        score=end.get("score"),
        reward=end.get("reward"),
        started_s=data["started_s"],
        ended_s=end.get("ended_s", last_s),
    )
