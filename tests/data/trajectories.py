"""Builders of trajectories for tests of rows and packing."""

from __future__ import annotations

from longtail.types import Completion, Finish, Group, Limits, ModelCall, Outcome, Task, Trajectory


def completion(ids, logprobs=None, log_mass=None, version=0):
    size = len(ids)
    return Completion(
        ids=tuple(ids),
        logprobs=tuple(logprobs or [-1.0] * size),
        log_mass=tuple(log_mass or [0.0] * size),
        versions=(version,) * size,
        finish=Finish.STOP,
    )


def model_call(index, parent, delta, reply, temperature=1.0, version=0, logprobs=None, log_mass=None):
    return ModelCall(
        index=index,
        parent=parent,
        delta_ids=tuple(delta),
        completion=completion(reply, logprobs, log_mass, version),
        temperature=temperature,
    )


def trajectory(group, member, calls, reward=1.0, outcome=Outcome.DONE):
    return Trajectory(
        id=f"{group}.{member}.0",
        task_id=f"task-{group}",
        group_id=group,
        member=member,
        attempt=0,
        calls=tuple(calls),
        outcome=outcome,
        reward=reward,
    )


def group_of(trajectories, group="g", tokens=100):
    task = Task(id=f"task-{group}", limits=Limits(tokens=tokens))
    return Group(id=group, index=0, task=task, epoch=0, trajectories=tuple(trajectories), version_first=0)
