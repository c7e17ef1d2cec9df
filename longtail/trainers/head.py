"""From hidden states to log-probabilities of chosen tokens, without the whole logits ever standing in memory.

Shapes: M rows, C width of the model, V vocabulary, B rows of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from longtail.errors import UserError

CHUNK = 1 << 22  # numbers of one chunk of logits
KEEP = 1 << 26  # numbers of softmax kept for the backward pass; beyond, it is computed again

# Models whose logits are more than a matrix product; training them with this head would be silently wrong.
_RESHAPED = ("final_logit_softcapping", "logits_scaling", "logit_scale")


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MC: Tensor, weight_VC: Tensor, targets_M: Tensor, temperatures_M: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, vocabulary = len(targets_M), len(weight_VC)
        logprobs_M, entropy_M = hidden_MC.new_empty(rows), hidden_MC.new_empty(rows)
        best_M = torch.empty(rows, dtype=torch.bool, device=hidden_MC.device)
        kept: list[Tensor] = []
        for chunk in _chunks(rows, vocabulary):
            logits_BV = torch.mm(hidden_MC[chunk], weight_VC.t()).div_(temperatures_M[chunk, None])
            target_B = logits_BV.gather(1, targets_M[chunk, None])[:, 0]
            best_M[chunk] = target_B >= logits_BV.amax(1)
            normalizer_B = logits_BV.logsumexp(1)
            logprobs_M[chunk] = target_B - normalizer_B
            log_p_BV = logits_BV.sub_(normalizer_B[:, None])
            p_BV = log_p_BV.exp()
            # einsum would allocate another (B, V); a batched dot product does not.
            entropy_M[chunk] = -torch.bmm(p_BV[:, None, :], log_p_BV[:, :, None])[:, 0, 0]
            if rows * vocabulary <= KEEP:
                kept.append(p_BV)
        ctx.save_for_backward(hidden_MC, weight_VC, targets_M, temperatures_M, logprobs_M)
        ctx.kept = kept
        ctx.mark_non_differentiable(entropy_M, best_M)
        return logprobs_M, entropy_M, best_M

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None, None]:
        grad_M: Tensor = grads[0]
        hidden_MC, weight_VC, targets_M, temperatures_M, _ = ctx.saved_tensors
        scaled_M = grad_M / temperatures_M
        grad_hidden_MC, grad_weight_VC = torch.empty_like(hidden_MC), torch.zeros_like(weight_VC)
        for index, chunk in enumerate(_chunks(len(targets_M), len(weight_VC))):
            if ctx.kept:
                p_BV = ctx.kept[index]
            else:
                p_BV = torch.mm(hidden_MC[chunk], weight_VC.t()).div_(temperatures_M[chunk, None]).softmax(1)
            d_logits_BV = p_BV.mul_(-scaled_M[chunk, None])
            d_logits_BV.scatter_add_(1, targets_M[chunk, None], scaled_M[chunk, None])
            torch.mm(d_logits_BV, weight_VC, out=grad_hidden_MC[chunk])
            grad_weight_VC.addmm_(d_logits_BV.t(), hidden_MC[chunk])
        ctx.kept = []  # the softmax was overwritten: a second backward must fail, not be wrong
        return grad_hidden_MC, grad_weight_VC, None, None


def target_logprobs(
    hidden_MC: Tensor, weight_VC: Tensor, targets_M: Tensor, temperatures_M: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of each target at its temperature (differentiable), entropy, and whether it is the likeliest."""
    apply = cast("Any", _TargetLogprobs).apply
    return apply(hidden_MC, weight_VC, targets_M, temperatures_M.to(hidden_MC.dtype))


def head_weight(model: Any) -> Tensor:
    """The output matrix (V, C). Raises UserError for a model whose logits are not just hidden @ weight.T."""
    head = model.get_output_embeddings()
    changed = [name for name in _RESHAPED if getattr(model.config, name, None) not in (None, 1.0)]
    if head is None or getattr(head, "bias", None) is not None or changed:
        what = changed[0] if changed else "an output layer that is not a plain matrix"
        raise UserError(f"model type '{model.config.model_type}' cannot be trained: it has {what}")
    return head.weight


def _chunks(rows: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, CHUNK // vocabulary)
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))
