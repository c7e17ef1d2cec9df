"""What is checked before a run starts, and what its start and its end leave in the directory."""

import asyncio
import json
import shutil
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longtail import build, identity
from longtail.algorithms.presets import preset
from longtail.build import Problem, open_run, prepare
from longtail.cli import app
from longtail.config import Config, load_config, validate_config
from longtail.envs import Env, reward, tool
from longtail.errors import UserError
from longtail.fakes import CountingTrainer, NoTrace, ToyRenderer
from longtail.identity import _check_same_model, check_same_run, manifest
from longtail.journal import read_history, standing
from longtail.models.load import resolve
from longtail.named import load_rollout
from longtail.sandboxes import probe
from longtail.sft import check_sft
from longtail.types import Limits, Message, Task
from longtail_repair.env import RepairEnv

ROOT = Path(__file__).parents[2]


async def rollout(task, ctx):
    return 1.0


def praise(prompts, completions):
    return [1.0 for _ in prompts]


def broken_chats(count, seed):
    return [{}["text"]]


def loose_messages(count, seed):
    return chats(count, seed)[0]


def chats(count, seed):
    return [[Message(role="user", content="?"), Message(role="assistant", content="!")]] * count


TASKS = "longtail_repair.arithmetic:sums"
GOOD = "longtail_repair.arithmetic:accuracy"


class Forgetful:
    """An environment that does not derive from Env."""


class Halfway(Env):
    @tool
    def look(self) -> str:
        """Look."""
        return ""

    async def setup(self, task, ctx):
        return []


def no_tasks(split, count, seed):
    return [{"prompt": "?"}] * count


def turnless(split, count, seed):
    return [Task(id="t", limits=Limits(turns=0))] * count


def wants_labels(completions, labels):
    return [0.0 for _ in completions]


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"entry": "syntax_error:f", "tasks": TASKS}, r"env.entry = 'syntax_error:f': SyntaxError"),
        ({"entry": "raises:f", "tasks": TASKS}, r"RuntimeError: not today \(.*raises.py line 1\)"),
        ({"entry": "wrong_import:f", "tasks": TASKS}, "ImportError: cannot import name 'nothing_here'"),
        ({"entry": "no_attribute:f", "tasks": TASKS}, "AttributeError: module 'os' has no attribute 'nothing_here'"),
        ({"entry": "os:nothing", "tasks": TASKS}, "module os has no 'nothing'"),
        ({"entry": GOOD, "tasks": "longtail_repair.tasks:repair_tasks", "task_params": {"levels": 3}}, "TypeError"),
        ({"entry": GOOD, "tasks": f"{__name__}:no_tasks"}, "expected a longtail.Task, got one of dict"),
        ({"entry": GOOD, "tasks": f"{__name__}:turnless"}, "limits of a task must leave it a turn and a token"),
        ({"entry": GOOD, "tasks": TASKS, "params": {"max_batch": "x"}}, "TypeError"),
        ({"entry": f"{__name__}:Forgetful", "tasks": TASKS}, "must be a class derived from longtail.Env"),
        ({"entry": f"{__name__}:Halfway", "tasks": TASKS}, "Halfway has no score; an environment defines both"),
        ({"entry": "builtins:max", "tasks": TASKS}, "expected a Python function, got <built-in function max>"),
        ({"entry": GOOD, "tasks": "builtins:max"}, "expected a Python function, got <built-in function max>"),
        ({"entry": f"{__name__}:wants_labels", "tasks": TASKS}, "'labels'; it is called with answer, completion_ids"),
        (
            {"entry": "longtail_repair.env:RepairEnv", "tasks": TASKS, "params": {"solved": "high"}},
            "weight 'solved' of RepairEnv must be a number, got 'high'",
        ),
    ],
)
def test_what_goes_wrong_in_the_code_of_a_user_is_one_sentence(tmp_path, monkeypatch, env, sentence):
    (tmp_path / "syntax_error.py").write_text("def f(:")
    (tmp_path / "raises.py").write_text("raise RuntimeError('not today')")
    (tmp_path / "wrong_import.py").write_text("from os import nothing_here")
    (tmp_path / "no_attribute.py").write_text("import os\nf = os.nothing_here")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=sentence):
        prepare(validate_config({"env": env}))


