"""The chats of the shipped warm start: mostly repair episodes, and a few sums for recipes/arithmetic.toml."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from longtail.types import Message
from longtail_repair.arithmetic import sum_chats
from longtail_repair.expert import expert_chats


def warm_chats(
    count: int, seed: int, *, sums: float = 0.05, sums_wrong: float = 0.4, **expert: Any
) -> Iterator[list[Message]]:
    """`count` chats, a share `sums` of them sums; `expert` goes to expert_chats."""
    rng = Random(f"warm/{seed}")
    are_sums = [rng.random() < sums for _ in range(count)]
    short = iter(sum_chats(sum(are_sums), seed, wrong=sums_wrong))
    long = expert_chats(count - sum(are_sums), seed, **expert)
    for is_sum in are_sums:
        yield next(short if is_sum else long)
