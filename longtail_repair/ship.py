"""Puts the model that `longtail sft recipes/repair_sft.toml` made into the package: in bfloat16, without its optimizer.

python -m longtail_repair.ship runs/repair_sft/model
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from longtail_repair import model

_AS_THEY_ARE = ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json")


def ship(source: Path, target: Path) -> None:
    """Write `target` anew from a model directory with its record."""
    record = json.loads((source / "record.json").read_text())
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(target)
    (target / "generation_config.json").unlink(missing_ok=True)
    (target / "model.safetensors").chmod(0o644)
    for name in _AS_THEY_ARE:
        shutil.copyfile(source / name, target / name)
    (target / "record.json").write_text(
        json.dumps({"made_by": "longtail sft recipes/repair_sft.toml, weights rounded to bfloat16", **record}, indent=1)
    )


if __name__ == "__main__":
    ship(Path(sys.argv[1]), model.path())
