"""Losses of the policy: sum over trained tokens of weight x per-token loss, and sums for the metrics.

A loss is data: frozen, picklable, sent to where the trainer runs. It uses tensor methods alone, so that importing it
loads no torch. A trainer takes one optimizer step on each batch, so the ratio here is trained policy / sampler; what
moves it away from 1 is staleness and the numerical gap between engine and trainer.

Metrics are sums over tokens, which the trainer divides by their count; names that end in "_max" are maxima.
Shape: M trained tokens of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from longtail.types import LossInputs

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp() of more says only that the token was impossible for one of the two


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """Policy gradient with clipping, importance correction and KL to a reference; one default per knob."""

    objective: Literal["ppo", "reinforce"] = "ppo"  # clipped ratio, or log-probability times advantage
    level: Literal["token", "sequence"] = "token"  # sequence: one ratio, the geometric mean over the trajectory (GSPO)
    clip_low: float = 0.2  # ppo: no gradient below 1 - clip_low when the advantage is negative
    clip_high: float = 0.2  # ppo: nor above 1 + clip_high when it is positive
    dual_clip: float | None = None  # ppo: nor above this ratio when it is negative
    importance_cap: float | None = None  # truncated importance correction: a token counts at most so many times
    kl_coef: float = 0.0
    kl: Literal["k1", "k2", "k3"] = "k3"  # estimator of KL(policy || reference)

    def __call__(self, logprobs_M: Tensor, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss to be summed over micro-batches, and metric sums."""
        logprobs_M = logprobs_M.to(inputs.weights_M.dtype)
        log_ratio_M = (logprobs_M - inputs.logprobs_M).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio_M = self._ratio(log_ratio_M, inputs)
        per_token_M, clipped_M = self._surrogate(logprobs_M, ratio_M, inputs.advantages_M)
        metrics = {
            "ratio": ratio_M.detach().sum(),
            "ratio_max": ratio_M.detach().max(),
            "clip_share": clipped_M.to(ratio_M.dtype).sum(),
            "mismatch_kl": _k3(log_ratio_M.detach()).sum(),  # KL(sampler || trained policy)
            "staleness": inputs.staleness_M.sum(),
            "staleness_max": inputs.staleness_M.max(),
        }
        if self.kl_coef:
            kl_M = self._kl(logprobs_M, inputs.reference_M)
            per_token_M = per_token_M + self.kl_coef * kl_M
            metrics["reference_kl"] = kl_M.detach().sum()
        return (inputs.weights_M * per_token_M).sum(), metrics

    def _ratio(self, log_ratio_M: Tensor, inputs: LossInputs) -> Tensor:
        if self.level == "token":
            return log_ratio_M.exp()
        sequences, which_M = inputs.sequences_M.unique(return_inverse=True)
        zeros_S = log_ratio_M.new_zeros(len(sequences))
        count_S = zeros_S.index_add(0, which_M, log_ratio_M.new_ones(len(which_M)))
        mean_S = zeros_S.index_add(0, which_M, log_ratio_M) / count_S
        return mean_S.exp().index_select(0, which_M)

    def _surrogate(self, logprobs_M: Tensor, ratio_M: Tensor, advantages_M: Tensor) -> tuple[Tensor, Tensor]:
        """Per-token loss, and which tokens give no gradient or a truncated one."""
        fixed_M = ratio_M.detach()
        capped_M = fixed_M if self.importance_cap is None else fixed_M.clamp(max=self.importance_cap)
        cut_M = capped_M < fixed_M
        if self.objective == "reinforce":
            coefficient_M = capped_M if self.importance_cap is not None else capped_M.new_ones(len(capped_M))
            return -coefficient_M * advantages_M * logprobs_M, cut_M
        plain_M = ratio_M * advantages_M
        clipped_M = ratio_M.clamp(1.0 - self.clip_low, 1.0 + self.clip_high) * advantages_M
        surrogate_M = plain_M.minimum(clipped_M)
        stopped_M = clipped_M < plain_M
        if self.dual_clip is not None:
            floor_M = self.dual_clip * advantages_M
            stopped_M = stopped_M | ((advantages_M < 0) & (surrogate_M < floor_M))
            surrogate_M = surrogate_M.where(advantages_M >= 0, surrogate_M.maximum(floor_M))
        # The correction scales the gradient of what clipping let through; it never brings a stopped token back.
        return -(capped_M / fixed_M) * surrogate_M, stopped_M | cut_M

    def _kl(self, logprobs_M: Tensor, reference_M: Tensor) -> Tensor:
        log_ratio_M = (reference_M - logprobs_M).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        match self.kl:
            case "k1":
                # k1's own gradient is zero on average whatever the policy: its value is kept, k2 gives the gradient.
                half_square_M = 0.5 * log_ratio_M.square()
                return half_square_M + (-log_ratio_M - half_square_M).detach()
            case "k2":
                return 0.5 * log_ratio_M.square()
            case "k3":
                return _k3(log_ratio_M)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy:
    """Supervised learning: weighted negative log-likelihood."""

    def __call__(self, logprobs_M: Tensor, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        return -(inputs.weights_M * logprobs_M).sum(), {"nll": -logprobs_M.detach().sum()}


def _k3(log_ratio_M: Tensor) -> Tensor:
    """exp(d) - 1 - d: non-negative, unbiased for KL(p || q) when d = log q - log p on samples of p."""
    return log_ratio_M.exp() - 1.0 - log_ratio_M
