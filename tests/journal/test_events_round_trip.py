"""The nouns come back from their events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import events as ev
from longtail.journal.codec import event_of, row_of
from longtail.types import Completion, Finish, Limits, Message, ModelCall, Outcome, Task, ToolCall, Trajectory

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
TEXT = st.text(max_size=10)


@st.composite
def model_calls(draw, index=0):
    ids = draw(IDS)
    floats = st.lists(st.floats(-50, 0, width=32), min_size=len(ids), max_size=len(ids)).map(tuple)
    versions = st.lists(st.integers(0, 1000), min_size=len(ids), max_size=len(ids)).map(tuple)
    completion = Completion(
        ids=ids,
        logprobs=draw(floats),
        log_mass=draw(floats),
        versions=draw(versions),
        finish=draw(st.sampled_from(Finish)),
        cached_tokens=draw(st.integers(0, 100)),
        queue_s=draw(NUMBERS),
        run_s=draw(NUMBERS),
    )
    parent = draw(st.none() | st.integers(0, 10))
    return ModelCall(
        index=index,
        parent=parent,
        delta_ids=draw(IDS),
        completion=completion,
        temperature=draw(NUMBERS),
        ended_s=draw(NUMBERS),
    )


@st.composite
def tool_calls(draw, index=0):
    arguments = draw(st.dictionaries(TEXT, TEXT | st.integers(-5, 5) | st.none()))
    return ToolCall(
        index=index,
        key=draw(TEXT),
        name=draw(TEXT),
        arguments=arguments,
        result=draw(TEXT),
        error=draw(st.none() | TEXT),
        progress=draw(st.none() | NUMBERS),
    )


@st.composite
def trajectories(draw, member=0):
    kinds = draw(st.lists(st.sampled_from([model_calls, tool_calls]), max_size=4))
    return Trajectory(
        id=f"g.{member}.0",
        task_id=draw(TEXT),
        group_id="g",
        member=member,
        attempt=draw(st.integers(0, 3)),
        calls=tuple(draw(kind(index)) for index, kind in enumerate(kinds)),
        outcome=draw(st.sampled_from(Outcome)),
        reason=draw(TEXT),
        score=draw(st.none() | NUMBERS | st.dictionaries(TEXT, NUMBERS)),
        reward=draw(st.none() | NUMBERS),
        started_s=draw(NUMBERS),
        ended_s=draw(NUMBERS),
    )


def journaled(events):
    return [event_of((seq, *row_of(event, 1.0))) for seq, event in enumerate(events)]


def events_of(trajectory):
    start = ev.attempt_started(
        trajectory_id=trajectory.id,
        task_id=trajectory.task_id,
        group_id=trajectory.group_id,
        member=trajectory.member,
        attempt=trajectory.attempt,
        started_s=trajectory.started_s,
    )
    calls = [
        (ev.model_sampled if isinstance(call, ModelCall) else ev.tool_returned)(trajectory.id, call)
        for call in trajectory.calls
    ]
    reward = ev.reward_recorded(trajectory.id, score=trajectory.score, reward=trajectory.reward)
    return [start, *calls, reward, ev.attempt_ended(trajectory)]


@settings(max_examples=25, deadline=None)
@given(trajectories())
def test_a_trajectory_comes_back_whole(trajectory):
    assert ev.trajectory_from(journaled(events_of(trajectory))) == trajectory


@settings(max_examples=25, deadline=None)
@given(trajectories())
def test_a_second_start_of_the_same_id_begins_its_record_anew(trajectory):
    twice = events_of(trajectory)[:-2] + events_of(trajectory)
    assert ev.trajectory_from(journaled(twice)) == trajectory


@settings(max_examples=25, deadline=None)
@given(trajectories())
def test_a_trajectory_without_an_end_is_unfinished_not_failed_by_the_policy(trajectory):
    record = ev.trajectory_from(journaled(events_of(trajectory)[:-2]))
    assert (record.outcome, record.reason, record.usable) == (Outcome.CONTROL, ev.UNFINISHED, False)
    assert record.calls == trajectory.calls


def test_events_without_a_start_are_no_trajectory():
    with pytest.raises(ValueError, match=r"attempt\.started"):
        ev.trajectory_from([])


def test_a_task_comes_back_from_the_admission_of_its_group():
    task = Task(
        id="t",
        prompt=(Message(role="user", content="fix it"),),
        data={"files": {"a.py": "x = 1"}},
        family="f",
        limits=Limits(turns=3, seconds=1.5),
    )
    (admitted,) = journaled([ev.group_admitted(group_id="g", index=4, task=task, epoch=1)])
    assert ev.task_from(admitted.data["task"]) == task
