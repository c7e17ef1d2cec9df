"""Rewards of one group to advantages. Pure floats; a group is a set of identities, never a slice of a batch.

Each function takes the rewards of the usable members alone. Members without a signal (all rewards equal, or a single
member where a baseline is needed) get exactly 0.0.

Credit by turn: where the environment says after a tool call what the attempt would be rewarded with if it ended there,
a turn's gain is what it added, and its return the gains from there on, weighted by powers of `decay`. (Generalized
advantage estimation, Schulman et al. 2016, equation 16: progress stands for the value, `decay` for lambda.) A turn is
then compared with the same turn of the other attempts, in which those that have ended gain nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from longtail.types import ModelCall, Trajectory

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


def gains(trajectory: Trajectory) -> list[float]:
    """Reward added in each turn, one for each model call; in all, the reward. Without progress the last turn has it."""
    added: list[float] = []
    stands = 0.0
    for call in trajectory.calls:
        if isinstance(call, ModelCall):
            added.append(0.0)
        elif call.progress is not None and added:
            added[-1] += call.progress - stands
            stands = call.progress
    if added:
        assert trajectory.reward is not None, "a usable trajectory has a reward"
        added[-1] += trajectory.reward - stands
    return added


def returns(gains_T: Sequence[float], decay: float) -> list[float]:
    """From each turn on: gain + decay x what the next turn returns."""
    total, returns_T = 0.0, list(gains_T)
    for turn in reversed(range(len(gains_T))):
        returns_T[turn] = total = gains_T[turn] + decay * total
    return returns_T


def by_turn(
    returns_G_T: Sequence[Sequence[float]], estimator: Callable[[Sequence[float]], list[float]]
) -> list[list[float]]:
    """Each turn's return against the same turn of all members; one that has ended returns nothing from there on."""
    most = max(map(len, returns_G_T), default=0)
    padded_G_T = [[*returns_T, *[0.0] * (most - len(returns_T))] for returns_T in returns_G_T]
    advantages_T_G = [estimator(returns_G) for returns_G in zip(*padded_G_T, strict=True)]
    return [[advantages_T_G[turn][g] for turn in range(len(mine))] for g, mine in enumerate(returns_G_T)]


def _equal(rewards_G: Sequence[float]) -> bool:
    """Exactly: rounding in the mean must not become a signal."""
    return all(reward == rewards_G[0] for reward in rewards_G)
