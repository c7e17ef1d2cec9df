"""Groups and trajectories for the tests of this room."""

from longtail.types import Completion, Finish, Group, ModelCall, Outcome, Task, ToolCall, Trajectory


def model_call(index=0, *, tokens=4, version=0, finish=Finish.STOP, parent=None):
    completion = Completion(
        ids=tuple(range(10, 10 + tokens)),
        logprobs=(-0.5,) * tokens,
        log_mass=(0.0,) * tokens,
        versions=(version,) * tokens,
        finish=finish,
        cached_tokens=3,
        queue_s=0.25,
        run_s=1.5,
    )
    return ModelCall(index=index, parent=parent, delta_ids=(1, 2, 3), completion=completion, ended_s=1.0)


def tool_call(index, *, result="ok", error=None, arguments=None):
    return ToolCall(
        index=index,
        key=f"k{index}",
        name="run_tests",
        arguments=arguments or {"path": "a.py"},
        result=result,
        error=error,
        started_s=1.0,
        ended_s=3.5,
    )


def trajectory(
    member=0, *, group="g0", reward=1.0, score="same", outcome=Outcome.DONE, reason="", calls=None, ended_s=4.0
):
    return Trajectory(
        id=f"{group}.{member}.0",
        task_id=f"task-{group}",
        group_id=group,
        member=member,
        attempt=0,
        calls=(model_call(),) if calls is None else tuple(calls),
        outcome=outcome,
        reason=reason,
        score={"solved": reward} if score == "same" else score,
        reward=reward,
        ended_s=ended_s,
    )


def group(index, *members, task=None):
    name = f"g{index}"
    return Group(
        id=name, index=index, task=task or Task(id=f"task-{name}"), epoch=0, trajectories=members, version_first=0
    )
