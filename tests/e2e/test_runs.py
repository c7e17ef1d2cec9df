"""Whole runs through the command line: a real engine, a real trainer, real sandboxes, a random policy."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from longtail.journal import list_trajectories, read_history, standing

ROOT = Path(__file__).parents[2]
PARITY = 'env.entry="tests.e2e.rewards:parity"'
SMALL = ["num_steps=3", "groups_per_step=2", "rollout.group_size=2", "eval.tasks=2", "trainer.lr=1e-2"]


def longtail(*words: str | Path, check: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "longtail", *map(str, words)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == check, done.stdout + done.stderr
    return done


def options(policy: Path, run: Path, *more: str) -> list[str]:
    words = [*SMALL, f'model.path="{policy}"', "model.threads=1", *more]
    return [*(part for word in words for part in ("-o", word)), "--run-dir", str(run)]


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


def files_of(run: Path) -> dict[str, bytes]:
    """The last checkpoint: weights, moments, random state, position, tokenizer."""
    return {path.name: path.read_bytes() for path in newest(run).iterdir()}


def steps_of(run: Path):
    """Its metrics, each of a step that changed the weights."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["train/grad_norm"] > 0 for line in lines)
    return lines


CUT = ["sampling.temperature=0.7", "sampling.top_p=0.9", "sampling.top_k=5"]


@pytest.mark.parametrize("sampling", [[], CUT], ids=["plain", "cut"])
def test_a_policy_trains_on_a_reward_function_and_leaves_a_whole_run_directory(
    policy: Path, tmp_path: Path, sampling: list[str]
):
    run = tmp_path / "run"
    longtail("train", "recipes/arithmetic.toml", *options(policy, run, PARITY, *sampling))
    result = json.loads((run / "result.json").read_text())
    assert result["steps"] == 3
    assert 0.0 <= result["success_before"] <= 1.0
    assert f"{run}: finished" in (run / "report.html").read_text()
    lines = steps_of(run)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["staleness_max"] == 0 for line in lines)
    assert all(line["train/ratio_max"] < 1 + 1e-3 for line in lines)  # the trainer sees what the sampler sampled from


@pytest.mark.parametrize("lag", [0, 2])
def test_a_policy_trains_in_real_sandboxes(policy: Path, tmp_path: Path, lag: int):
    run = tmp_path / "run"
    more = [f"max_lag={lag}", "algorithm.overrides.importance_cap=2.0", 'env.entry="tests.e2e.rewards:Drawn"']
    longtail("train", "recipes/repair.toml", *options(policy, run, *more))
    assert read_history(run).step == 3
    assert max(line["staleness_max"] for line in steps_of(run)) <= lag
    ended = list_trajectories(run)
    assert len([one for one in ended if one.step is not None]) == 12
    assert all(one.outcome in ("done", "policy") for one in ended if one.outcome)
    assert longtail("show", run, ended[0].id).stdout


@pytest.mark.parametrize(
    ("recipe", "entry"),
    [("arithmetic", PARITY), ("repair", 'env.entry="tests.e2e.rewards:Drawn"')],  # AdamW without tools; Muon, sandboxes
    ids=["prompts", "episodes"],
)
def test_the_same_seed_gives_the_same_checkpoint_and_a_kill_between_steps_changes_nothing(
    policy: Path, tmp_path: Path, recipe: str, entry: str
):
    recipe = f"recipes/{recipe}.toml"
    more = [entry, "trainer.checkpoint_every=1", "trainer.scale_lr=0.01", "num_steps=6"]
    for name in ("first", "second"):
        longtail("train", recipe, *options(policy, tmp_path / name, *more))
        assert len(steps_of(tmp_path / name)) == 6
    assert files_of(tmp_path / "first") == files_of(tmp_path / "second")
    start = load_file(policy / "model.safetensors")
    end = load_file(newest(tmp_path / "first") / "model.safetensors")
    assert all((start[name] != tensor).any() for name, tensor in end.items())
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "longtail", "train", recipe, *options(policy, killed, *more)]
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = killed / "checkpoints" / "step-000001" / "state.json"
    while not (first.exists() and read_history(killed).step):  # the checkpoint comes before the step is committed
        assert driver.poll() is None
        time.sleep(0.01)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert 1 <= read_history(killed).step < 6
    longtail("train", recipe, *options(policy, killed, *more))
    assert files_of(tmp_path / "first") == files_of(killed)


def test_an_interrupted_run_says_where_it_goes_on_and_its_report_that_it_stopped(policy: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = options(policy, run, "num_steps=1000", "trainer.checkpoint_every=1000")
    command = [sys.executable, "-m", "longtail", "train", "recipes/arithmetic.toml", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        while not driver.stdout.readline().startswith("step 3"):
            assert driver.poll() is None
        driver.send_signal(signal.SIGINT)
        said = driver.stdout.read()
    assert driver.returncode == 130
    assert standing(run).step >= 3  # an interrupt saves, whatever `checkpoint_every` says
    assert f"it goes on after step {standing(run).step}\n" in said
    assert f"{run}: stopped" in (run / "report.html").read_text()
    assert not list(Path("/dev/shm").glob(f"longtail-{hashlib.sha256(str(run).encode()).hexdigest()[:16]}"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["recipes/repair.toml", "-o", "trainer.lrr=1"], "did you mean 'trainer.lr'?"),
        (["recipes/repair.toml", "-o", "model.path=/nowhere"], "model '/nowhere': no such directory"),
        (["recipes/repair.toml", "-o", "max_lag=1"], "importance_cap"),
        (["recipes/nothing.toml"], "no such configuration file"),
        (["recipes/repair.toml", "-o", "env.entry=nothing:here"], "No module named 'nothing'"),
        (["recipes/repair.toml", "-o", "env.params.solvd=1"], "solvd"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words: list[str], sentence: str, tmp_path: Path):
    done = longtail("train", *words, "--run-dir", tmp_path / "run", check=2)
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
