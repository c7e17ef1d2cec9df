"""The optimizer of a run, whatever it is made of: one step at a given rate, and all of its state by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from longtail.config import TrainerConfig
from longtail.trainers.logit_scale import NAME as LOG_SCALE
from longtail.trainers.logit_scale import LogitScale, last_gain
from longtail.trainers.muon import Muon


class Optimizers:
    """AdamW for all parameters; or Muon for the matrices inside the network and AdamW for the rest. LogitScale beside
    either, where it has a rate."""

    def __init__(self, model: Any, config: TrainerConfig) -> None:
        self._named: dict[str, Tensor] = dict(model.named_parameters())  # tied weights stand once
        inside = _matrices(model, self._named) if config.optimizer == "muon" else {}
        rest = [parameter for name, parameter in self._named.items() if name not in inside]
        self._scale = LogitScale(last_gain(model), config) if config.scale_lr else None
        # the scale first: its gradient is that of the gain as it was
        self._parts: list[torch.optim.Optimizer] = [self._scale] if self._scale is not None else []
        if inside:
            self._parts.append(Muon(inside.values(), lr=config.lr, weight_decay=config.weight_decay))
        if rest:
            adamw = torch.optim.AdamW(
                rest, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
            )
            self._parts.append(adamw)
        if self._scale is not None:
            self._named[LOG_SCALE] = self._scale.log_scale
        self._rates = [part.defaults["lr"] for part in self._parts]

    def zero_grad(self) -> None:
        for part in self._parts:
            part.zero_grad()

    def step(self, factor: float) -> None:
        """One step at that share of the configured rates."""
        for part, rate in zip(self._parts, self._rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * factor
            cast("Any", part).step()

    def metrics(self) -> dict[str, float]:
        return {} if self._scale is None else {LOG_SCALE: float(self._scale.log_scale)}

    def state(self) -> tuple[dict[str, Tensor], int]:
        """What is kept between steps, as "what/parameter" -> tensor, and the number of steps taken."""
        tensors: dict[str, Tensor] = {}
        if self._scale is not None:
            tensors[f"value/{LOG_SCALE}"] = self._scale.log_scale
        counts = [0]
        for part in self._parts:
            for name, parameter in self._named.items():
                for what, value in part.state.get(parameter, {}).items():
                    if what == "step":
                        counts.append(int(value))
                    else:
                        tensors[f"{what}/{name}"] = value
        return tensors, max(counts)

    def load(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Go on from state(). All of it on the parameter's device, where the fused step wants it."""
        tensors = dict(tensors)
        if self._scale is not None:
            self._scale.log_scale.copy_(tensors.pop(f"value/{LOG_SCALE}"))
        for part in self._parts:
            part.state.clear()
            mine = {id(parameter) for group in part.param_groups for parameter in group["params"]}
            for key, value in tensors.items():
                what, _, name = key.partition("/")
                parameter = self._named[name]
                if id(parameter) in mine:
                    state: dict[str, Any] = part.state[parameter]
                    state[what] = value.to(parameter.device)
                    if isinstance(part, torch.optim.AdamW):
                        state["step"] = torch.tensor(float(steps), device=parameter.device)


def _matrices(model: Any, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    outside = {id(end.weight) for end in ends if end is not None}
    return {name: p for name, p in parameters.items() if p.ndim == 2 and id(p) not in outside}
