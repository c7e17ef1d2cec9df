from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

VOCAB = 200


def save_llama(path: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=64,
        vocab_size=VOCAB,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with grouped queries."""
    return save_llama(tmp_path_factory.mktemp("models") / "llama", seed=0)


@pytest.fixture(scope="session")
def other_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape, other weights."""
    return save_llama(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that only the generic pass can run."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "gpt2"
    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCAB, n_positions=512, initializer_range=0.3)
    GPT2LMHeadModel(config).save_pretrained(path)
    return path
