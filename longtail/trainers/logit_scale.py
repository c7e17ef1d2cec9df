"""The scale of all logits, the policy's own inverse temperature, learnt as one number with a rate of its own.

    d loss / d log s = <g, d loss / d g>,  g the gain of the last norm

A policy cloned from noisy experts is unsure all along: it solves far more at a low sampling temperature than at one.
That direction is one number out of millions, and a rate that suits matrices takes hundreds of steps to walk it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from longtail.config import TrainerConfig
from longtail.errors import UserError

NAME = "log_scale"


class LogitScale(torch.optim.AdamW):
    """AdamW of log s, whose changes go into the gain, so that the model stays a plain one."""

    def __init__(self, gain: Tensor, config: TrainerConfig) -> None:
        self.log_scale = torch.zeros((), device=gain.device, dtype=torch.promote_types(gain.dtype, torch.float32))
        self._gain = gain
        super().__init__([self.log_scale], lr=config.scale_lr, betas=config.betas, eps=config.eps, weight_decay=0.0)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._gain.grad is None:
            return
        before = self.log_scale.clone()
        self.log_scale.grad = (self._gain.grad * self._gain).sum(dtype=before.dtype)
        cast("Any", super()).step()
        self._gain.mul_((self.log_scale - before).exp())


@torch.no_grad()
def last_gain(model: Any) -> Tensor:
    """The gain of the norm before the head. Raises UserError where logits are not proportional to it."""
    norm = getattr(model.base_model, "norm", None)
    gain = getattr(norm, "weight", None)
    if norm is not None and gain is not None:
        row = torch.linspace(-1, 1, len(gain), dtype=gain.dtype, device=gain.device)[None]
        once = norm(row)
        gain.mul_(2)  # exact
        twice = norm(row)
        gain.div_(2)
        if torch.equal(twice, 2 * once):
            return gain
    kind = model.config.model_type
    raise UserError(f"trainer.scale_lr: the logits of model type '{kind}' have no scale to learn; set it to 0")
