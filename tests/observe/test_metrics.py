"""The line of a step: what is counted, what is left out, and the file that keeps it."""

import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from observe_data import group, model_call, trajectory

from longtail.observe.intervals import wilson
from longtail.observe.metrics import (
    METRICS,
    MetricsFile,
    declared,
    dump_line,
    read_metrics,
    reduce_steps,
    step_metrics,
)
from longtail.observe.observer import Observer
from longtail.observe.progress import JsonProgress
from longtail.observe.tracer import StepRecord
from longtail.types import Finish, Outcome, StepResult

RECORD = StepRecord(step=4, wall_s=10.0, busy_s={"sample": 2.5, "train": 10.0})
RESULT = StepResult(metrics={"loss": 0.25, "grad_norm": 2.0}, seconds=6.0)


def lost(member, outcome=Outcome.INFRASTRUCTURE):
    return trajectory(member, reward=None, score=None, outcome=outcome, reason="engine unreachable")


def test_means_leave_out_what_is_not_usable_and_say_how_many():
    members = [trajectory(0, reward=1.0), trajectory(1, reward=0.0), lost(2), lost(3, Outcome.CONTROL)]
    line = step_metrics(5, [group(0, *members)], RESULT, RECORD)
    assert (line["reward"], line["success"], line["reward/solved"]) == (0.5, 0.5, 0.5)
    assert (line["attempts"], line["unusable"]) == (2, 2)
    assert (line["unusable/infrastructure"], line["unusable/control"]) == (1, 1)


def test_with_no_usable_attempt_means_are_unknown_not_zero():
    line = step_metrics(5, [group(0, lost(0))], RESULT, RECORD)
    assert (line["reward"], line["success"], line["staleness_max"]) == (None, None, None)


def test_staleness_is_counted_per_token_against_the_version_that_the_step_trains():
    old = trajectory(0, calls=[model_call(tokens=3, version=1), model_call(1, tokens=1, version=4)])
    line = step_metrics(5, [group(0, old)], RESULT, RECORD)
    assert (line["staleness_mean"], line["staleness_max"]) == (9 / 4, 3)


def test_groups_without_signal_are_counted_by_kind():
    groups = [
        group(0, trajectory(0), trajectory(1)),
        group(1, trajectory(0, reward=0.0), trajectory(1, reward=0.5)),
        group(2, trajectory(0, reward=0.0), trajectory(1)),
    ]
    line = step_metrics(5, groups, RESULT, RECORD)
    counts = [line[f"groups{name}"] for name in ("", "_solved_all", "_solved_none", "_same_reward")]
    assert counts == [3, 1, 1, 1]


def test_tokens_turns_truncation_and_idle_shares():
    members = [
        trajectory(0, calls=[model_call(tokens=6), model_call(1, tokens=4, finish=Finish.LENGTH)]),
        trajectory(1, calls=[model_call(tokens=2)]),
    ]
    line = step_metrics(5, [group(0, *members)], RESULT, RECORD)
    assert (line["tokens"], line["tokens_per_s"], line["turns"], line["reply_tokens"]) == (12, 1.2, 1.5, 6.0)
    assert (line["truncated"], line["idle/sample"], line["idle/train"]) == (0.5, 0.75, 0.0)
    assert (line["train/loss"], line["seconds"], line["train_s"], line["eval_s"]) == (0.25, 10.0, 6.0, 0.0)


def test_evaluation_inside_a_step_does_not_count_against_its_speed():
    record = StepRecord(step=0, wall_s=10.0, busy_s={"eval": 6.0})
    line = step_metrics(1, [group(0, trajectory(calls=[model_call(tokens=8)]))], RESULT, record)
    assert (line["tokens_per_s"], line["seconds"], line["eval_s"]) == (2.0, 10.0, 6.0)


def test_every_metric_of_a_step_is_declared_once():
    line = step_metrics(5, [group(0, trajectory(0), lost(1))], RESULT, RECORD) | {"eta_s": 1.0}
    used = {declared(name).name for name in line}
    assert used == {metric.name for metric in METRICS}
    assert len(METRICS) == len(used)
    with pytest.raises(KeyError):
        declared("speed")


def test_steps_are_reduced_as_declared():
    lines = [
        {"step": 1, "reward": 0.0, "tokens": 10, "staleness_max": 3, "success": None},
        {"step": 2, "reward": 1.0, "tokens": 20, "staleness_max": 1, "success": 0.5},
    ]
    assert reduce_steps(lines) == {"step": 2, "reward": 0.5, "tokens": 30, "staleness_max": 3, "success": 0.5}


def test_a_line_cut_by_a_crash_is_passed_over_and_repeated_steps_count_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"reward":0.1}\n{"step":2,"reward":0.2}\n{"step":3,"rew')
    file = MetricsFile(path)
    file.write({"step": 2, "reward": 0.7, "train/loss": math.nan})
    file.close()
    assert read_metrics(path) == [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.7, "train/loss": None}]
    assert len(path.read_text().splitlines()) == 4  # nothing that was written is lost
    assert read_metrics(tmp_path / "none.jsonl") == []


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.floats() | st.integers() | st.text() | st.none()))
def test_lines_are_strict_json(data):
    text = dump_line(data)
    assert "\n" not in text
    json.loads(text, parse_constant=lambda name: pytest.fail(name))


def test_the_observer_writes_a_line_per_step_and_tells_it_with_an_eta(tmp_path):
    times = iter([0.0, 0.0, 8.0, 8.0, 8.0, 12.0, 12.0])
    out = io.StringIO()
    observer = Observer(tmp_path, num_steps=10, progress=JsonProgress(out), now=lambda: next(times))
    for step in (0, 1):
        with observer.trace.step(step):
            pass
        observer.report(step + 1, [group(0, trajectory())], RESULT)
    observer.report_evaluation(2, "test", [group(1, trajectory()), group(2, lost(0))])
    observer.close()
    assert [line["eta_s"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [72.0, 48.0]
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [t["event"] for t in told] == ["step", "step", "evaluation"]
    assert (told[2]["successes"], told[2]["scored"], told[2]["unscored"]) == (1, 1, 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_is_the_root_of_its_equation(case):
    successes, n = case
    low, high = wilson(successes, n)
    share = successes / n
    assert 0.0 <= low <= share <= high <= 1.0
    for bound in (low, high):
        if 0.0 < bound < 1.0:
            assert (share - bound) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / n, rel=1e-5)


def test_wilson_of_a_known_case_and_of_nothing():
    assert wilson(15, 100) == pytest.approx((0.0931, 0.2328), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="between"):
        wilson(3, 2)
