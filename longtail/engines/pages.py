"""Keys and values in pages of PAGE tokens, shared between sequences and with the prefix cache by counting references.

A page is written only by the sequence that took it, and only after the tokens that others may already read.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.models.forward import ModelShape
from longtail.models.native import PAGE
from longtail.types import GenerateRequest

FIRST_PAGES = 64


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)


class PagePool:
    """All pages, in one tensor that grows."""

    def __init__(self, shape: ModelShape, device: torch.device) -> None:
        self.layer_floats = shape.kv_heads * 2 * PAGE * shape.head_dim
        self._device = device
        self._floats = shape.layers * self.layer_floats
        self.storage_PF = self._zeros(FIRST_PAGES)
        self._free = list(range(FIRST_PAGES))
        self._holders = [0] * FIRST_PAGES

    def take(self) -> int:
        """A page of one's own."""
        if not self._free:
            self._grow()
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def share(self, page: int) -> None:
        self._holders[page] += 1

    def drop(self, page: int, *, wipe: bool = False) -> None:
        """`wipe` clears numbers that are not finite from a page that nobody holds any more: torch multiplies masked
        keys by a weight of 0, and 0 * NaN is NaN."""
        self._holders[page] -= 1
        assert self._holders[page] >= 0
        if self._holders[page] == 0:
            self._free.append(page)
            if wipe:
                self.storage_PF[page] = 0

    def copy(self, page: int) -> int:
        """A page of one's own with the same content."""
        own = self.take()
        self.storage_PF[own] = self.storage_PF[page]
        return own

    def _grow(self) -> None:
        old = len(self._holders)
        larger = self._zeros(old + old // 2)
        larger[:old] = self.storage_PF
        self.storage_PF = larger
        self._free += range(old, len(larger))
        self._holders += [0] * (len(larger) - old)

    def _zeros(self, pages: int) -> Tensor:
        if self._device.type != "cpu":
            return torch.zeros(pages, self._floats, device=self._device)
        memory = mmap.mmap(-1, 4 * pages * self._floats)  # zeros, not taken from the system before they are written
        with suppress(OSError, AttributeError):  # where the system has no huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.float32).view(pages, self._floats)


@dataclass(slots=True, eq=False)
class Running:
    """One request on its way. `ids` is the prompt and what was sampled; the first `computed` have keys and values."""

    request: GenerateRequest
    ids: list[int]
    limit: int  # tokens of prompt and reply together
    submitted_s: float
    table: NDArray[np.int32]  # its pages; the first `pages` are set
    address: int = field(init=False)  # of the table
    pages: int = 0
    started_s: float = 0.0
    computed: int = 0
    cached: int = 0
    version: int = -1  # of all its keys and values; -1: mixed
    logprobs: list[float] = field(default_factory=list[float])
    log_mass: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.address = self.table.ctypes.data

    @property
    def pending(self) -> int:
        return len(self.ids) - self.computed

    def reserve(self, tokens: int, pool: PagePool) -> None:
        """Hold pages for so many tokens."""
        while self.pages * PAGE < tokens:
            self.add(pool.take())

    def add(self, page: int) -> None:
        self.table[self.pages] = page
        self.pages += 1

    def release(self, pool: PagePool, *, wipe: bool = False) -> None:
        """Give all pages back."""
        for page in self.table[: self.pages].tolist():
            pool.drop(page, wipe=wipe)
        self.pages = self.computed = 0
