"""The report and the listings of a run, from a synthetic journal: finished, crashed and empty."""

import re
import sys
from html.parser import HTMLParser

import pytest
from observe_data import group, model_call, tool_call, trajectory

from longtail import events as ev
from longtail.errors import UserError
from longtail.history import TrajectorySummary
from longtail.journal import SqliteJournal, list_trajectories
from longtail.observe import show
from longtail.observe.metrics import MetricsFile, step_metrics
from longtail.observe.svg import Series, chart
from longtail.observe.tracer import StepRecord
from longtail.runs import find_runs, gather, read_config, read_episode, read_status, write_report
from longtail.types import Message, Outcome, StepResult, Tally, Task

STEPS = 12
HOSTILE = "<script>alert(1)</script>\x1b[2J & \ud800"


class Words:
    """A renderer in which id n is the word wn."""

    def transcript(self, ids):
        return " ".join(f"w{i}" for i in ids)


class Trainer:
    async def save(self, path):
        path.mkdir()

    async def load(self, path):
        pass


def record(trajectory_):
    start = ev.attempt_started(
        trajectory_id=trajectory_.id,
        task_id=trajectory_.task_id,
        group_id=trajectory_.group_id,
        member=trajectory_.member,
        attempt=0,
        started_s=0.0,
    )
    calls = [
        (ev.tool_returned if hasattr(call, "name") else ev.model_sampled)(trajectory_.id, call)
        for call in trajectory_.calls
    ]
    return [start, *calls, ev.attempt_ended(trajectory_)]


def members(step):
    calls = [model_call(version=step - 1), tool_call(1, result=HOSTILE), model_call(2, parent=0, version=step - 1)]
    good = trajectory(0, group=f"g{step}", score={"solved": 1.0, "format": 0.1}, calls=calls, reason="submitted")
    bad = trajectory(1, group=f"g{step}", reward=0.0, outcome=Outcome.POLICY, reason="turn limit", calls=calls)
    lost = trajectory(
        2, group=f"g{step}", reward=None, score=None, outcome=Outcome.INFRASTRUCTURE, reason="engine unreachable"
    )
    return good, bad, lost


async def write_run(path, *, steps=STEPS, finished=True):
    journal = SqliteJournal.open(path, wall=lambda: 1_700_000_000.0)
    config = {"name": "demo <run>", "num_steps": steps, "model": {"path": "tiny"}}
    await journal.append(ev.run_started(manifest={"python": "3.11", "torch": "2.9"}, config=config))
    await journal.resume(Trainer())
    file = MetricsFile(path / "metrics.jsonl")
    await journal.append(
        ev.eval_finished(step=0, split="test", tally=Tally(successes=30, scored=200, unscored=1, reward=0.2))
    )
    for step in range(1, steps + 1):
        task = Task(id=f"task-g{step}", prompt=(Message(role="user", content="Repair <it>"),), family="money")
        trained = group(step, *members(step), task=task)
        await journal.append(ev.group_admitted(group_id=trained.id, index=step, task=task, epoch=0))
        for member in trained.trajectories:
            await journal.append(*record(member))
        await journal.append(ev.group_taken(trained, step=step))
        await journal.append(ev.note("checked", f"g{step}.0.0", {"tests": 3}))
        if step == 2:
            await journal.append(ev.group_dropped(group_id="g99", index=99, reason="0 of 4 attempts usable"))
        result = StepResult(metrics={"loss": 1 / step}, seconds=3.0)
        await journal.commit(step, [trained], [[[0.5] * len(t.model_calls) for t in trained.usable]], result)
        share = min(step / steps, 0.9)
        line = step_metrics(
            step, [trained], result, StepRecord(step=step - 1, wall_s=8.0 + step, busy_s={"sample": 5.0, "train": 3.0})
        )
        file.write(line | {"reward": share, "success": share, "eta_s": 10.0})
    file.close()
    if finished:
        await journal.append(
            ev.eval_finished(step=steps, split="test", tally=Tally(successes=70, scored=200, unscored=0, reward=0.4))
        )
        await journal.finish(steps)
    await journal.close()


class Page(HTMLParser):
    """Tags that balance, and the text."""

    VOID = frozenset({"meta"})

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.words, self.attributes = [], [], "", []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


async def test_the_report_of_a_finished_run_says_what_happened(tmp_path):
    await write_run(tmp_path)
    said = write_report(tmp_path, Words())
    source = (tmp_path / "report.html").read_text()
    page = Page(source)
    assert page.open == []
    for text in (
        "demo <run>",
        "finished",
        "15.0 % → 35.0 %",
        "10.7 % to 20.6 %",
        "30 of 200",
        "+20.0 points from step 0 to step 12; the intervals do not overlap",
        "policy, not solved: turn limit",
        "infrastructure, not scored: engine unreachable",
        "0 of 4 attempts usable",
        "format",
        "w1 w2 w3",
        "run_tests, 2.50 s",
        "step 1, g1.0.0: done, solved: submitted",
        "step 12, g12.1.0: policy, not solved: turn limit",
        '"path": "tiny"',
    ):
        assert text in page.words, text
    assert source.count("<svg") == 8
    assert said[0].endswith("report.html")
    assert (tmp_path / "reward.png").read_bytes()[:4] == b"\x89PNG"


