"""Muon: steps of orthogonal directions for the matrices inside a network.

    momentum -> the nearest (semi-)orthogonal matrix, by Newton-Schulz -> step

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the size of a step as in Liu et al. 2025,
"Muon is Scalable for LLM Training", equation 4: one learning rate then suits these matrices and AdamW's parameters.
torch.optim.Muon does the same in bfloat16, which takes a CPU several seconds a step; here it is float32, and matrices
of one shape go together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan et al.: steepest at zero, not exact at one
_ITERATIONS = 5
_RMS = 0.2  # of an AdamW update, Liu et al.

_LINALG: Any = cast("Any", torch.linalg)


class Muon(torch.optim.Optimizer):
    """For parameters of two dimensions that are neither embeddings nor heads."""

    def __init__(self, matrices: Iterable[Tensor], *, lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                directions = orthogonal(torch.stack([self._momentum(p, group["momentum"]) for p in parameters]))
                size = group["lr"] * _RMS * math.sqrt(max(shape))
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=size)

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        """Nesterov's momentum of the gradient."""
        gradient = parameter.grad
        assert gradient is not None
        state: dict[str, Any] = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"]
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)


def orthogonal(matrices_BRC: Tensor) -> Tensor:
    """Each matrix (R, C) with its singular values brought near one (0.7 to 1.2, and those near zero raised)."""
    tall = matrices_BRC.shape[1] > matrices_BRC.shape[2]
    x: Tensor = matrices_BRC.mT if tall else matrices_BRC
    x = x / _LINALG.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
