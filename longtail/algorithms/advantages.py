"""Rewards of one group to advantages. Pure floats; a group is a set of identities, never a slice of a batch.

Each function takes the rewards of the usable members alone. Members without a signal (all rewards equal, or a single
member where a baseline is needed) get exactly 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

Baseline = Literal["mean_std", "mean", "leave_one_out", "none"]

STD_EPS = 1e-6


def mean_std(rewards_G: Sequence[float]) -> list[float]:
    """GRPO: centred, divided by the sample standard deviation."""
    centred = mean(rewards_G)
    if not any(centred):
        return centred
    std = math.sqrt(sum(x * x for x in centred) / (len(centred) - 1))
    return [x / (std + STD_EPS) for x in centred]


def mean(rewards_G: Sequence[float]) -> list[float]:
    """Dr. GRPO: centred, not divided (dividing favours the groups that are nearly solved or nearly hopeless)."""
    if _equal(rewards_G):
        return [0.0] * len(rewards_G)
    centre = math.fsum(rewards_G) / len(rewards_G)
    return [reward - centre for reward in rewards_G]


def leave_one_out(rewards_G: Sequence[float]) -> list[float]:
    """RLOO: each member against the mean of the others."""
    if _equal(rewards_G):
        return [0.0] * len(rewards_G)
    total, others = math.fsum(rewards_G), len(rewards_G) - 1
    return [reward - (total - reward) / others for reward in rewards_G]


def no_baseline(rewards_G: Sequence[float]) -> list[float]:
    """REINFORCE: the reward itself."""
    return [float(reward) for reward in rewards_G]


ESTIMATORS: Mapping[Baseline, Callable[[Sequence[float]], list[float]]] = {
    "mean_std": mean_std,
    "mean": mean,
    "leave_one_out": leave_one_out,
    "none": no_baseline,
}


def _equal(rewards_G: Sequence[float]) -> bool:
    """Exactly: rounding in the mean must not become a signal."""
    return all(reward == rewards_G[0] for reward in rewards_G)
