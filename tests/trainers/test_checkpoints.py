"""Checkpoints: whole or absent, and a resumed run equals an uninterrupted one bit for bit."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_samples import make_samples
from transformers import AutoModelForCausalLM, AutoTokenizer

from longtail.algorithms.presets import preset
from longtail.config import TrainerConfig
from longtail.data import pack
from longtail.errors import DiskFull, UserError
from longtail.trainers import checkpoint
from longtail.trainers.checkpoint import write_directory, write_tensors
from longtail.trainers.trainer import TorchTrainer

LOSS = preset("grpo", {}).loss


def trainer_of(model_dir, **config):
    config = TrainerConfig(**{"lr": 1e-2, "schedule": "cosine", "warmup_steps": 1, "weight_decay": 0.1} | config)
    return TorchTrainer(str(model_dir), config, num_steps=5, threads=1)


def everything(trainer):
    weights = {f"weight/{name}": p.detach() for name, p in trainer._parameters.items()}
    moments, steps = trainer._optimizer.state()
    return {**weights, **moments, "steps": torch.tensor(steps)}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different


@pytest.mark.parametrize(("cut", "optimizer"), [(0, "adamw"), (2, "adamw"), (3, "adamw"), (2, "muon")])
async def test_resume_is_bit_identical(model_dir, tmp_path, cut, optimizer):
    steps = [pack(make_samples(seed), 60) for seed in range(4)]
    whole = trainer_of(model_dir, optimizer=optimizer)
    for batches in steps:
        await whole.step(batches, LOSS)
    first = trainer_of(model_dir, optimizer=optimizer)
    for batches in steps[:cut]:
        await first.step(batches, LOSS)
    await first.save(tmp_path / "c")
    await first.close()
    second = trainer_of(model_dir, optimizer=optimizer)
    await second.load(tmp_path / "c")
    assert second.steps == cut
    for batches in steps[cut:]:
        await second.step(batches, LOSS)
    assert_equal(everything(second), everything(whole))
    await whole.close()
    await second.close()


async def test_loading_forgets_what_was_learnt_since(model_dir, tmp_path):
    trainer = trainer_of(model_dir)
    await trainer.save(tmp_path / "start")
    before = {name: p.detach().clone() for name, p in trainer._parameters.items()}
    await trainer.step(pack(make_samples(0), 60), LOSS)
    await trainer.load(tmp_path / "start")
    assert all(torch.equal(before[name], p) for name, p in trainer._parameters.items())
    assert trainer._optimizer.state() == ({}, 0)
    await trainer.close()


async def test_a_checkpoint_is_a_model_directory(model_dir, tmp_path):
    trainer = trainer_of(model_dir)
    await trainer.step(pack(make_samples(0), 60), LOSS)
    await trainer.save(tmp_path / "c")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    theirs = dict(model.named_parameters())
    assert all(torch.equal(p, theirs[name]) for name, p in trainer._parameters.items())
    old, new = (AutoTokenizer.from_pretrained(path) for path in (model_dir, tmp_path / "c"))
    chat = [{"role": "user", "content": "def f():\n    return 1"}]
    assert old.apply_chat_template(chat)["input_ids"] == new.apply_chat_template(chat)["input_ids"]
    again = trainer_of(tmp_path / "c")
    assert all(torch.equal(p, again._parameters[name]) for name, p in trainer._parameters.items())
    await trainer.close()
    await again.close()


async def test_export_is_one_file_with_the_names_of_transformers(model_dir, tmp_path):
    trainer = trainer_of(model_dir)
    await trainer.export(tmp_path / "weights" / "7.safetensors")
    exported = load_file(tmp_path / "weights" / "7.safetensors")
    assert exported.keys() == load_file(Path(model_dir) / "model.safetensors").keys()
    assert [p.name for p in (tmp_path / "weights").iterdir()] == ["7.safetensors"]
    await trainer.close()


async def test_a_later_checkpoint_replaces_an_earlier_one_of_that_name(model_dir, tmp_path):
    trainer = trainer_of(model_dir)
    await trainer.save(tmp_path / "c")
    await trainer.step(pack(make_samples(0), 60), LOSS)
    await trainer.save(tmp_path / "c")
    assert json.loads((tmp_path / "c" / "state.json").read_text())["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    await trainer.close()


@pytest.mark.parametrize("point", ["mkdir", "fsync", "exchange", "rmtree"])
def test_a_crash_at_any_point_leaves_the_old_checkpoint_or_the_new(tmp_path, monkeypatch, point):
    """SIGKILL at the operation: nothing after it runs, not even a handler."""

    class Killed(BaseException):
        pass

    def fill(text):
        return lambda directory: (directory / "state").write_text(text) and None

    write_directory(tmp_path / "c", fill("old"))
    target = {
        "mkdir": (Path, "mkdir"),
        "fsync": (os, "fsync"),
        "exchange": (checkpoint, "_exchange"),
        "rmtree": (checkpoint.shutil, "rmtree"),
    }[point]

    def die(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*target, die)
        with pytest.raises(Killed):
            write_directory(tmp_path / "c", fill("new"))
    assert (tmp_path / "c" / "state").read_text() == ("new" if point == "rmtree" else "old")
    write_directory(tmp_path / "c", fill("new"))
    assert (tmp_path / "c" / "state").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_an_infrastructure_failure_and_leaves_what_was(tmp_path, monkeypatch, code):
    write_tensors(tmp_path / "w.safetensors", {"a": torch.zeros(3)})

    def full(descriptor):
        raise OSError(code, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(DiskFull, match=r"no space left to write .*w\.safetensors"):
        write_tensors(tmp_path / "w.safetensors", {"a": torch.ones(3)})
    with pytest.raises(DiskFull):
        write_directory(tmp_path / "c", lambda directory: (directory / "x").write_bytes(b"x") and None)
    with pytest.raises(DiskFull):  # the second file of a checkpoint
        write_directory(tmp_path / "c", lambda directory: write_tensors(directory / "x", {"a": torch.ones(3)}))
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
    assert torch.equal(load_file(tmp_path / "w.safetensors")["a"], torch.zeros(3))


async def test_a_checkpoint_of_something_else_is_refused(model_dir, tmp_path):
    trainer = trainer_of(model_dir)
    with pytest.raises(UserError, match="not a readable checkpoint"):
        await trainer.load(tmp_path / "none")
    await trainer.save(tmp_path / "c")
    state = json.loads((tmp_path / "c" / "state.json").read_text())
    (tmp_path / "c" / "state.json").write_text(json.dumps(state | {"chat_template_sha256": "other"}))
    with pytest.raises(UserError, match="its chat_template is not the one"):
        await trainer.load(tmp_path / "c")
    (tmp_path / "c" / "state.json").write_text(json.dumps(state))
    write_tensors(tmp_path / "c" / "model.safetensors", {"model.norm.weight": torch.zeros(3)})
    with pytest.raises(UserError, match="names and shapes"):
        await trainer.load(tmp_path / "c")
    (tmp_path / "c" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="not a readable checkpoint"):
        await trainer.load(tmp_path / "c")
    await trainer.close()
