"""The warm start that a recipe made becomes the one in the package."""

from __future__ import annotations

import json
from pathlib import Path

from longtail.config import load_config
from longtail.trainers.checkpoint import read_tensors
from longtail_repair import model
from longtail_repair.ship import ship


def test_a_shipped_model_is_whole_and_keeps_its_record(tmp_path):
    target = tmp_path / "checkpoint"
    ship(model.path(), target)
    assert {path.name for path in target.iterdir()} == {path.name for path in model.path().iterdir()}
    there, here = (read_tensors(path / "model.safetensors") for path in (model.path(), target))
    assert there.keys() == here.keys()
    assert all(there[name].equal(tensor) for name, tensor in here.items())
    assert json.loads((target / "record.json").read_text()) == json.loads((model.path() / "record.json").read_text())


def test_the_shipped_model_is_what_the_recipe_makes():
    recipe = load_config([Path(__file__).parents[2] / "recipes" / "repair_sft.toml"])
    record = json.loads((model.path() / "record.json").read_text())
    assert {**record["config"], "run_dir": "", "cluster": ""} == {
        **recipe.model_dump(mode="json"),
        "run_dir": "",
        "cluster": "",
    }
    assert sum(file.stat().st_size for file in model.path().iterdir()) <= 12_000_000
