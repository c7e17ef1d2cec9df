"""Learning rate over the run, as a factor of the configured one. Pure."""

from __future__ import annotations

import math

from longtail.config import TrainerConfig


def factor(config: TrainerConfig, step: int, num_steps: int) -> float:
    """Factor of optimizer step `step` (from 0): linear warm-up, then constant, or a decay that ends at 0."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    done = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    match config.schedule:
        case "constant":
            return 1.0
        case "linear":
            return max(0.0, 1.0 - done)
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
