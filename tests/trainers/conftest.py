"""A model small enough to train many times in a test."""

from __future__ import annotations

import pytest
import torch

from longtail.trainers.tiny import new_model, new_tokenizer

VOCABULARY = 300
SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """A saved model with weights that are far from a special point."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = new_tokenizer(["def add(a, b):\n    return a + b\n"] * 3, VOCABULARY)
    model = new_model(tokenizer, seed=1, **SHAPE)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
