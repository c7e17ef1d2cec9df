"""The fused forward pass of Llama-shaped models: few, large operations on flat tokens.

    x += o(attend(rope(qkv(norm(x)))));  x += down(silu(gate(norm(x))) * up(norm(x)))

q, k and v are one product, gate and up another. Rows of q and k are stored so that the two numbers that rope rotates
stand side by side. Dot products of q and k do not depend on that order.

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
from longtail.models.kernels import kernels_for


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    norm_W: Tensor
    qkv: Tensor  # matrix ((H + 2K) E, W)
    out: Tensor  # matrix (W, H E)
    mlp_norm_W: Tensor
    gate_up: Tensor  # matrix (2F, W)
    down: Tensor  # matrix (W, F)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """Where a weight of the file goes."""

    shape: tuple[int, ...]
    target: Tensor  # a vector, the embedding, or a matrix of the kernels
    first: int = -1  # row of the matrix; -1: not a matrix
    turned: bool = False  # rows of q and k, stored pairwise


class FusedLlama:
    """A LlamaForCausalLM (without biases) as plain tensors and one function."""

    def __init__(self, model: Any, device: torch.device) -> None:
        config = model.config
        self.shape = shape_of(config)
        self.device = device
        self._eps = float(config.rms_norm_eps)
        width, inner = int(config.hidden_size), int(config.intermediate_size)
        self._queries = self.shape.heads * self.shape.head_dim
        self._turned = self._queries + self.shape.kv_heads * self.shape.head_dim
        self._kernels = kernels_for(device, (width, inner, self.shape.head_dim))
        self._embed_VW = torch.empty(self.shape.vocab, width, device=device)
        self._head = self._kernels.matrix(self.shape.vocab, width)
        self._norm_W = torch.empty(width, device=device)
        self._layers = [self._empty_layer(width, inner) for _ in range(self.shape.layers)]
        self._slots = self._name_slots(width, inner)
        self._tied = bool(config.tie_word_embeddings)
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
        kernels, shape = self._kernels, self.shape
        count, queries, turned = len(ids_N), shape.heads, shape.heads + shape.kv_heads
        scale = shape.head_dim**-0.5
        x_NW = functional.embedding(ids_N, self._embed_VW)
        for index, layer in enumerate(self._layers):
            qkv_NC = kernels.linear(kernels.rms_norm(x_NW, layer.norm_W, self._eps), layer.qkv)
            kernels.rope(qkv_NC, turned, positions_N, self._rope_LE)
            heads_CNE = qkv_NC.view(count, -1, shape.head_dim).transpose(0, 1)
            query_HNE, key_KNE, value_KNE = heads_CNE[:queries], heads_CNE[queries:turned], heads_CNE[turned:]
            seen_NHE = plan.attend(index, query_HNE, key_KNE, value_KNE, scale)
            kernels.linear(seen_NHE.view(count, -1), layer.out, x_NW)
            gate_up_NC = kernels.linear(kernels.rms_norm(x_NW, layer.mlp_norm_W, self._eps), layer.gate_up)
            kernels.linear(kernels.gate(gate_up_NC), layer.down, x_NW)
        return kernels.rms_norm(x_NW, self._norm_W, self._eps)

    def logits(self, hidden_MW: Tensor) -> Tensor:
        return self._kernels.linear(hidden_MW, self._head)[:, : self.shape.vocab]

    def rows(self, count: int) -> int:
        return self._kernels.rows(count)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        if self._tied:  # the file may hold the one matrix under one name or under both
            weights = {**weights, "lm_head.weight": weights.get("model.embed_tokens.weight", torch.empty(0))}
        check_weights(weights, {name: slot.shape for name, slot in self._slots.items()})
        for name, slot in self._slots.items():
            value = _pairwise(weights[name], self.shape.head_dim) if slot.turned else weights[name]
            if slot.first < 0:
                slot.target.copy_(value)
            else:
                self._kernels.put(slot.target, slot.first, value)

    def _empty_layer(self, width: int, inner: int) -> _Layer:
        rows = self._turned + self.shape.kv_heads * self.shape.head_dim
        return _Layer(
            norm_W=torch.empty(width, device=self.device),
            qkv=self._kernels.matrix(rows, width),
            out=self._kernels.matrix(width, self._queries),
            mlp_norm_W=torch.empty(width, device=self.device),
            gate_up=self._kernels.matrix(2 * inner, width),
            down=self._kernels.matrix(width, inner),
        )

    def _name_slots(self, width: int, inner: int) -> dict[str, _Slot]:
        queries, turned, vocab = self._queries, self._turned, self.shape.vocab
        keys = turned - queries
        slots = {
            "model.embed_tokens.weight": _Slot(shape=(vocab, width), target=self._embed_VW),
            "model.norm.weight": _Slot(shape=(width,), target=self._norm_W),
            "lm_head.weight": _Slot(shape=(vocab, width), target=self._head, first=0),
        }
        for index, layer in enumerate(self._layers):
            parts = {
                "input_layernorm": _Slot(shape=(width,), target=layer.norm_W),
                "self_attn.q_proj": _Slot(shape=(queries, width), target=layer.qkv, first=0, turned=True),
                "self_attn.k_proj": _Slot(shape=(keys, width), target=layer.qkv, first=queries, turned=True),
                "self_attn.v_proj": _Slot(shape=(keys, width), target=layer.qkv, first=turned),
                "self_attn.o_proj": _Slot(shape=(width, queries), target=layer.out, first=0),
                "post_attention_layernorm": _Slot(shape=(width,), target=layer.mlp_norm_W),
                "mlp.gate_proj": _Slot(shape=(inner, width), target=layer.gate_up, first=0),
                "mlp.up_proj": _Slot(shape=(inner, width), target=layer.gate_up, first=inner),
                "mlp.down_proj": _Slot(shape=(width, inner), target=layer.down, first=0),
            }
            slots |= {f"model.layers.{index}.{part}.weight": slot for part, slot in parts.items()}
        return slots


def _pairwise(weight_CW: Tensor, head_dim: int) -> Tensor:
    """Rows i and i + E/2 of each head, which rope rotates together, side by side."""
    rows, width = weight_CW.shape
    return weight_CW.reshape(-1, 2, head_dim // 2, width).transpose(1, 2).reshape(rows, width)


def _rope_table(model: Any, length: int) -> Tensor:
    """cos + i sin of every position, (L, E/2), from the model's own rotary embedding."""
    with torch.inference_mode():
        cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(length)[None])
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
