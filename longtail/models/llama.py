"""The fused forward pass of Llama-shaped models: few, large operations on flat tokens.

    x += o(attend(rope(qkv(norm(x)))));  x += down(silu(gate(norm(x))) * up(norm(x)))

q, k and v are one product, gate and up another. Rows of q and k are stored so that the two numbers that rope rotates
stand side by side: the rotation is then one complex product. Dot products of q and k do not depend on that order.

Shapes: N packed tokens, W width, H query heads, K key-value heads, E head width, F width of the MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from longtail.models.attention import Plan
from longtail.models.forward import check_weights, shape_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    norm_W: Tensor
    qkv_CW: Tensor  # C = (H + 2K) E
    out_WC: Tensor  # C = H E
    mlp_norm_W: Tensor
    gate_up_CW: Tensor  # C = 2F
    down_WF: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """Where a weight of the file goes."""

    target: Tensor
    rotated: bool = False  # rows of q and k, stored pairwise


class FusedLlama:
    """A LlamaForCausalLM (without biases) as plain tensors and one function."""

    def __init__(self, model: Any, device: torch.device) -> None:
        config = model.config
        self.shape = shape_of(config)
        self.device = device
        self._eps = float(config.rms_norm_eps)
        self._mlp_width = int(config.intermediate_size)
        width = int(config.hidden_size)
        self._embed_VW = torch.empty(self.shape.vocab, width, device=device)
        tied = bool(config.tie_word_embeddings)
        self._head_VW = self._embed_VW if tied else torch.empty(self.shape.vocab, width, device=device)
        self._norm_W = torch.empty(width, device=device)
        self._layers = [self._empty_layer(width) for _ in range(self.shape.layers)]
        self._slots = self._name_slots(tied)
        self._rope_LE = _rope_table(model, self.shape.max_length).to(device)
        self.load(model.state_dict())

    @staticmethod
    def fits(config: Any) -> bool:
        rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
        return (
            config.model_type == "llama"
            and config.hidden_act == "silu"
            and not (config.attention_bias or config.mlp_bias)
            and rope.get("rope_type", "default") in ("default", "linear", "llama3")  # tables that no length changes
        )

    def hidden(self, ids_N: Tensor, positions_N: Tensor, plan: Plan) -> Tensor:
        shape = self.shape
        count = ids_N.shape[0]
        queries, turned = shape.heads * shape.head_dim, (shape.heads + shape.kv_heads) * shape.head_dim
        scale = shape.head_dim**-0.5
        x_NW = functional.embedding(ids_N, self._embed_VW)
        rope_N1E = self._rope_LE[positions_N][:, None]
        for index, layer in enumerate(self._layers):
            qkv_NC = functional.linear(self._rms(x_NW, layer.norm_W), layer.qkv_CW)
            pairs = qkv_NC[:, :turned].view(count, shape.heads + shape.kv_heads, -1, 2)
            torch.view_as_complex(pairs).mul_(rope_N1E)
            query_HNE = qkv_NC[:, :queries].view(count, shape.heads, -1).transpose(0, 1)
            key_KNE = qkv_NC[:, queries:turned].view(count, shape.kv_heads, -1).transpose(0, 1)
            value_KNE = qkv_NC[:, turned:].view(count, shape.kv_heads, -1).transpose(0, 1)
            seen_NHE = plan.attend(index, query_HNE, key_KNE, value_KNE, scale)
            x_NW.addmm_(seen_NHE.reshape(count, -1), layer.out_WC.t())
            gate_up_NC = functional.linear(self._rms(x_NW, layer.mlp_norm_W), layer.gate_up_CW)
            gate_NF = functional.silu(gate_up_NC[:, : self._mlp_width], inplace=True)
            x_NW.addmm_(gate_NF.mul_(gate_up_NC[:, self._mlp_width :]), layer.down_WF.t())
        return self._rms(x_NW, self._norm_W)

    def logits(self, hidden_MW: Tensor) -> Tensor:
        return functional.linear(hidden_MW, self._head_VW)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        check_weights(weights, {name: tuple(slot.target.shape) for name, slot in self._slots.items()})
        for name, slot in self._slots.items():
            value = weights[name]
            slot.target.copy_(_pairwise(value, self.shape.head_dim) if slot.rotated else value)

    def _rms(self, x_NW: Tensor, weight_W: Tensor) -> Tensor:
        return functional.rms_norm(x_NW, weight_W.shape, weight_W, self._eps)

    def _empty_layer(self, width: int) -> _Layer:
        shape, device = self.shape, self.device
        heads = shape.heads * shape.head_dim
        return _Layer(
            norm_W=torch.empty(width, device=device),
            qkv_CW=torch.empty(heads + 2 * shape.kv_heads * shape.head_dim, width, device=device),
            out_WC=torch.empty(width, heads, device=device),
            mlp_norm_W=torch.empty(width, device=device),
            gate_up_CW=torch.empty(2 * self._mlp_width, width, device=device),
            down_WF=torch.empty(width, self._mlp_width, device=device),
        )

    def _name_slots(self, tied: bool) -> dict[str, _Slot]:
        heads = self.shape.heads * self.shape.head_dim
        turned = heads + self.shape.kv_heads * self.shape.head_dim
        slots = {
            "model.embed_tokens.weight": _Slot(target=self._embed_VW),
            "model.norm.weight": _Slot(target=self._norm_W),
        }
        if not tied:
            slots["lm_head.weight"] = _Slot(target=self._head_VW)
        for index, layer in enumerate(self._layers):
            prefix = f"model.layers.{index}."
            slots |= {
                f"{prefix}input_layernorm.weight": _Slot(target=layer.norm_W),
                f"{prefix}self_attn.q_proj.weight": _Slot(target=layer.qkv_CW[:heads], rotated=True),
                f"{prefix}self_attn.k_proj.weight": _Slot(target=layer.qkv_CW[heads:turned], rotated=True),
                f"{prefix}self_attn.v_proj.weight": _Slot(target=layer.qkv_CW[turned:]),
                f"{prefix}self_attn.o_proj.weight": _Slot(target=layer.out_WC),
                f"{prefix}post_attention_layernorm.weight": _Slot(target=layer.mlp_norm_W),
                f"{prefix}mlp.gate_proj.weight": _Slot(target=layer.gate_up_CW[: self._mlp_width]),
                f"{prefix}mlp.up_proj.weight": _Slot(target=layer.gate_up_CW[self._mlp_width :]),
                f"{prefix}mlp.down_proj.weight": _Slot(target=layer.down_WF),
            }
        return slots


def _pairwise(weight_CW: Tensor, head_dim: int) -> Tensor:
    """Rows i and i + E/2 of each head, which rope rotates together, side by side."""
    rows, width = weight_CW.shape
    return weight_CW.view(-1, 2, head_dim // 2, width).transpose(1, 2).reshape(rows, width)


def _rope_table(model: Any, length: int) -> Tensor:
    """cos + i sin of every position, (L, E/2), from the model's own rotary embedding."""
    with torch.inference_mode():
        cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(length)[None])
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
