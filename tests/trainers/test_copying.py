"""A fresh model gets heads that look back, and learns to copy from its context."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from longtail.trainers import copying
from longtail.trainers.copying import drill_copying, place_induction_heads
from longtail.trainers.tiny import ROLES, new_model, new_tokenizer

VOCABULARY = 300
SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
}


@pytest.fixture
def model():
    tokenizer = new_tokenizer(["def add(a, b):\n    return a + b\n"], VOCABULARY)
    return new_model(tokenizer, **SHAPE)


def test_placed_heads_look_at_the_tokens_before(model):
    place_induction_heads(model)
    model.set_attn_implementation("eager")
    seen = model(torch.randint(10, VOCABULARY, (1, 64)), output_attentions=True).attentions[0][0]
    for head, back in ((0, 1), (1, 2)):
        mass = [seen[head].diagonal(-distance).mean().item() for distance in range(6)]
        assert mass.index(max(mass)) == back
        assert mass[back] > 0.4


def test_the_drill_teaches_copying(model, monkeypatch):
    """In seconds it only begins to: short spans, and a loss clearly below that of guessing."""
    for name, value in {"_TOKENS": 1280, "_WARMUP": 5, "_SHORT": 24, "_LONG": 24}.items():
        monkeypatch.setattr(copying, name, value)
    place_induction_heads(model)
    losses = list(drill_copying(model, 120))
    assert sum(losses[-10:]) / 10 < 0.95 * math.log(VOCABULARY - len(ROLES) - 3)


def test_the_drill_trains_all_weights_the_same_way_each_time(model, monkeypatch):
    monkeypatch.setattr(copying, "_TOKENS", 640)
    twin = copy.deepcopy(model)
    losses = list(drill_copying(model, 3, seed=5))
    assert losses[0] == pytest.approx(math.log(VOCABULARY), abs=0.3)
    assert losses == list(drill_copying(twin, 3, seed=5))
    fresh = new_model(new_tokenizer(["x"], VOCABULARY), **SHAPE)
    changed = [not torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True)]
    assert all(changed)
    assert not model.training
