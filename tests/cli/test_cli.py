"""The command line: exit codes, one sentence for what went wrong, JSON for machines, interrupts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longtail import events as ev
from longtail.cli import app
from longtail.errors import DiskFull, EngineError, UserError, first_cause
from longtail.journal import SqliteJournal
from longtail.types import Completion, Finish, ModelCall, Outcome, Trajectory

QUICKSTART = Path(__file__).parents[2] / "recipes/quickstart.toml"

CONFIG = 'name = "demo"\n[env]\nentry = "a:b"\ntasks = "a:c"\n'


def longtail(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "demo.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def driven(monkeypatch):
    """build and drive replaced by fakes: `driven.work` runs; `driven.seen` says with what."""
    state = types.SimpleNamespace(seen=None, work=None)

    async def run(problem, *rest):
        state.seen = (problem, *rest)
        if isinstance(state.work, BaseException):
            raise state.work
        rest[-1].tell("step", {"step": 1, "reward": 0.5})
        return {"success": 0.5}

    def prepare(config):
        return types.SimpleNamespace(config=config, tasks=[1, 2, 3], evaluations={"test": [1] * config.eval.tasks})

    async def check_sandboxes(problem):
        return "bwrap"

    build = types.SimpleNamespace(prepare=prepare, check_sandboxes=check_sandboxes)
    monkeypatch.setitem(sys.modules, "longtail.build", build)
    monkeypatch.setitem(sys.modules, "longtail.identity", types.SimpleNamespace(check_directory=lambda config: None))
    monkeypatch.setitem(sys.modules, "longtail.drive", types.SimpleNamespace(train_run=run, evaluate_run=run))
    return state


async def write_run(path, *, checkpoint=True):
    class Trainer:
        async def save(self, directory):
            directory.mkdir()

    journal = SqliteJournal.open(path, checkpoint_every=1 if checkpoint else 9, wall=lambda: 1_700_000_000.0)
    data = {"name": "demo", "num_steps": 4, "env": {"entry": "a:b", "tasks": "a:c"}, "model": {"path": "./no-such"}}
    await journal.append(ev.run_started(manifest={}, config=data))
    await journal.resume(Trainer())
    done = Completion(ids=(7,), logprobs=(-0.5,), log_mass=(0.0,), versions=(0,), finish=Finish.STOP)
    call = ModelCall(index=0, parent=None, delta_ids=(1, 2), completion=done)
    for member, reward in ((0, 1.0), (1, 0.0)):
        name = f"g0.{member}.0"
        start = {"trajectory_id": name, "task_id": "t", "group_id": "g0", "member": member, "attempt": 0}
        record = Trajectory(
            id=name,
            task_id="t",
            group_id="g0",
            member=member,
            attempt=0,
            calls=(call,),
            outcome=Outcome.DONE,
            score={"solved": reward},
            reward=reward,
            ended_s=2.0,
        )
        await journal.append(
            ev.attempt_started(**start, started_s=0.0), ev.model_sampled(name, call), ev.attempt_ended(record)
        )
    await journal.commit(1, [], [], types.SimpleNamespace(metrics={}, seconds=1.0))
    await journal.close()


@pytest.fixture
def run(tmp_path):
    asyncio.run(write_run(tmp_path / "runs" / "demo"))
    return tmp_path / "runs" / "demo"


# --- bad input ------------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_one_sentence_with_the_nearest_key_and_exit_2(config):
    result = longtail("train", config, "-o", "trainer.lrr=1", code=2)
    assert result.stdout == ""
    assert result.stderr == "longtail: unknown configuration key 'trainer.lrr'; did you mean 'trainer.lr'?\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "none.toml"), "none.toml: no such configuration file"),
        (("sft", "{config}"), "the configuration has no [sft] section"),
        (("show", "{tmp}"), "is not a run directory"),
        (("show", "{run}", "g9.0.0"), "has no trajectory 'g9.0.0'"),
        (("show", "{run}", "--solved", "--failed", "--limit", "-1"), "Invalid value"),
        (("eval", "{tmp}"), "is not a run directory"),
        (("eval", "{run}", "-o", "seed=1"), "expected nothing beside it"),
        (("eval", str(QUICKSTART), "-o", "eval.tasks=0", "--dry-run"), "nothing to evaluate"),
        (("train", str(QUICKSTART), "--run-dir", "{config}", "--dry-run"), "is a file; choose another --run-dir"),
        (("runs", "{tmp}/nothing"), "no run in"),
        (("bench", "speed"), "unknown bench 'speed'"),
        (("train",), "Missing argument"),
        (("fly",), "No such command"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(arguments, sentence, config, run, tmp_path):
    filled = [a.format(config=config, run=run, tmp=tmp_path) for a in arguments]
    result = longtail(*filled, code=2)
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


# --- a run that ends ------------------------------------------------------------------------------------------------


def test_training_gets_the_checked_config_and_reports_json_lines(config, driven):
    result = longtail("train", config, "-o", "seed=7", "--run-dir", "else where", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"event": "step", "step": 1, "reward": 0.5}]
    checked = driven.seen[0].config
    assert (checked.seed, checked.run_dir, checked.name) == (7, "else where", "demo")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("the data set\nis empty"), 2),
        (EngineError("the engine\ndied"), 1),
        (DiskFull("no space left in runs/demo"), 1),
        (OSError(28, "No space left on device"), 1),
        (ExceptionGroup("tasks", [ValueError("x"), ExceptionGroup("inner", [EngineError("the engine died")])]), 1),
    ],
)
def test_a_typed_failure_is_one_sentence(config, driven, error, code):
    driven.work = error
    result = longtail("train", config, code=code)
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("longtail: ")


def test_a_bug_keeps_its_traceback(config, driven):
    driven.work = KeyError("bug")
    with pytest.raises(KeyError):
        longtail("train", config)


def test_only_errors_made_on_purpose_have_a_sentence():
    assert first_cause(ExceptionGroup("g", [KeyError(1)])) is None
    assert first_cause(FileNotFoundError(2, "x")) is None
    assert isinstance(first_cause(ExceptionGroup("g", [KeyError(1), EngineError("e")])), EngineError)


def test_a_dry_run_prints_the_resolved_config_and_starts_nothing(config, driven):
    text = longtail("train", config, "-o", "eval.tasks=5", "--dry-run").stdout
    assert "trainer.lr = 0.0001" in text
    assert "training tasks: 3" in text
    assert "evaluation tasks, test: 5" in text
    data = json.loads(longtail("train", config, "--dry-run", "--json").stdout)
    assert data["config"]["name"] == "demo"
    assert data["plan"]["attempts per step"] == 128
    assert driven.seen is None


def test_a_run_is_evaluated_at_its_last_checkpoint_unless_told(run, driven):
    longtail("eval", run, "--tasks", "3", "--split", "held")
    problem, model, _ = driven.seen
    assert model == str(run / "checkpoints/step-000001") == problem.config.model.path
    assert (problem.config.eval.tasks, problem.config.eval.splits) == (3, ("held",))
    longtail("eval", run, "--checkpoint", "other")
    assert driven.seen[1] == "other"


def test_a_run_without_a_checkpoint_is_evaluated_at_its_warm_start(tmp_path, driven):
    asyncio.run(write_run(tmp_path / "run", checkpoint=False))
    longtail("eval", tmp_path / "run")
    assert driven.seen[1] == "./no-such"


@dataclass
class FitProgress:
    """The fields of trainers.sft.Progress, without torch."""

    step: int
    num_steps: int
    loss: float
    tokens_per_second: float
    held_out_nll: float | None = None
    held_out_accuracy: float | None = None


def test_imitation_reports_its_steps_and_where_the_model_is(tmp_path, monkeypatch):
    async def fit(config):
        yield FitProgress(step=1, num_steps=2, loss=1.5, tokens_per_second=90.0)
        yield FitProgress(step=2, num_steps=2, loss=1.0, tokens_per_second=90.0, held_out_accuracy=0.5)

    monkeypatch.setitem(
        sys.modules, "longtail.sft", types.SimpleNamespace(sft=fit, check_sft=lambda config: config.sft)
    )
    path = tmp_path / "sft.toml"
    path.write_text('name = "warm"\n[sft]\nexamples = "a:b"\n')
    lines = longtail("sft", path).stdout.splitlines()
    assert lines[0] == "step 1/2  loss 1.5  tokens/s 90"
    assert lines[1] == "step 2/2  loss 1  tokens/s 90  held-out accuracy 50.0 %"
    assert lines[2] == f"result  model {'runs/warm/model'}"


# --- looking --------------------------------------------------------------------------------------------------------


def test_trajectories_are_listed_filtered_and_read(run):
    assert "g0.1.0" in longtail("show", run).stdout
    solved = longtail("show", run, "--solved").stdout
    assert "g0.0.0" in solved
    assert "g0.1.0" not in solved
    assert [line["id"] for line in json.loads(longtail("show", run, "--failed", "--json").stdout)] == ["g0.1.0"]


def test_an_episode_without_its_tokenizer_shows_ids_and_says_why(run):
    result = longtail("show", run, "g0.0.0")
    assert "the run's tokenizer cannot be loaded" in result.stderr
    assert "── model · turn 1: 1 tokens, mean logprob -0.500, version 0, ended by stop" in result.stdout
    assert longtail("show", run, "--solved", "--episode").stdout == result.stdout
    assert json.loads(longtail("show", run, "g0.0.0", "--json").stdout)["outcome"] == "done, solved"


def test_runs_are_listed_with_their_status(run):
    text = longtail("runs", run.parent).stdout
    assert "crashed" in text
    assert "1/4" in text
    (one,) = json.loads(longtail("runs", run, "--json").stdout)
    assert (one["name"], one["status"], one["step"]) == ("demo", "crashed", 1)


def test_a_run_that_cannot_be_read_does_not_hide_the_others(run):
    (run.parent / "broken").mkdir()
    (run.parent / "broken/journal.db").touch()
    result = longtail("runs", run.parent)
    assert "crashed" in result.stdout
    assert result.stderr == f"longtail: {run.parent}/broken/journal.db is empty: the run did not start\n"


def test_doctor_says_what_is_there_and_what_to_do():
    findings = {one["name"]: one for one in json.loads(longtail("doctor", "--json").stdout)}
    assert findings["python"]["value"].startswith(sys.version.split()[0])
    assert findings["apsw"]["ok"]
    assert {"cores", "memory", "disk", "torch", "transformers", "gpu", "C compiler"} <= findings.keys()
    assert any(name.startswith("sandbox ") for name in findings)
    lines = longtail("doctor").stdout.splitlines()
    assert len(lines) == len(findings)
    assert all(line.startswith(("ok ", "missing ")) for line in lines)


def test_a_bench_prints_one_json_record_a_line(monkeypatch, tmp_path):
    (tmp_path / "speed.py").write_text("def records():\n    yield {'name': 'x', 'value': 1}\n    yield {'name': 'y'}\n")
    package = types.ModuleType("longtail.bench")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "longtail.bench", package)
    result = longtail("bench", "speed", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"name": "x", "value": 1}, {"name": "y"}]
    sys.modules.pop("longtail.bench.speed")


# --- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["runs", "{runs}"], ["show", "{run}"], ["show", "{run}", "g0.0.0"]])
def test_looking_loads_no_torch(arguments, run):
    filled = [a.format(runs=run.parent, run=run) for a in arguments]
    script = (
        "import sys; from longtail.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, *filled], check=True, capture_output=True)


WORKER = """
import asyncio, sys
from longtail.cli import run_until_done

async def work():
    print("working", flush=True)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        if sys.argv[1] == "stubborn":
            print("cleaning", flush=True)
            await asyncio.sleep(60)
        print("clean", flush=True)
        raise

import typer
app = typer.Typer()
@app.command()
def main(kind: str):
    run_until_done(work(), lambda text: print(text, flush=True))
app()
"""


def interrupted(kind):
    process = subprocess.Popen([sys.executable, "-c", WORKER, kind], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "working\n"
    os.kill(process.pid, signal.SIGINT)
    assert "press Ctrl-C again" in process.stdout.readline()
    return process


def test_the_first_interrupt_stops_cleanly_and_says_that_the_same_command_resumes():
    with interrupted("willing") as process:
        assert process.stdout.read() == "clean\nstopped; the same command resumes\n"
        assert process.wait(10) == 130


def test_the_second_interrupt_ends_at_once():
    with interrupted("stubborn") as process:
        assert process.stdout.readline() == "cleaning\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == 130
