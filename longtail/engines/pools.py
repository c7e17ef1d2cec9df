"""Keys and values of the running sequences: rows of contiguous tensors, one pool per capacity.

A sequence lives in the smallest pool that holds it and moves to a larger one as it grows, so that memory and attention
follow the true lengths. Rows of a pool are compact: the last one moves into a hole.

Lengths that attention reads are rounded by `padded_length`, which keeps results independent of what a sequence runs
beside: the CPU kernel sums keys in blocks of 512 and, inside a block, in a way that is the same for 16..192 and
384..512 keys in steps of 16 (tests/engines/test_invariance.py).

Shapes: A layers, R rows, J key and value heads together, L capacity, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from longtail.models.forward import ModelShape
from longtail.types import GenerateRequest

BLOCK = 512  # keys that the kernel sums together
FIRST_ROWS = 8


def padded_length(length: int) -> int:
    """The number of keys that attention reads for sequences of at most `length` tokens."""
    whole = (length - 1) // BLOCK * BLOCK
    rest = -(-(length - whole) // 16) * 16
    return whole + (384 if 192 < rest < 384 else rest)


def capacity_for(length: int) -> int:
    """Capacity of the smallest pool for a sequence."""
    for capacity in (192, 384):
        if length <= capacity:
            return capacity
    capacity = BLOCK
    while capacity < length:
        capacity *= 2
    return capacity


@dataclass(slots=True, eq=False)
class Running:
    """One request on its way. `ids` is the prompt and what was sampled; the first `computed` have keys and values."""

    request: GenerateRequest
    ids: list[int]
    limit: int  # tokens of prompt and reply together
    submitted_s: float
    started_s: float = 0.0
    computed: int = 0
    cached: int = 0
    version: int = -1  # of all its keys and values; -1: mixed
    pool: Pool | None = None
    row: int = -1
    logprobs: list[float] = field(default_factory=list[float])
    log_mass: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])

    @property
    def pending(self) -> int:
        return len(self.ids) - self.computed


class Pool:
    """Rows of one capacity."""

    def __init__(self, shape: ModelShape, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.members: list[Running] = []
        self._size = (shape.layers, 2 * shape.kv_heads, shape.head_dim)
        self._device = device
        self.kv_ARJLE = self._empty(FIRST_ROWS)

    def add(self, sequence: Running) -> None:
        if len(self.members) == self.kv_ARJLE.shape[1]:
            larger = self._empty(2 * len(self.members))
            larger[:, : len(self.members)] = self.kv_ARJLE
            self.kv_ARJLE = larger
        sequence.pool, sequence.row = self, len(self.members)
        self.members.append(sequence)

    def remove(self, sequence: Running) -> None:
        last = self.members.pop()
        if last is not sequence:
            self.kv_ARJLE[:, sequence.row, :, : last.computed] = self.kv_ARJLE[:, last.row, :, : last.computed]
            last.row = sequence.row
            self.members[last.row] = last
        sequence.pool, sequence.row = None, -1

    def read(self, row: int, start: int, end: int) -> Tensor:
        """A copy of keys and values (A, J, T, E)."""
        return self.kv_ARJLE[:, row, :, start:end].clone()

    def _empty(self, rows: int) -> Tensor:
        layers, heads, width = self._size
        # zeros, not garbage: masked keys are multiplied by a weight of 0, and 0 * NaN is NaN
        return torch.zeros(layers, rows, heads, self.capacity, width, device=self._device)


class Pools:
    """All pools; the only place where sequences get, change and lose their rows."""

    def __init__(self, shape: ModelShape, device: torch.device) -> None:
        self._shape = shape
        self._device = device
        self._pools: dict[int, Pool] = {}

    def __iter__(self):
        return iter(self._pools.values())

    def reserve(self, sequence: Running, length: int) -> None:
        """Give the sequence a row for `length` tokens, keeping what it has computed."""
        if sequence.pool is not None and sequence.pool.capacity >= length:
            return
        capacity = capacity_for(length)
        pool = self._pools.get(capacity)
        if pool is None:
            pool = self._pools[capacity] = Pool(self._shape, capacity, self._device)
        kept = None
        if sequence.pool is not None:
            kept = sequence.pool.read(sequence.row, 0, sequence.computed)
            self._leave(sequence.pool, sequence)
        pool.add(sequence)
        if kept is not None:
            pool.kv_ARJLE[:, sequence.row, :, : sequence.computed] = kept

    def release(self, sequence: Running, *, wipe: bool = False) -> None:
        """Take the row back. `wipe` clears numbers that would poison the next one (NaN)."""
        assert sequence.pool is not None
        if wipe:
            sequence.pool.kv_ARJLE[:, sequence.row].zero_()
        self._leave(sequence.pool, sequence)

    def _leave(self, pool: Pool, sequence: Running) -> None:
        pool.remove(sequence)
        if not pool.members and pool.capacity > BLOCK:
            del self._pools[pool.capacity]  # large rows are given back to the system
