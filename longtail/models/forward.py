"""One forward pass over flat tokens, for sampling: no gradient, no padding between sequences, weights replaced
in place.

Llama-shaped models get the fused pass of models/llama.py; every other causal LM goes through its own module with the
attention of models/attention.py. Attention itself, and with it the KV cache, is the caller's plan.

Shapes: N packed tokens, W width, M rows that need logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from longtail.models.attention import Plan, check_supported, packed_hidden
from longtail.models.kernels import padded_rows
from longtail.models.load import load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_length: int  # positions the model was made for


class Forward(Protocol):
    shape: ModelShape
    device: torch.device

    def hidden(self, ids_N: Tensor, positions_N: Tensor, plan: Plan) -> Tensor:
        """Last hidden states (N, W)."""
        ...

    def logits(self, hidden_MW: Tensor) -> Tensor:
        """(M, V), float32."""
        ...

    def rows(self, count: int) -> int:
        """Rows that a pass over `count` tokens must have, so that no token's numbers depend on the others."""
        ...

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace all weights. Raises ValueError, and changes nothing, when they are not those of this model."""
        ...


def open_forward(name: str) -> Forward:
    """The fastest forward pass that fits the model, on the GPU where there is one. Raises UserError."""
    from longtail.models.llama import FusedLlama

    model = load_model(name)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if FusedLlama.fits(model.config):
        return FusedLlama(model, device)
    check_supported(name, model)
    return ModuleForward(model, device)


def shape_of(config: Any) -> ModelShape:
    """The sizes that a cache needs, from a Hugging Face configuration."""
    heads = int(config.num_attention_heads)
    longest = int(config.max_position_embeddings)
    window = int(getattr(config, "sliding_window", None) or longest)  # up to there it is full attention
    return ModelShape(
        layers=int(config.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocab=int(config.vocab_size),
        max_length=min(longest, window),
    )


class ModuleForward:
    """Any causal LM of transformers, through its own module."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.shape = shape_of(model.config)
        self.device = device
        self._model = model.to(device)

    def hidden(self, ids_N: Tensor, positions_N: Tensor, plan: Plan) -> Tensor:
        return packed_hidden(self._model, ids_N, positions_N, plan)

    def logits(self, hidden_MW: Tensor) -> Tensor:
        return cast("Tensor", self._model.get_output_embeddings()(hidden_MW)).float()

    def rows(self, count: int) -> int:
        return padded_rows(count)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        own = cast("dict[str, Tensor]", dict(self._model.named_parameters()))  # tied weights stand once here
        check_weights(weights, {name: tuple(value.shape) for name, value in own.items()})
        for name, value in own.items():
            value.data.copy_(weights[name])


def check_weights(weights: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError when a weight is missing or has another shape."""
    for name, shape in wanted.items():
        if name not in weights:
            raise ValueError(f"weight '{name}' is missing")
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"weight '{name}' must have shape {shape}, got {tuple(weights[name].shape)}")
