"""Algorithms by name: each a vetted bundle of baseline, normalisation and loss. Any field can be overridden."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from longtail.algorithms.advantages import ESTIMATORS, Baseline, by_turn, gains, returns
from longtail.algorithms.losses import PolicyLoss
from longtail.errors import UserError
from longtail.types import Advantages, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """How a group's rewards become a gradient."""

    name: str
    baseline: Baseline = "mean_std"
    credit: Literal["trajectory", "turn"] = "trajectory"  # turn: each by what it and the turns after it gain
    decay: float = 0.5  # turn: what the next turn gains counts so much
    normalization: Literal["token", "sequence", "constant"] = "token"  # data.trajectories_to_samples()
    zero_variance: Literal["keep", "drop"] = "drop"  # groups whose advantages are all zero: they cost a full backward
    loss: PolicyLoss = field(default_factory=PolicyLoss)

    def advantages(self, group: Group) -> Advantages | None:
        """Aligned with `group.usable` and the model calls of each member; None: the group teaches nothing."""
        if not group.usable:
            return None
        advantages_G = self._by_turn(group) if self.credit == "turn" else self._by_trajectory(group)
        return None if self.zero_variance == "drop" and not any(map(any, advantages_G)) else advantages_G

    def _by_trajectory(self, group: Group) -> Advantages:
        rewards_G = [trajectory.reward for trajectory in group.usable if trajectory.reward is not None]
        advantages_G = ESTIMATORS[self.baseline](rewards_G)
        return [[advantage] * len(t.model_calls) for t, advantage in zip(group.usable, advantages_G, strict=True)]

    def _by_turn(self, group: Group) -> Advantages:
        return by_turn([returns(gains(t), self.decay) for t in group.usable], ESTIMATORS[self.baseline])

    @property
    def needs_reference(self) -> bool:
        return self.loss.kl_coef != 0.0

    @property
    def off_policy_correction(self) -> bool:
        """Whether data of older versions is declared as handled: required at max_lag >= 1."""
        return self.loss.importance_cap is not None


PRESETS: Mapping[str, Algorithm] = {
    preset.name: preset
    for preset in (
        # DeepSeekMath's baseline with DAPO's token mean and wider upper clip, without KL.
        Algorithm(name="grpo", loss=PolicyLoss(clip_high=0.28)),
        # "Understanding R1-Zero-like training": no division by length or deviation.
        Algorithm(name="dr_grpo", baseline="mean", normalization="constant"),
        # Leave-one-out baseline, plain policy gradient; each trajectory is one action.
        Algorithm(
            name="rloo", baseline="leave_one_out", normalization="constant", loss=PolicyLoss(objective="reinforce")
        ),
        # One ratio per trajectory; the narrow clip of the paper.
        Algorithm(
            name="gspo",
            normalization="sequence",
            loss=PolicyLoss(level="sequence", clip_low=3e-4, clip_high=4e-4),
        ),
        Algorithm(
            name="reinforce",
            baseline="none",
            normalization="constant",
            zero_variance="keep",
            loss=PolicyLoss(objective="reinforce"),
        ),
    )
}


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> Algorithm:
    """The named algorithm with some of its fields, or its loss's, changed. Raises UserError."""
    if name not in PRESETS:
        raise UserError(f"unknown algorithm '{name}'{_nearest(name, PRESETS)}; known: {', '.join(PRESETS)}")
    algorithm = PRESETS[name]
    of_bundle = {item.name for item in fields(Algorithm)} - {"name", "loss"}
    of_loss = {item.name for item in fields(PolicyLoss)}
    changes: dict[str, Any] = {}
    loss_changes: dict[str, Any] = {}
    for key, value in (overrides or {}).items():
        if key not in of_bundle | of_loss:
            known = sorted(of_bundle | of_loss)
            raise UserError(f"unknown field '{key}' of algorithm '{name}'{_nearest(key, known)}")
        owner = Algorithm if key in of_bundle else PolicyLoss
        (changes if owner is Algorithm else loss_changes)[key] = _checked(owner, key, value)
    return replace(algorithm, **changes, loss=replace(algorithm.loss, **loss_changes))


_BOUNDS = {  # beyond them a whole side of the gradient, or all of it, is gone
    "decay": (0.0, 1.0),
    "clip_low": (0.0, 1.0),
    "dual_clip": (1.0, math.inf),
    "importance_cap": (1.0, math.inf),
}


def _checked(owner: type, key: str, value: Any) -> Any:
    """The value, if its field can hold it: a choice, or a number that makes sense."""
    hint = get_type_hints(owner)[key]
    choices = get_args(hint)
    if choices and isinstance(choices[0], str):
        if value not in choices:
            raise UserError(f"algorithm field '{key}' must be one of {', '.join(choices)}, got {value!r}")
        return value
    if value is None and type(None) in choices:
        return None
    low, high = _BOUNDS.get(key, (0.0, math.inf))
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or value == math.inf:
        upper = f" and at most {high:g}" if high < math.inf else ""
        raise UserError(f"algorithm field '{key}' must be a number of at least {low:g}{upper}, got {value!r}")
    return float(value)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
