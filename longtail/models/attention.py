"""One attention for all uses: tokens are packed flat, and a plan says what each of them may see.

The plan is given to the model's forward pass as a keyword argument and reaches every layer. Training passes a
`TreePlan` (segments with shared ancestors, models without a cache); the local engine passes a plan that keeps a cache.
Any model of transformers that uses its attention interface works.

Shapes: N packed tokens, H query heads, K key-value heads, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from longtail.errors import UserError
from longtail.types import Segment

NAME = "longtail"


class Plan(Protocol):
    def attend(self, layer: int, query_HNE: Tensor, key_KNE: Tensor, value_KNE: Tensor, scale: float) -> Tensor:
        """Attention output (N, H, E) of one layer."""
        ...


class TreePlan:
    """Each segment attends causally to itself and fully to its ancestors. Differentiable."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments

    def attend(self, layer: int, query_HNE: Tensor, key_KNE: Tensor, value_KNE: Tensor, scale: float) -> Tensor:
        groups = query_HNE.shape[0] // key_KNE.shape[0]
        if groups > 1:
            key_KNE = key_KNE.repeat_interleave(groups, dim=0)
            value_KNE = value_KNE.repeat_interleave(groups, dim=0)
        parts: list[Tensor] = []
        for segment in self._segments:
            spans = (*segment.context, (segment.start, segment.end))
            query = query_HNE[:, segment.start : segment.end]
            key, value = _gather(key_KNE, spans), _gather(value_KNE, spans)
            parts.append(_causal(query, key, value, scale))
        return torch.cat(parts, dim=1).transpose(0, 1)


def _gather(x_HNE: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    pieces = [x_HNE[:, start:end] for start, end in spans]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention of the last query.shape[1] positions of the keys."""
    new, total = query.shape[1], key.shape[1]
    if new == total:
        return scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True, scale=scale)[0]
    mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril_(total - new)
    return scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=mask, scale=scale)[0]


def _interface(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    plan: Plan = kwargs["plan"]
    for feature in ("softcap", "s_aux"):  # capped scores, attention sinks
        if kwargs.get(feature) is not None:
            raise NotImplementedError(f"its attention uses '{feature}'")
    scale = float(kwargs.get("scaling") or query.shape[-1] ** -0.5)
    return plan.attend(int(module.layer_idx), query[0], key[0], value[0], scale)[None], None


cast("Any", AttentionInterface).register(NAME, _interface)


def packed_hidden(model: Any, ids_N: Tensor, positions_N: Tensor, plan: Plan) -> Tensor:
    """Last hidden states (N, width) of packed tokens."""
    body = model.get_decoder()
    out = body(input_ids=ids_N[None], position_ids=positions_N[None], use_cache=False, plan=plan)
    return out.last_hidden_state[0]


def check_supported(name: str, model: Any) -> None:
    """Run three tokens. Raises UserError for a model that packed_hidden() would compute wrongly."""
    plan = _Counting((Segment(start=0, end=3),))
    device = next(model.parameters()).device
    positions_N = torch.arange(3, device=device)
    ids_N = positions_N + 3
    try:
        with torch.no_grad():
            hidden_NW = packed_hidden(model, ids_N, positions_N, plan)
            own = model(input_ids=ids_N[None], position_ids=positions_N[None], use_cache=False, plan=plan)
    except (NotImplementedError, TypeError, KeyError) as error:
        raise UserError(f"model '{name}' is not supported: {error}") from error
    layers, attending = int(model.config.num_hidden_layers), plan.calls // 2
    if attending != layers:
        raise UserError(f"model '{name}' is not supported: {attending} of its {layers} layers attend")
    if not torch.allclose(model.get_output_embeddings()(hidden_NW), own.logits[0], atol=1e-3, rtol=1e-3):
        raise UserError(f"model '{name}' is not supported: its logits are no plain product of its last hidden state")


class _Counting(TreePlan):
    calls = 0

    def attend(self, layer: int, query_HNE: Tensor, key_KNE: Tensor, value_KNE: Tensor, scale: float) -> Tensor:
        self.calls += 1
        return super().attend(layer, query_HNE, key_KNE, value_KNE, scale)
