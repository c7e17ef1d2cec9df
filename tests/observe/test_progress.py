"""Progress on a terminal, in a pipe and for a machine."""

import io
import json

import pytest

from longtail.observe.progress import JsonProgress, PlainProgress, RichProgress, line_of, open_progress
from longtail.observe.text import duration, number, percent, printable

STEP = {
    "step": 3,
    "reward": 0.5,
    "reward/solved": 0.25,
    "success": 0.25,
    "tokens_per_s": 812.4,
    "staleness_mean": 0.5,
    "staleness_max": 1,
    "idle/train": 0.8,
    "seconds": 9.0,
    "eta_s": 185.0,
    "unusable": 0,
}
BEGIN = {"name": "demo", "directory": "runs/demo", "num_steps": 10, "step": 0, "redone": []}
EVALUATION = {"step": 0, "split": "test", "successes": 30, "scored": 200, "unscored": 0, "low": 0.107, "high": 0.206}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def told(progress, out):
    progress.tell("begin", BEGIN)
    progress.tell("evaluation", EVALUATION)
    progress.tell("step", STEP)
    progress.tell("message", {"text": "stopping\x1b[2J"})
    progress.tell("result", {"step": 3, "report": "runs/demo/report.html"})
    progress.close()
    return out.getvalue()


def test_a_pipe_gets_plain_lines():
    out = io.StringIO()
    progress = open_progress(as_json=False, stream=out)
    assert isinstance(progress, PlainProgress)
    lines = told(progress, out).splitlines()
    assert lines[0] == "run demo starts, 10 steps, in runs/demo"
    assert lines[1] == "evaluation test at step 0: 15.0 % (30 of 200; 95 % 10.7 % to 20.6 %)"
    for part in ("step 3/10", "reward 0.5", "success 25.0 %", "tokens/s 812", "eta 3 min 05 s", "train 80.0 %"):
        assert part in lines[2]
    assert lines[3] == r"stopping\x1b[2J"
    assert "report runs/demo/report.html" in lines[4]


def test_a_resumed_run_says_which_steps_are_done_again():
    line = line_of("begin", BEGIN | {"step": 4, "redone": [5, 6]}, 10)
    assert line == "run demo resumes at step 4 of 10 in runs/demo; steps that are done again: 5, 6"


def rates(before, after):
    return {
        "success_before": before,
        "interval_before": [0.1, 0.3],
        "tasks_before": 200,
        "success_after": after,
        "interval_after": [0.5, 0.7] if after else None,
        "tasks_after": 200 if after else 0,
    }


def test_a_trained_run_says_success_before_and_after_on_each_split():
    data = {"name": "demo", "seed": 0, "split": "test", "steps": 12, "train_seconds": 65.0}
    others = {"heldout": rates(0.15, None), "unmeasured": rates(None, None) | {"tasks_before": 0}}
    assert line_of("trained", data | rates(0.2, 0.6) | {"other_splits": others}, 12) == (
        "12 steps in 1 min 05 s; test 20.0 % (95 % 10.0 % to 30.0 %) -> 60.0 % (95 % 50.0 % to 70.0 %); "
        "heldout 15.0 % (95 % 10.0 % to 30.0 %)"
    )


def test_a_machine_gets_json_lines_only():
    out = Terminal()
    progress = open_progress(as_json=True, stream=out)
    assert isinstance(progress, JsonProgress)
    lines = [json.loads(line) for line in told(progress, out).splitlines()]
    assert [line["event"] for line in lines] == ["begin", "evaluation", "step", "message", "result"]
    assert lines[2] == {"event": "step", **STEP}


def test_a_terminal_gets_a_live_panel():
    out = Terminal()
    progress = open_progress(as_json=False, stream=out)
    assert isinstance(progress, RichProgress)
    text = told(progress, out)
    assert "step 3 of 10" in text
    assert "15.0 %" in text
    assert "\x1b[2J" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.344, "0.34 s"), (12.4, "12 s"), (185, "3 min 05 s"), (59.7, "1 min 00 s"), (7620, "2 h 07 min"), (None, "-")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_numbers_and_hostile_text():
    assert [number(v) for v in (0, 12, 0.12345, 1234.5, 12_000_000, None)] == [
        "0",
        "12",
        "0.123",
        "1,234",
        "12,000,000",
        "-",
    ]
    assert percent(None) == "-"
    assert printable("a\tb\nc\x00\x07\ud800\u202e\r\n") == "a\tb\nc\\x00\\x07\\ud800\\u202e\n"
