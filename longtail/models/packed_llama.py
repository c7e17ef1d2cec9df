"""Llama-shaped models on packed tokens, differentiable and faster than the module tree: for training on a CPU.

Same numbers as the modules of transformers up to rounding; weights stay in the model's own parameters. What is saved:

- norm weights are folded into the matrix after them; each layer is one autograd node that recomputes cheap things;
- query and key rows are interleaved so that the rotary embedding is one complex product in place;
- keys of shared prefixes are used where they lie, and no score above the causal staircase is computed (staircase.py);
- the last layer runs its queries and its MLP only on the rows that the loss reads.

Shapes: N packed tokens, U rows that are read, C width, H query heads, K key-value heads, E head width, F MLP width.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from longtail.models.staircase import Staircase, attend, attend_backward

_LINALG: Any = cast("Any", torch.linalg)


class _Shape:
    """What the layers of one pass share: sizes, rotation and attention plan."""

    def __init__(self, model: Any, positions_N: Tensor) -> None:
        config = model.config
        self.eps = float(config.rms_norm_eps)
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.width = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        weight = model.model.embed_tokens.weight
        cos_NE, sin_NE = model.model.rotary_emb(weight[:1], positions_N[None])
        half = self.width // 2
        self.rotation = torch.complex(cos_NE[0, :, :half].contiguous(), sin_NE[0, :, :half].contiguous())


def supports(model: Any) -> bool:
    """Whether source_hidden() computes what this model does."""
    config = model.config
    return (
        config.model_type == "llama"
        and config.hidden_act == "silu"
        and not config.attention_bias
        and not config.mlp_bias
        and not model.training
    )


def source_hidden(model: Any, ids_N: Tensor, positions_N: Tensor, plan: Staircase, sources_M: Tensor) -> Tensor:
    """Last hidden states (M, C) at the packed positions `sources_M`."""
    body = model.model
    shape = _Shape(model, positions_N)
    rows_U, which_M = _unique(sources_M)
    x_NC = body.embed_tokens(ids_N)
    last = len(body.layers) - 1
    apply = cast("Any", _Layer).apply
    for index, layer in enumerate(body.layers):
        rows, blocks = (rows_U, plan.only(rows_U)) if index == last else (None, plan)
        attention, mlp = layer.self_attn, layer.mlp
        x_NC = apply(
            x_NC,
            (shape, blocks, rows),
            layer.input_layernorm.weight,
            attention.q_proj.weight,
            attention.k_proj.weight,
            attention.v_proj.weight,
            attention.o_proj.weight,
            layer.post_attention_layernorm.weight,
            mlp.gate_proj.weight,
            mlp.up_proj.weight,
            mlp.down_proj.weight,
        )
    return body.norm(x_NC.index_select(0, which_M))


class _Layer(torch.autograd.Function):
    """One decoder layer."""

    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, how: tuple[_Shape, Staircase, Tensor | None], *weights: Tensor) -> Tensor:
        shape, plan, rows = how
        norm1_C, q_w, k_w, v_w, o_w, norm2_C, gate_w, up_w, down_w = weights
        h_NC, scale1_N = _normalize(x_NC, shape.eps)
        q_fold, kv_fold = _fold_qkv(shape, q_w, k_w, v_w, norm1_C)
        read_UC = h_NC if rows is None else h_NC[rows]
        q_UHE = (read_UC @ q_fold.t()).view(-1, shape.heads, shape.width)
        kv_NKE = (h_NC @ kv_fold.t()).view(-1, 2 * shape.kv_heads, shape.width)
        k_NKE, v_NKE = kv_NKE[:, : shape.kv_heads], kv_NKE[:, shape.kv_heads :]
        rotation_N = shape.rotation
        _rotate(q_UHE, rotation_N if rows is None else rotation_N[rows])
        _rotate(k_NKE, rotation_N)
        o_UC, normalizers = attend(plan, q_UHE, k_NKE, v_NKE)
        y_UC = torch.addmm(x_NC if rows is None else x_NC[rows], o_UC, o_w.t())
        g_UC, scale2_U = _normalize(y_UC, shape.eps)
        gate_up_U2F = g_UC @ _fold_mlp(gate_w, up_w, norm2_C).t()
        gate_UF, up_UF = gate_up_U2F.chunk(2, dim=1)
        out_UC = torch.addmm(y_UC, torch.nn.functional.silu(gate_UF).mul_(up_UF), down_w.t())
        ctx.save_for_backward(x_NC, scale1_N, q_UHE, kv_NKE, o_UC, y_UC, scale2_U, gate_up_U2F, *weights)
        ctx.how, ctx.normalizers = how, normalizers
        return out_UC

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        shape, _, rows = ctx.how
        x_NC, scale1_N, _, _, o_UC, y_UC, scale2_U, gate_up_U2F, *weights = ctx.saved_tensors
        norm1_C, q_w, k_w, v_w, o_w, norm2_C, gate_w, up_w, down_w = weights
        dy_UC, mlp_grads = _mlp_backward(grads[0], (y_UC, scale2_U, gate_up_U2F), (norm2_C, gate_w, up_w, down_w))
        do_w = dy_UC.t() @ o_UC
        dq_UHE, dkv_NKE = _attend_backward(ctx, dy_UC @ o_w)
        h_NC = x_NC * scale1_N[:, None]
        read_UC = h_NC if rows is None else h_NC[rows]
        q_fold, kv_fold = _fold_qkv(shape, q_w, k_w, v_w, norm1_C)
        dq_U, dkv_N = dq_UHE.flatten(1), dkv_NKE.flatten(1)
        dh_NC = dkv_N @ kv_fold
        _add_rows(dh_NC, rows, dq_U @ q_fold)
        norm1_grad, *qkv_grads = _unfold_qkv(shape, (dq_U.t() @ read_UC, dkv_N.t() @ h_NC), (q_w, k_w, v_w, norm1_C))
        dx_NC = _normalize_backward(dh_NC, h_NC, scale1_N)
        _add_rows(dx_NC, rows, dy_UC)
        return dx_NC, None, norm1_grad, *qkv_grads, do_w, *mlp_grads


def _attend_backward(ctx: Any, do_UC: Tensor) -> tuple[Tensor, Tensor]:
    shape, plan, rows = ctx.how
    _, _, q_UHE, kv_NKE, o_UC, *_ = ctx.saved_tensors
    dq_UHE, dkv_NKE = torch.empty_like(q_UHE), torch.zeros_like(kv_NKE)
    inputs = (q_UHE, kv_NKE[:, : shape.kv_heads], kv_NKE[:, shape.kv_heads :])
    outputs = (dq_UHE, dkv_NKE[:, : shape.kv_heads], dkv_NKE[:, shape.kv_heads :])
    attend_backward(plan, inputs, (o_UC, ctx.normalizers, do_UC), outputs)
    back_N = shape.rotation.conj()
    _rotate(outputs[0], back_N if rows is None else back_N[rows])
    _rotate(outputs[1], back_N)
    return dq_UHE, dkv_NKE


def _mlp_backward(
    dout_UC: Tensor, saved: tuple[Tensor, ...], weights: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Gradient before the MLP's norm, residual included, and those of (norm, gate, up, down)."""
    y_UC, scale_U, gate_up_U2F = saved
    norm_C, gate_w, up_w, down_w = weights
    gate_UF, up_UF = gate_up_U2F.chunk(2, dim=1)
    d_gate_up_U2F = torch.empty_like(gate_up_U2F)
    d_gate_UF, d_up_UF = d_gate_up_U2F.chunk(2, dim=1)
    silu_UF = torch.nn.functional.silu(gate_UF)
    d_inner_UF = dout_UC @ down_w
    torch.mul(d_inner_UF, silu_UF, out=d_up_UF)
    torch.ops.aten.silu_backward.grad_input(d_inner_UF.mul_(up_UF), gate_UF, grad_input=d_gate_UF)
    d_down = dout_UC.t() @ silu_UF.mul_(up_UF)
    g_UC = y_UC * scale_U[:, None]
    d_folded = d_gate_up_U2F.t() @ g_UC
    raw = torch.cat((gate_w, up_w))
    d_norm = (d_folded * raw).sum(0)
    d_gate, d_up = (d_folded * norm_C).chunk(2)
    dg_UC = d_gate_up_U2F @ _fold_mlp(gate_w, up_w, norm_C)
    dy_UC = _normalize_backward(dg_UC, g_UC, scale_U).add_(dout_UC)
    return dy_UC, (d_norm, d_gate, d_up, d_down)


