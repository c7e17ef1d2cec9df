"""One forward pass: which tokens it computes, and which sequences sample after it.

    flat tokens:  | one token of each decoding sequence | chunks of prompts | padding of the kernels |

Shapes: N flat tokens, M rows that sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from longtail.engines.attention import Chunk, attention_for
from longtail.engines.pages import PagePool, Running


class Pass:
    """A Plan (models/attention.py). Every sequence in it holds pages for its tokens."""

    def __init__(self, chunks: Sequence[Chunk], pool: PagePool, head_dim: int, rows: Callable[[int], int]) -> None:
        """`rows`: how many rows the kernels want for so many tokens."""
        self.chunks = sorted(chunks, key=lambda chunk: chunk.count > 1)
        self.finishing: list[Running] = []  # those whose last known token is computed here: they sample next
        ids: list[int] = []
        positions: list[int] = []
        sampling: list[int] = []
        for chunk in self.chunks:
            sequence, end = chunk.sequence, chunk.sequence.computed + chunk.count
            ids += sequence.ids[sequence.computed : end]
            positions += range(sequence.computed, end)
            if end == len(sequence.ids):
                self.finishing.append(sequence)
                sampling.append(len(ids) - 1)
        device = pool.storage_PF.device
        padding = [0] * (rows(len(ids)) - len(ids))
        self.ids_N = torch.tensor(ids + padding, device=device)
        self.positions_N = torch.tensor(positions + padding, device=device)
        self.rows_M = torch.tensor(sampling + [0] * (rows(len(sampling)) - len(sampling)), device=device)
        self.attend = attention_for(pool, self.chunks, head_dim).attend