async def test_the_report_runs_no_script_and_loads_nothing(tmp_path):
    await write_run(tmp_path, steps=1)
    write_report(tmp_path)
    source = (tmp_path / "report.html").read_text()
    page = Page(source)
    assert "script" not in page.tags
    assert "<script>" in page.words
    assert not [value for name, value in page.attributes if name in ("src", "href")]
    assert not re.search(r"url\(|@import|https?://", source)
    assert "\x1b" not in source


async def test_a_run_that_crashed_has_a_report_of_its_committed_steps(tmp_path):
    await write_run(tmp_path, steps=3, finished=False)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step":4,"reward":9.0}\n{"step":5,"rew')
    data = gather(tmp_path)
    assert (data.status, data.history.step, len(data.metrics)) == ("crashed", 3, 3)
    assert data.dropped == {"0 of 4 attempts usable": 1}
    write_report(tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert "crashed" in page.words
    assert "10 11 12 13" in page.words  # without a tokenizer the ids are shown


async def test_a_run_without_a_step_has_a_report_and_says_why_there_is_no_picture(tmp_path):
    journal = SqliteJournal.open(tmp_path, wall=lambda: 1.0)
    await journal.append(ev.run_started(manifest={}, config={"name": "early"}))
    said = write_report(tmp_path)
    assert "running" in Page((tmp_path / "report.html").read_text()).words
    assert said[1] == "reward.png was not drawn: no step is committed yet"
    await journal.close()


async def test_without_matplotlib_the_picture_is_left_out_with_one_sentence(tmp_path, monkeypatch):
    await write_run(tmp_path, steps=1)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "matplotlib is not installed" in write_report(tmp_path)[1]
    assert not (tmp_path / "reward.png").exists()


async def test_runs_are_found_with_their_status(tmp_path):
    await write_run(tmp_path / "a", steps=2)
    await write_run(tmp_path / "b", steps=2, finished=False)
    (tmp_path / "other").mkdir()
    assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    a, b = map(read_status, find_runs(tmp_path))
    assert (a.status, a.step, a.num_steps, a.success, a.success_of) == ("finished", 2, 2, 0.35, "test, step 2")
    assert (b.status, b.success, b.success_of) == ("crashed", 0.15, "test, step 0")
    assert find_runs(tmp_path / "none") == []
    with pytest.raises(UserError, match="not a run directory"):
        read_config(tmp_path / "other")


def lines_of(texts):
    return "\n".join(text.plain for text in texts)


async def test_an_episode_can_be_followed_from_the_page(tmp_path):
    await write_run(tmp_path, steps=1)
    text = lines_of(show.page(read_episode(tmp_path, "g1.0.0"), Words()))
    order = [
        "trajectory  g1.0.0",
        "task-g1 (family money)",
        "train, trained in step 1",
        "done, solved: submitted",
        "1 (solved 1, format 0.1)",
        "+0.5",
        "2 turns, 8 sampled tokens",
        "environment · turn 1: 3 new tokens",
        "w1 w2 w3",
        "model · turn 1: 4 tokens, mean logprob -0.500, version 0, ended by stop, 3 cached, waited 0.25 s, ran 1.50 s",
        "w10 w11 w12 w13",
        "tool · run_tests, 2.50 s",
        "path: a.py",
        r"<script>alert(1)</script>\x1b[2J & \ud800",
        "model · turn 2",
        "note · checked",
        "tests: 3",
        "end: done, solved: submitted",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


async def test_trajectories_are_listed_and_filtered(tmp_path):
    await write_run(tmp_path, steps=2)
    lines = list_trajectories(tmp_path)
    assert [line.id for line in show.select(lines, solved=True)] == ["g1.0.0", "g2.0.0"]
    assert [line.id for line in show.select(lines, failed=True)] == ["g1.1.0", "g1.2.0", "g2.1.0", "g2.2.0"]
    assert [line.id for line in show.select(lines, failed=True, limit=1)] == ["g2.2.0"]
    rows = [text.plain for text in show.table(lines)]
    assert rows[0].split() == list(show._COLUMNS)
    assert re.split(r"  +", rows[2]) == [
        "g1.1.0",
        "task-g1",
        "train",
        "1",
        "policy",
        "no",
        "0",
        "2",
        "8",
        "4.00 s",
        "turn limit",
    ]


def test_a_long_or_hostile_reason_stays_on_one_line():
    line = TrajectorySummary(id="a", task_id="t", group_id="g", split="train", reason="x\n\x1b[31m" * 50)
    (row,) = list(show.table([line]))[1:]
    assert "\n" not in row.plain
    assert "\x1b" not in row.plain
    assert row.plain.endswith("…")


@pytest.mark.parametrize(
    "values",
    [[0.0], [5.0, 5.0], [-1e-9, 1e-9], [0.0, 1e12], [None, 1.0, None, 2.0], [0.25] * 200],
)
def test_charts_hold_any_finite_values(values):
    svg = chart([Series(name="a<b", points=list(enumerate(values)))])
    assert svg.count("<path") == 1
    assert "a&lt;b" in svg
    assert "nan" not in svg


def test_a_chart_of_nothing_is_left_out():
    assert chart([Series(name="a", points=[(1, None)])]) == ""
