"""Busy and idle seconds of lanes, on a clock that is told the time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.observe.tracer import LaneTracer


class Clock:
    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


def test_overlapping_bodies_of_a_lane_count_once():
    clock = Clock()
    tracer = LaneTracer(clock)
    with tracer.step(0):
        first, second = tracer.busy("tool"), tracer.busy("tool")
        first.__enter__()
        clock.time += 1
        second.__enter__()
        clock.time += 1
        first.__exit__(None, None, None)
        clock.time += 1
        second.__exit__(None, None, None)
        clock.time += 1
    assert (tracer.last.wall_s, tracer.last.busy_s, tracer.last.idle) == (4.0, {"tool": 3.0}, {"tool": 0.25})


def test_a_body_that_crosses_a_step_is_counted_in_each_step_its_part():
    clock = Clock()
    tracer = LaneTracer(clock)
    body = tracer.busy("sample")
    with tracer.step(0):
        clock.time += 1
        body.__enter__()
        clock.time += 2
    assert tracer.last.busy_s == {"sample": 2.0}
    with tracer.step(1):
        clock.time += 3
        body.__exit__(None, None, None)
        clock.time += 1
        assert tracer.so_far().busy_s == {"sample": 3.0}
    assert (tracer.last.step, tracer.last.busy_s) == (1, {"sample": 3.0})
    with tracer.step(2):
        clock.time += 1
    assert tracer.last.idle == {"sample": 1.0}


def test_a_body_that_raises_ends_its_busy_time():
    clock = Clock()
    tracer = LaneTracer(clock)
    with tracer.step(0):
        body = tracer.busy("train")
        body.__enter__()
        clock.time += 1
        assert not body.__exit__(KeyError, KeyError(), None)
        clock.time += 1
    assert tracer.last.busy_s == {"train": 1.0}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["open", "close", "step"]), st.integers(0, 3)), max_size=40))
def test_busy_seconds_over_all_steps_are_the_union_of_the_bodies(actions):
    clock = Clock()
    tracer = LaneTracer(clock)
    open_bodies, expected, counted = [], 0, 0.0
    step = tracer.step(0)
    step.__enter__()
    for action, wait in actions:
        if action == "open":
            body = tracer.busy("tool")
            body.__enter__()
            open_bodies.append(body)
        elif action == "close" and open_bodies:
            open_bodies.pop(0).__exit__(None, None, None)
        elif action == "step":
            step.__exit__(None, None, None)
            counted += tracer.last.busy_s.get("tool", 0.0)
            step = tracer.step(1)
            step.__enter__()
        expected += wait if open_bodies else 0
        clock.time += wait
    step.__exit__(None, None, None)
    assert counted + tracer.last.busy_s.get("tool", 0.0) == expected
