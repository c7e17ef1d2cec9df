"""The scale of the logits against finite differences, a plain AdamW of one number, and the models that have none."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from longtail.config import TrainerConfig
from longtail.errors import UserError
from longtail.trainers.logit_scale import LogitScale, last_gain
from longtail.trainers.optimizers import Optimizers

CONFIG = TrainerConfig(scale_lr=0.1)


@pytest.fixture
def model(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)


def loss_of(model):
    ids = torch.arange(3, 23)[None]
    return torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])


def test_its_gradient_is_that_of_the_loss_by_the_log_of_a_factor_on_all_logits(model):
    loss_of(model).backward()
    gain = last_gain(model)
    optimizers = Optimizers(model, CONFIG.model_copy(update={"lr": 0.1}))
    rest = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = gain.detach().clone()
    optimizers.step(1.0)
    (scale,) = [part for part in optimizers._parts if isinstance(part, LogitScale)]
    model.load_state_dict(rest)

    def at(log_scale):
        with torch.no_grad():
            gain.copy_(before * log_scale.exp())
            return loss_of(model)

    small = torch.tensor(1e-5, dtype=torch.float64)
    difference = (at(small) - at(-small)) / (2 * small)
    assert scale.log_scale.grad.item() == pytest.approx(difference.item(), rel=1e-6)


def test_it_multiplies_the_gain_by_what_adamw_makes_of_one_number(model):
    gain = last_gain(model)
    scale = LogitScale(gain, CONFIG)
    number = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    reference = torch.optim.AdamW([number], lr=0.1, betas=CONFIG.betas, eps=CONFIG.eps, weight_decay=0.0)
    start = gain.detach().clone()
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        gain.grad = torch.randn(gain.shape, generator=generator, dtype=torch.float64)
        number.grad = gain.grad @ gain.detach()
        scale.step()
        reference.step()
    assert torch.allclose(gain, start * number.exp())
    assert scale.log_scale.item() == pytest.approx(number.item())


def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_been(model, model_dir):
    def steps(optimizers, model, count):
        for _ in range(count):
            optimizers.zero_grad()
            loss_of(model).backward()
            optimizers.step(1.0)

    config = TrainerConfig(optimizer="muon", scale_lr=0.1)
    through = Optimizers(model, config)
    steps(through, model, 2)
    other = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)
    other.load_state_dict(model.state_dict())
    tensors, count = through.state()
    resumed = Optimizers(other, config)
    resumed.load({name: tensor.clone() for name, tensor in tensors.items()}, count)
    steps(through, model, 2)
    steps(resumed, other, 2)
    assert resumed.metrics() == through.metrics() != {}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_model_whose_last_norm_has_a_bias_is_refused():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16))
    with pytest.raises(UserError, match=r"trainer\.scale_lr: .* 'gpt2' .* set it to 0"):
        last_gain(model)
