"""Imitation through the command line: it ends, goes on, and can be interrupted while it prepares."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longtail.cli import app

ROOT = Path(__file__).parents[2]
RECIPE = """
name = "warm"
model = { path = "new", threads = 1 }
[sft]
examples = "longtail_repair.warm:warm_chats"
count = 20
held_out = 4
vocab_size = 400
max_length = 1024
batch_tokens = 8192
copy_steps = COPY
shape = { hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 16 }
params = { sums = 1.0 }
"""  # noqa: E501 TOML has inline tables on one line


@pytest.fixture
def command(tmp_path: Path):
    def written(copy_steps: int) -> list[str]:
        recipe = tmp_path / "warm.toml"
        recipe.write_text(RECIPE.replace("COPY", str(copy_steps)))
        return ["sft", str(recipe), "--run-dir", str(tmp_path / "run")]

    return written


def longtail(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def until(condition, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def test_a_finished_imitation_is_left_alone_and_one_cut_off_before_its_record_gets_it(command, tmp_path: Path):
    longtail(*command(0))
    record = tmp_path / "run" / "model" / "record.json"
    first = json.loads(record.read_text())
    assert first["held_out_nll"] > 0
    assert "step" not in longtail(*command(0))
    assert json.loads(record.read_text()) == first
    record.unlink()  # as a kill after the last save leaves it
    longtail(*command(0))
    assert json.loads(record.read_text())["held_out_nll"] == pytest.approx(first["held_out_nll"])


def test_an_interrupt_is_heard_while_the_model_is_prepared(command, tmp_path: Path):
    words = [sys.executable, "-m", "longtail", *command(1_000_000)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert until(lambda: len(list((tmp_path / "run").glob("chats-*.jsonl"))) == 2)
            os.kill(process.pid, signal.SIGINT)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, output
    assert "stopped; the same command resumes" in output


def test_examples_that_ignore_their_seed_are_refused(tmp_path: Path):
    (tmp_path / "fixed.py").write_text(
        "from longtail.types import Message\n"
        "def chats(count, seed):\n"
        "    return [[Message(role='user', content='?'), Message(role='assistant', content='!')]] * count\n"
    )
    (tmp_path / "fixed.toml").write_text('model = { path = "new" }\nsft = { examples = "fixed:chats", count = 5 }')
    command = [sys.executable, "-m", "longtail", "sft", "fixed.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "yields the same chats for different seeds" in done.stderr


def test_the_second_interrupt_ends_the_making_of_chats_at_once_and_leaves_no_process(tmp_path: Path):
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, time\n"
        "from longtail.types import Message\n"
        "def chats(count, seed):\n"
        "    if count == 1: return [[Message(role='user', content='?')]]\n"
        "    pathlib.Path('pid').write_text(f'{os.getpid()}.')\n"
        "    time.sleep(600)\n"
    )
    (tmp_path / "slow.toml").write_text('model = { path = "new" }\nsft = { examples = "slow:chats", count = 5 }')
    made = tmp_path / "pid"
    command = [sys.executable, "-m", "longtail", "sft", "slow.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert until(lambda: made.exists() and made.read_text().endswith("."))
            os.kill(process.pid, signal.SIGINT)
            assert "press Ctrl-C again" in process.stdout.readline()
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(10) == 130
        finally:
            process.kill()
    assert until(lambda: gone(int(made.read_text().rstrip("."))), 10)
