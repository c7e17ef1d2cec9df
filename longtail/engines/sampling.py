"""Draws one token per row, and says how likely it was.

The token is a function of the row's logits, its Sampling and one uniform number; nothing else in the batch matters.
Order of the cuts: temperature, top-k, top-p over what top-k kept. Tokens tied with the last one kept are kept.
Temperature 0 is top_k = 1 at temperature 1.

Shapes: M rows, V vocabulary, B blocks of WIDTH tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from longtail.models.native import native
from longtail.types import Sampling

WIDTH = 64  # tokens of a block of the inverse CDF
FIRST_SORTED = 1024  # top-p looks at so many tokens before it sorts all


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    ids: list[int]  # (M,)
    logprobs: list[float]  # (M,) nats, under what was really sampled from
    log_mass: list[float]  # (M,) log of the probability that the cuts kept
    finite: list[bool]  # (M,) False: the logits were not, and the rest of the row means nothing


def uniforms(seeds: Sequence[int], counters: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, counter): splitmix64, without state."""
    with np.errstate(over="ignore"):
        state = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], np.uint64))
        state = _mix(state + np.array(counters, np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def draw(logits_MV: Tensor, samplings: Sequence[Sampling], uniform_M: NDArray[np.float64]) -> Drawn:
    """Sample every row. `logits_MV` is overwritten."""
    device = logits_MV.device
    temperature_M = [sampling.temperature or 1.0 for sampling in samplings]
    if any(value != 1.0 for value in temperature_M):
        logits_MV /= torch.tensor(temperature_M, device=device)[:, None]
    goal_M = torch.as_tensor(uniform_M, device=device)
    ids_M, logprob_M, kept_M = _inverse(logits_MV, goal_M)
    mass_M = torch.zeros_like(logprob_M)
    if any(_cuts(sampling) for sampling in samplings):
        total_M = kept_M
        cut_MV = _keep_top_p(_keep_top_k(logits_MV, samplings), samplings)
        ids_M, logprob_M, kept_M = _inverse(cut_MV, goal_M)
        mass_M = kept_M - total_M
    return Drawn(ids=_list(ids_M), logprobs=_list(logprob_M), log_mass=_list(mass_M), finite=_list(kept_M.isfinite()))


def _list(values_M: Tensor) -> list[Any]:
    return cast("list[Any]", values_M.tolist())  # pyright: ignore[reportUnknownMemberType]


def _inverse(logits_MV: Tensor, uniform_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens by the inverse CDF, their log-probabilities, and the log of the sum of exp(logits)."""
    code = native() if logits_MV.device.type == "cpu" else None
    return code.draw(logits_MV, uniform_M) if code else _torch_inverse(logits_MV, uniform_M)


def _cuts(sampling: Sampling) -> bool:
    return sampling.top_p < 1 or sampling.top_k > 0 or sampling.temperature == 0


def _keep_top_k(logits_MV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    vocab = logits_MV.shape[1]
    counts = [min(1 if sampling.temperature == 0 else sampling.top_k, vocab) for sampling in samplings]
    if not any(counts):
        return logits_MV
    counts_M1 = torch.tensor(counts, device=logits_MV.device)[:, None]
    top_MK = logits_MV.topk(max(counts)).values
    last_M1 = top_MK.gather(-1, (counts_M1 - 1).clamp_(min=0)).masked_fill_(counts_M1 == 0, -torch.inf)
    return logits_MV.masked_fill(logits_MV < last_M1, -torch.inf)


def _keep_top_p(logits_MV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    shares = [sampling.top_p for sampling in samplings]
    if all(share >= 1 for share in shares):
        return logits_MV
    share_M1 = torch.tensor(shares, dtype=torch.float64, device=logits_MV.device)[:, None]
    most_M1 = logits_MV.amax(-1, keepdim=True)
    wanted_M1 = share_M1 * _cumulative(_chances(logits_MV - most_M1))[:, -1:]
    vocab = logits_MV.shape[1]
    for count in (min(FIRST_SORTED, vocab), vocab):
        top_MK = logits_MV.topk(count).values
        reached_MK = (top_MK - most_M1).exp().double().cumsum(-1) >= wanted_M1
        if bool((reached_MK[:, -1:] | (share_M1 >= 1)).all()):
            break
    last_M1 = top_MK.gather(-1, reached_MK.int().argmax(-1, keepdim=True))
    last_M1 = last_M1.masked_fill_((share_M1 >= 1) | ~reached_MK[:, -1:], -torch.inf)
    return logits_MV.masked_fill(logits_MV < last_M1, -torch.inf)


def _chances(shifted_MV: Tensor) -> Tensor:
    """exp, (M, B, WIDTH)."""
    short = -shifted_MV.shape[1] % WIDTH
    whole_MV = pad(shifted_MV, (0, short), value=-torch.inf) if short else shifted_MV
    return whole_MV.exp().reshape(len(shifted_MV), -1, WIDTH)


def _cumulative(chances_MBW: Tensor) -> Tensor:
    """Running sums of the blocks, (M, B), float64."""
    return chances_MBW.sum(-1).double().cumsum(-1)


def _torch_inverse(logits_MV: Tensor, uniform_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse CDF first over blocks, then inside one. Never a token of chance 0."""
    most_M1 = logits_MV.amax(-1, keepdim=True)
    chances_MBW = _chances(logits_MV - most_M1)
    cumulative_MB = _cumulative(chances_MBW)
    total_M = cumulative_MB[:, -1]
    goal_M = _below(uniform_M * total_M, total_M)
    block_M = (cumulative_MB <= goal_M[:, None]).sum(-1).clamp_(max=cumulative_MB.shape[1] - 1)
    row_M = torch.arange(len(block_M), device=block_M.device)
    inner_MW = chances_MBW[row_M, block_M].double().cumsum(-1)
    before_M = torch.where(block_M > 0, cumulative_MB[row_M, (block_M - 1).clamp(min=0)], 0.0)
    rest_M = _below(goal_M - before_M, inner_MW[:, -1])
    ids_M = block_M * WIDTH + (inner_MW <= rest_M[:, None]).sum(-1).clamp_(max=WIDTH - 1)
    ids_M = ids_M.clamp_(max=logits_MV.shape[1] - 1)  # numbers that are not finite lead anywhere
    log_total_M = most_M1[:, 0].double() + total_M.log()
    return ids_M, logits_MV.gather(-1, ids_M[:, None])[:, 0].double() - log_total_M, log_total_M


def _below(value: Tensor, limit: Tensor) -> Tensor:
    """At most the largest number below `limit`: rounding must not step over the end."""
    return torch.minimum(value, torch.nextafter(limit, torch.zeros_like(limit)))