@pytest.mark.parametrize("wrong", [praise, Forgetful, RepairEnv, lambda task, ctx: None, "a:b"])
def test_what_is_no_rollout_function_is_refused_before_anything_starts(wrong):
    with pytest.raises(UserError, match=r"the rollout must be `async def rollout\(task, ctx\)`"):
        prepare(Config(), wrong, [Task(id="t")])


def test_a_prompt_that_the_chat_template_refuses_is_told_before_anything_starts(tmp_path):
    shutil.copytree(resolve("tiny-repair"), tmp_path / "model")
    refusal = "{{ raise_exception('no system') if m.role == 'system' }}"
    template = "{% for m in messages %}" + refusal + "{{ m.content }}{% endfor %}"
    (tmp_path / "model/chat_template.jinja").write_text(template)
    tasks = [Task(id="t", prompt=(Message(role="system", content="be brief"), Message(role="user", content="?")))]
    with pytest.raises(UserError, match="its chat template refuses the roles system, user: no system"):
        prepare(validate_config({"model": {"path": str(tmp_path / "model")}}), rollout, tasks)


async def test_params_that_nobody_takes_are_one_sentence():
    with pytest.raises(UserError, match="rollout function, which takes none, got depth"):
        load_rollout(f"{__name__}:rollout", {"depth": 2})
    with pytest.raises(UserError, match="unexpected keyword argument 'depth'"):
        load_rollout(f"{__name__}:praise", {"depth": 2})
    assert load_rollout(f"{__name__}:praise", {"max_batch": 2})
    assert load_rollout(f"{__name__}:rollout", {}) is rollout


@pytest.mark.parametrize("broken", ["no weights", "no chat template", "no tokenizer", "a GGUF file"])
def test_a_model_that_cannot_chat_is_refused_before_anything_starts(tmp_path, broken):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    if broken != "no weights":
        (model / "model.safetensors").touch()
    if broken == "no chat template":
        from tokenizers import Tokenizer, models

        Tokenizer(models.BPE()).save(str(model / "tokenizer.json"))
        (model / "tokenizer_config.json").write_text("{}")
    if broken == "a GGUF file":
        model = tmp_path / "model.gguf"
        model.write_bytes(b"GGUF")
    config = load_config([ROOT / "recipes/arithmetic.toml"], [f'model.path="{model}"', f'run_dir="{tmp_path}/run"'])
    with pytest.raises(UserError, match=r"no weights|chat template|tokenizer\.json|holds no config\.json"):
        prepare(config)
    assert not (tmp_path / "run").exists()


BASE = {"name": "demo", "env": {"entry": "a:b", "tasks": "a:c", "params": {"solved": 1.0, "fixed": 0.5}}}


@pytest.mark.parametrize(
    ("stored", "now", "key"),
    [
        ({}, {"env": {**BASE["env"], "params": {"solved": 1.0}}}, "env.params.fixed"),  # an override that was dropped
        ({}, {"env": {**BASE["env"], "params": {"solved": 1.0, "fixed": 0.5, "x": 1}}}, "env.params.x"),
        ({}, {"trainer": {"lr": 0.5}}, "trainer.lr"),
        ({}, {"eval": {"tasks": 20}}, "eval.tasks"),  # "before" and "after" would be of other tasks
        ({"eval": {"every": 5}}, {"num_steps": 77, "eval": {"every": 6}, "trainer": {"keep": 5}}, ""),
    ],
)
def test_a_directory_goes_on_only_with_the_configuration_it_began_with(stored, now, key):
    before = validate_config({**BASE, **stored}).model_dump(mode="json")
    config = validate_config({**BASE, **now})
    if key:
        with pytest.raises(UserError, match=f"holds a run with {key} = "):
            check_same_run(before, config)
    else:
        check_same_run(before, config)


