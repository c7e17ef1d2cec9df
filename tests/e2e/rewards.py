"""Rewards that tell the attempts of a random policy apart, so that every step changes the weights."""

from longtail.types import Score
from longtail_repair.env import RepairEnv


def parity(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    return [sum(map(ord, completion)) % 7 / 7 for completion in completions]


class Drawn(RepairEnv):
    """The repair environment, with a reward that depends on the attempt alone."""

    async def score(self) -> Score:
        parts = await super().score()
        assert isinstance(parts, dict)
        return {**parts, "reward": self._ctx.seed % 7 / 7}