# --- pieces ---------------------------------------------------------------------------------------------------------


def _normalize(x_NC: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x / rms(x), and 1 / rms(x)."""
    square_N: Tensor = _LINALG.vector_norm(x_NC, dim=1).square_()
    scale_N = square_N.div_(x_NC.shape[1]).add_(eps).rsqrt_()
    return x_NC * scale_N[:, None], scale_N


def _normalize_backward(dh_NC: Tensor, h_NC: Tensor, scale_N: Tensor) -> Tensor:
    """Gradient before _normalize(); overwrites dh_NC."""
    mean_N = (dh_NC * h_NC).sum(1).div_(dh_NC.shape[1])
    return dh_NC.addcmul_(h_NC, mean_N[:, None], value=-1.0).mul_(scale_N[:, None])


def _rotate(x_NHE: Tensor, rotation_N: Tensor) -> None:
    """Rotary embedding in place, on interleaved pairs."""
    pairs = torch.view_as_complex(x_NHE.view(*x_NHE.shape[:-1], -1, 2))
    pairs.mul_(rotation_N[:, None])


def _interleave(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from (first halves, second halves) to pairs."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape_as(weight)


def _separate(weight: Tensor, heads: int) -> Tensor:
    """The inverse of _interleave()."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape_as(weight)


def _fold_qkv(shape: _Shape, q_w: Tensor, k_w: Tensor, v_w: Tensor, norm_C: Tensor) -> tuple[Tensor, Tensor]:
    keys = torch.cat((_interleave(k_w, shape.kv_heads), v_w))
    return _interleave(q_w, shape.heads) * norm_C, keys * norm_C


def _unfold_qkv(shape: _Shape, folded: tuple[Tensor, Tensor], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gradients of (norm, q, k, v) from those of the folded matrices."""
    q_w, k_w, v_w, norm_C = weights
    dq = _separate(folded[0], shape.heads)
    dk, dv = _separate(folded[1][: len(k_w)], shape.kv_heads), folded[1][len(k_w) :]
    d_norm = (dq * q_w).sum(0) + (dk * k_w).sum(0) + (dv * v_w).sum(0)
    return d_norm, dq * norm_C, dk * norm_C, dv * norm_C


def _fold_mlp(gate_w: Tensor, up_w: Tensor, norm_C: Tensor) -> Tensor:
    return torch.cat((gate_w, up_w)) * norm_C


def _unique(x_M: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted distinct values, and where each value of x went."""
    return cast("Any", x_M).unique(return_inverse=True)


def _add_rows(into_NC: Tensor, rows: Tensor | None, add_UC: Tensor) -> None:
    if rows is None:
        into_NC.add_(add_UC)
    else:
        into_NC.index_add_(0, rows, add_UC)