def test_a_key_that_is_newer_than_the_run_had_its_default():
    before = validate_config(BASE).model_dump(mode="json")
    del before["trainer"]["optimizer"]
    check_same_run(before, validate_config(BASE))
    with pytest.raises(UserError, match=r"trainer\.optimizer = 'adamw', now it is 'muon'"):
        check_same_run(before, validate_config({**BASE, "trainer": {"optimizer": "muon"}}))


def test_a_run_does_not_go_on_from_another_model_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "resolve", lambda model: tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"one")
    (tmp_path / "config.json").write_text("{}")
    stored, config = manifest(Config()), Config()
    _check_same_model(stored, config)
    _check_same_model({}, config)  # of a run that kept no digests
    (tmp_path / "model.safetensors").write_bytes(b"two")
    with pytest.raises(UserError, match=r"started from another model\.safetensors than model 'tiny-repair' has now"):
        _check_same_model(stored, config)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sft": {"examples": f"{__name__}:nothing"}}, "has no 'nothing'"),
        ({"sft": {"examples": f"{__name__}:loose_messages"}}, "'Message' object is not iterable"),
        ({"run_dir": __file__}, "cannot be made: .* is a file"),
        ({"sft": {"examples": f"{__name__}:chats", "params": {"level": 1}}}, "unexpected keyword argument 'level'"),
        ({"model": {"path": "/nowhere"}}, "no such directory"),
        ({"sft": {"examples": f"{__name__}:broken_chats"}}, r"KeyError: 'text' \(.*test_prepare.py line \d+\)"),
        ({"sft": {"examples": "builtins:list"}}, "with sft.params"),
        ({"sft": {"examples": f"{__name__}:chats", "shape": {"hiden_size": 64}}}, "has no field 'hiden_size'"),
        (
            {"sft": {"examples": f"{__name__}:chats", "copy_steps": 1, "shape": {"num_hidden_layers": 1}}},
            "copy_steps needs a shape of at least 2 layers",
        ),
        ({"sft": {"examples": f"{__name__}:chats", "count": 7}}, "holds a run with sft.count = 10000, now it is 7"),
        ({"sft": {"examples": f"{__name__}:chats", "batch_tokens": 99}}, "holds a run with sft.batch_tokens"),
    ],
)
def test_imitation_checks_its_examples_its_model_and_its_directory_first(tmp_path, change, sentence):
    base = {"run_dir": str(tmp_path), "model": {"path": "new"}, "sft": {"examples": f"{__name__}:chats"}}
    (tmp_path / "sft.json").write_text(json.dumps(validate_config(base).model_dump(mode="json")))
    check_sft(validate_config(base))
    check_sft(validate_config({**base, "sft": {**base["sft"], "save_every": 5}}))
    with pytest.raises(UserError, match=sentence):
        check_sft(validate_config({**base, **change}))


def test_imitation_does_not_go_on_with_a_model_that_it_did_not_begin(tmp_path):
    (tmp_path / "model").mkdir()
    base = {"run_dir": str(tmp_path), "model": {"path": "new"}, "sft": {"examples": f"{__name__}:chats"}}
    with pytest.raises(UserError, match="holds a model that another command made"):
        check_sft(validate_config(base))


# --- starting and stopping ------------------------------------------------------------------------------------------


@pytest.fixture
def problem(tmp_path):
    config = validate_config({"run_dir": str(tmp_path / "run"), "trainer": {"checkpoint_every": 10}})
    return Problem(
        config=config,
        rollout=reward(praise),
        tasks=[Task(id="t", prompt=(Message(role="user", content="?"),))],
        evaluations={},
        algorithm=preset("grpo", {}),
        renderer=ToyRenderer(),
    )


WATCH = types.SimpleNamespace(trace=NoTrace(), report=None, report_evaluation=None)


