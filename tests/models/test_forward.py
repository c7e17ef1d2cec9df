from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from longtail.errors import UserError
from longtail.models.attention import TreePlan
from longtail.models.forward import ModuleForward, open_forward, shape_of
from longtail.models.load import load_model
from longtail.trainers.forward import Forward
from longtail.types import Segment

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}


def save(model: Any, path: Path) -> str:
    model.save_pretrained(path)
    return str(path)


def test_other_models_go_through_their_own_module(tmp_path):
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES)).eval()
    forward = open_forward(save(model, tmp_path))
    assert isinstance(forward, ModuleForward)
    ids = torch.arange(20)
    hidden = forward.hidden(ids, torch.arange(20), TreePlan((Segment(start=0, end=20),)))
    expected = model(input_ids=ids[None]).logits[0]
    assert torch.allclose(forward.logits(hidden), expected, atol=1e-5)


def test_capped_scores_are_refused(tmp_path):
    with pytest.raises(UserError, match="is not supported: its attention uses 'softcap'"):
        open_forward(save(Gemma2ForCausalLM(Gemma2Config(**SIZES)), tmp_path))


def test_capped_logits_are_refused(tmp_path):
    config = Gemma2Config(**SIZES, attn_logit_softcapping=None, initializer_range=0.5)
    with pytest.raises(UserError, match="its logits are no plain product of its last hidden state"):
        open_forward(save(Gemma2ForCausalLM(config), tmp_path))


def test_models_without_attention_are_refused(tmp_path):
    config = MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=50, state_size=4)
    with pytest.raises(UserError, match="is not supported"):
        open_forward(save(MambaForCausalLM(config), tmp_path))


def test_the_trainer_refuses_the_models_that_the_sampler_refuses(tmp_path):
    config = MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=50, state_size=4)
    name = save(MambaForCausalLM(config), tmp_path)
    with pytest.raises(UserError, match="is not supported"):
        Forward(name, load_model(name))


def test_a_sliding_window_bounds_the_length():
    assert shape_of(MistralConfig(**SIZES, sliding_window=40)).max_length == 40
    assert shape_of(MistralConfig(**SIZES, sliding_window=None)).max_length == 64
