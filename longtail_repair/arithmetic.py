"""The classic case: single-turn prompts `12+7=` and a reward function of TRL's signature."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from longtail.errors import UserError
from longtail.types import Limits, Message, Task
from longtail_repair.drawn import DrawnTasks

_SPLITS = ("train", "test")


def accuracy(prompts: list[str], completions: list[str], answer: list[str], **_: object) -> list[float]:
    """1 for the right number; else the share of its digits that stand in their places, at most 0.5."""
    return [_score(completion.strip(), right) for completion, right in zip(completions, answer, strict=True)]


def _score(given: str, right: str) -> float:
    if given == right:
        return 1.0
    same = sum(a == b for a, b in zip(given[::-1], right[::-1], strict=False))
    return 0.5 * same / max(len(given), len(right))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums(DrawnTasks):
    """Sums of two numbers; task i is a pure function of (split, seed, i)."""

    largest: int

    def _make(self, index: int) -> Task:
        rng = Random(f"{self.split}/{self.seed}/{index}")
        a, b = (rng.randint(0, self.largest) for _ in range(2))
        # A pair belongs to one split for ever, so that no test sum is ever trained.
        while _is_test(a, b) != (self.split == "test"):
            a, b = (rng.randint(0, self.largest) for _ in range(2))
        return Task(
            id=f"{self.split}-{self.seed}-{index}",
            prompt=(Message(role="user", content=f"{a}+{b}="),),
            data={"answer": str(a + b)},
            family="sum",
            limits=Limits(turns=1, tokens=64),
        )


def _is_test(a: int, b: int) -> bool:
    return (a * 31 + b * 17) % 10 == 0


def sums(split: str, count: int, seed: int, *, largest: int = 20) -> Sums:
    """Tasks `a+b=` with a and b up to `largest`."""
    if split not in _SPLITS:
        raise UserError(f"sums: split must be one of {', '.join(_SPLITS)}, got {split!r}")
    if largest < 1:
        raise UserError(f"sums: largest must be at least 1, got {largest}")
    return Sums(split=split, size=count, seed=seed, largest=largest)


def sum_chats(count: int, seed: int, *, wrong: float = 0.5, largest: int = 20) -> list[list[Message]]:
    """Examples for a warm start, a share of them wrong."""
    rng = Random(f"sum-chats/{seed}")
    chats: list[list[Message]] = []
    for task in sums("train", count, seed, largest=largest):
        right = task.data["answer"]
        said = str(rng.randint(0, 2 * largest)) if rng.random() < wrong else right
        chats.append([*task.prompt, Message(role="assistant", content=said)])
    return chats