async def test_a_failed_start_leaves_no_configuration_behind_that_refuses_the_corrected_command(problem, monkeypatch):
    async def start_roles(cluster, problem):
        raise UserError("model 'x' is not supported")

    monkeypatch.setattr(build, "start_roles", start_roles)
    with pytest.raises(UserError, match="not supported"):
        async with open_run(problem, WATCH):
            pass
    assert read_history(problem.config.directory).started == {}


@pytest.mark.parametrize("lane", ["train", "commit", "sync", "take"])
async def test_an_interrupt_ends_after_the_step_that_is_trained_and_saves_and_reports_it(problem, monkeypatch, lane):
    reached, reported = asyncio.Event(), []

    async def reach(here):
        if lane == here:
            reached.set()
            await asyncio.sleep(0.05)

    class SlowTrainer(CountingTrainer):
        async def step(self, microbatches, loss):
            await reach("train")
            return await super().step(microbatches, loss)

        async def export(self, path):
            await reach("sync")

    async def start_roles(cluster, problem):
        return types.SimpleNamespace(load=lambda path, version: asyncio.sleep(0)), SlowTrainer()

    async def train():
        async with open_run(problem, watch) as run:
            await run.journal.resume(run.trainer)
            result = await run.trainer.step([], None)
            if lane == "commit":
                reached.set()
            await run.journal.commit(1, [], [], result)
            await run.weights.publish(run.trainer, 1)
            run.report(1, [], result)
            reached.set()
            await asyncio.Event().wait()

    watch = types.SimpleNamespace(
        trace=NoTrace(), report=lambda step, *_: reported.append(step), report_evaluation=None
    )
    monkeypatch.setattr(build, "start_roles", start_roles)
    work = asyncio.create_task(train())
    await reached.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    stands = standing(problem.config.directory)
    assert (stands.step, stands.checkpoint, stands.past.ended) == (1, "checkpoints/step-000001", "run.stopped")
    assert reported == [1]


async def test_a_step_that_was_trained_but_not_committed_is_never_saved_as_the_step_before(problem, monkeypatch):
    async def start_roles(cluster, problem):
        return None, CountingTrainer()

    async def train():
        async with open_run(problem, WATCH) as run:
            await run.journal.resume(run.trainer)
            await run.journal.commit(1, [], [], await run.trainer.step([], None))
            await run.trainer.step([], None)  # its commit fails, and an interrupt comes on the way out
            raise asyncio.CancelledError

    monkeypatch.setattr(build, "start_roles", start_roles)
    with pytest.raises(asyncio.CancelledError):
        await train()
    stands = standing(problem.config.directory)
    assert (stands.step, stands.past.ended) == (0, "run.stopped")


async def test_a_dry_run_refuses_the_directory_of_another_run(problem, tmp_path, monkeypatch):
    async def start_roles(cluster, problem):
        return None, CountingTrainer()

    monkeypatch.setattr(build, "start_roles", start_roles)
    async with open_run(problem, WATCH):
        pass
    words = ["train", str(ROOT / "recipes/arithmetic.toml"), "--run-dir", str(tmp_path / "run"), "--dry-run"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "holds a run with" in done.stderr


@pytest.fixture
def no_sandbox_works(monkeypatch):
    report = probe.LevelReport(level="bwrap", works=False, reason="no user namespaces", fix="allow them")
    monkeypatch.setattr(probe, "probe", lambda: [report])


@pytest.mark.usefixtures("no_sandbox_works")
async def test_only_a_run_that_may_ask_for_a_sandbox_needs_one(problem):
    sandboxes = build.open_sandbox_level(problem, problem.config.directory)
    assert sandboxes.level == "not needed"
    await sandboxes.close()


@pytest.mark.usefixtures("no_sandbox_works")
@pytest.mark.parametrize(("recipe", "code"), [("arithmetic", 0), ("repair", 2)])
def test_a_dry_run_tries_the_sandbox_where_one_is_needed(recipe, code):
    done = CliRunner().invoke(app, ["train", str(ROOT / f"recipes/{recipe}.toml"), "--dry-run"])
    assert done.exit_code == code
    assert ("no user namespaces" in done.stderr) == (code == 2)
