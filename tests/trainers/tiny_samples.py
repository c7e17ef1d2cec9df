"""Random samples for the test model: groups whose attempts share a prefix."""

from __future__ import annotations

import random

from longtail.types import Sample


def make_samples(seed=0, groups=2, size=3, length=24, shared=10, temperature=1.0):
    """Groups whose attempts share a prefix; some attempts have two rows."""
    rng = random.Random(seed)
    samples = []
    draw = lambda n: [rng.randrange(5, 250) for _ in range(n)]  # noqa: E731
    for g in range(groups):
        prompt = draw(shared)
        for k in range(size):
            for _ in range(rng.choice([1, 1, 2])):
                ids = [*prompt, *draw(rng.randrange(3, length - shared))]
                mask = [t >= shared - 2 and rng.random() < 0.5 for t in range(len(ids))]
                mask[-2] = True
                samples.append(
                    Sample(
                        group_id=f"g{seed}.{g}",
                        trajectory_id=f"g{seed}.{g}.{k}",
                        ids=tuple(ids),
                        mask=tuple(mask),
                        logprobs=tuple(rng.uniform(-6, -3) if kept else 0.0 for kept in mask),
                        versions=tuple(0 if kept else -1 for kept in mask),
                        temperature=temperature,
                        advantages=tuple((-1.0, 0.5, 1.5)[(k + t) % 3] if kept else 0.0 for t, kept in enumerate(mask)),
                        weight=0.02,
                    )
                )
    return samples
