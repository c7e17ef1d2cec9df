"""Muon against torch's, orthogonality against the singular value decomposition, and where the state lives."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from longtail.config import TrainerConfig
from longtail.trainers.muon import Muon, orthogonal
from longtail.trainers.optimizers import Optimizers

SHAPES = [(12, 20), (12, 20), (20, 12), (16, 16)]


def matrices():
    generator = torch.Generator().manual_seed(3)
    made = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    return made, generator


def test_muon_steps_as_torch_does():
    """torch iterates in bfloat16, so directions agree to its rounding."""
    ours, generator = matrices()
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    left = Muon(ours, lr=0.1, weight_decay=0.2)
    right = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.2, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        before = [p.detach().clone() for p in ours]
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
            other.data.copy_(mine.data)
        left.step()
        right.step()
        for start, mine, other in zip(before, ours, theirs, strict=True):
            assert (mine - other).norm() < 0.02 * (mine - start).norm()


@pytest.mark.parametrize("shape", [(8, 30), (30, 8), (16, 16)])
def test_a_direction_keeps_the_singular_vectors_and_evens_the_values(shape):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(1, *shape, generator=generator)
    u, _, vh = torch.linalg.svd(matrix[0].double(), full_matrices=False)
    in_its_own_axes = u.T @ orthogonal(matrix)[0].double() @ vh.T
    values = in_its_own_axes.diagonal()
    assert (in_its_own_axes - values.diag()).abs().max() < 1e-3
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.fixture
def model(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir)


@pytest.fixture
def optimizers(model):
    """Muon and AdamW behind one step."""
    made = Optimizers(model, TrainerConfig(optimizer="muon"))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step(1.0)
    return made


def test_muon_is_for_the_matrices_inside(model, optimizers):
    tensors, steps = optimizers.state()
    assert steps == 1
    inside = {key.partition("/")[2] for key in tensors if key.startswith("momentum_buffer/")}
    assert inside == {name for name, _ in model.named_parameters() if name.endswith("_proj.weight")}
    rest = {key.partition("/")[2] for key in tensors if key.startswith("exp_avg/")}
    assert rest == {name for name, _ in model.named_parameters()} - inside


def test_loaded_state_lies_on_the_device_of_the_weights(model, optimizers):
    elsewhere = Optimizers(model.to("meta"), TrainerConfig(optimizer="muon"))
    elsewhere.load(*optimizers.state())
    kept = [value for part in elsewhere._parts for state in part.state.values() for value in state.values()]
    assert {tensor.device.type for tensor in kept} == {"meta"}
