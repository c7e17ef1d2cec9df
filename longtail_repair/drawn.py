"""Data sets that make task i when it is asked for, as a pure function of (split, seed, i)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from longtail.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTasks(Sequence[Task], ABC):
    split: str
    size: int
    seed: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self.size))]
        if not -self.size <= index < self.size:
            raise IndexError(index)
        return self._make(index % self.size)

    @abstractmethod
    def _make(self, index: int) -> Task: ...
