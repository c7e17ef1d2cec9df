"""One forward pass: which tokens it computes, and attention against the pools.

    flat tokens:  | one token of each decoding sequence, pool by pool | chunks of prompts | padding |

Decoding sequences of a pool attend together, one query block per key-value head. Chunks of prompts attend one by one.

What a token gets must not depend on what runs beside it. Matrix products of torch on a CPU give a row the same bits
whatever the other rows are when there are at least MIN_ROWS of them, in steps of 4; attention when each block of
queries is padded to 4 and keys to `padded_length`. Hence the paddings here.

Shapes: N flat tokens, D decoding sequences of a pool, R rows of a pool, H query heads, K key-value heads, J = 2K,
G = H / K, C tokens of a chunk, L keys, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from longtail.engines.pools import Pool, Running, padded_length

MIN_ROWS = 16
QUERY_BLOCK = 256  # queries of a prompt that attend together: bounds the mask, skips most of the masked half


def padded_rows(count: int) -> int:
    return max(MIN_ROWS, -(-count // 4) * 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The next `count` tokens of a sequence."""

    sequence: Running
    count: int


class _Decoding:
    """One token of each of some members of a pool."""

    def __init__(self, pool: Pool, start: int, members: Sequence[Running], kv_heads: int) -> None:
        device = pool.kv_ARJLE.device
        self._pool = pool
        self._start, self._end = start, start + len(members)
        rows = [member.row for member in members]
        self._whole = len(members) == len(pool.members)  # then they are in the order of rows
        self._rows_D = torch.tensor(rows, device=device)
        lengths_R = torch.tensor([member.computed + 1 for member in pool.members], device=device)
        positions_D = torch.tensor([member.computed for member in members], device=device)
        heads_J = torch.arange(2 * kv_heads, device=device)
        self._slots_JD = ((self._rows_D * 2 * kv_heads)[None] + heads_J[:, None]) * pool.capacity + positions_D
        longest = max(member.computed + 1 for member in members)
        self._keys = padded_length(longest)
        visible_RL = torch.arange(self._keys, device=device) < lengths_R[:, None]
        self._mask_R11L = torch.zeros(visible_RL.shape, device=device).masked_fill_(~visible_RL, -torch.inf)[
            :, None, None
        ]

    def attend(self, layer: int, query_HNE: Tensor, kv_JNE: Tensor, scale: float, out_NHE: Tensor) -> None:
        pool_RJLE = self._pool.kv_ARJLE[layer]
        span = slice(self._start, self._end)
        heads, width = query_HNE.shape[0], query_HNE.shape[2]
        kv_heads = kv_JNE.shape[0] // 2
        pool_RJLE.view(-1, width).index_copy_(0, self._slots_JD.view(-1), kv_JNE[:, span].reshape(-1, width))
        rows = len(self._pool.members)
        query_DKGE = query_HNE[:, span].transpose(0, 1).unflatten(1, (kv_heads, -1))
        groups = heads // kv_heads
        query_RKGE = query_HNE.new_zeros(rows, kv_heads, -(-groups // 4) * 4, width)
        if self._whole:
            query_RKGE[:, :, :groups] = query_DKGE
        else:
            query_RKGE[self._rows_D, :, :groups] = query_DKGE
        key_RKLE = pool_RJLE[:rows, :kv_heads, : self._keys]
        value_RKLE = pool_RJLE[:rows, kv_heads:, : self._keys]
        mask = self._mask_R11L.expand(-1, -1, query_RKGE.shape[2], -1)
        seen_RKGE = scaled_dot_product_attention(query_RKGE, key_RKLE, value_RKLE, attn_mask=mask, scale=scale)
        if not self._whole:
            seen_RKGE = seen_RKGE[self._rows_D]
        out_NHE[span].unflatten(1, (kv_heads, -1)).copy_(seen_RKGE[:, :, :groups])


class _Prefilling:
    """A chunk of one sequence."""

    def __init__(self, chunk: Chunk, start: int) -> None:
        sequence = chunk.sequence
        assert sequence.pool is not None
        self._pool, self._row = sequence.pool, sequence.row
        self._start, self._count, self._done = start, chunk.count, sequence.computed
        self._blocks = [
            self._block(first, min(first + QUERY_BLOCK, chunk.count)) for first in range(0, chunk.count, QUERY_BLOCK)
        ]

    def _block(self, first: int, last: int) -> tuple[int, int, Tensor]:
        device = self._pool.kv_ARJLE.device
        keys = padded_length(self._done + last)
        rows = -(-(last - first) // 4) * 4
        position_C1 = torch.arange(self._done + first, self._done + first + rows, device=device)[:, None]
        hidden_CL = torch.arange(keys, device=device) > position_C1
        return first, last, torch.zeros(hidden_CL.shape, device=device).masked_fill_(hidden_CL, -torch.inf)

    def attend(self, layer: int, query_HNE: Tensor, kv_JNE: Tensor, scale: float, out_NHE: Tensor) -> None:
        row_JLE = self._pool.kv_ARJLE[layer, self._row]
        row_JLE[:, self._done : self._done + self._count] = kv_JNE[:, self._start : self._start + self._count]
        kv_heads = row_JLE.shape[0] // 2
        groups = query_HNE.shape[0] // kv_heads
        for first, last, mask_CL in self._blocks:
            span = slice(self._start + first, self._start + last)
            extra = mask_CL.shape[0] - (last - first)
            query_KGCE = pad(query_HNE[:, span], (0, 0, 0, extra)).unflatten(0, (kv_heads, groups))
            keys = mask_CL.shape[1]
            key_KGLE = row_JLE[:kv_heads, None, :keys].expand(-1, groups, -1, -1)
            value_KGLE = row_JLE[kv_heads:, None, :keys].expand(-1, groups, -1, -1)
            seen_KGCE = scaled_dot_product_attention(query_KGCE, key_KGLE, value_KGLE, attn_mask=mask_CL, scale=scale)
            out_NHE[span] = seen_KGCE.flatten(0, 1)[:, : last - first].transpose(0, 1)


class Pass:
    """The tokens of one forward pass, as a Plan (models/attention.py). Every sequence in it has room in its pool."""

    def __init__(self, chunks: Sequence[Chunk], kv_heads: int, device: torch.device) -> None:
        decoding = [chunk for chunk in chunks if chunk.count == 1]
        prefilling = [chunk for chunk in chunks if chunk.count > 1]
        by_pool: dict[Pool, list[Chunk]] = {}
        for chunk in decoding:
            assert chunk.sequence.pool is not None
            by_pool.setdefault(chunk.sequence.pool, []).append(chunk)
        self.chunks: list[Chunk] = []
        self._parts: list[_Decoding | _Prefilling] = []
        tokens = 0
        for pool, members in by_pool.items():
            members.sort(key=lambda chunk: chunk.sequence.row)
            self._parts.append(_Decoding(pool, tokens, [chunk.sequence for chunk in members], kv_heads))
            self.chunks += members
            tokens += len(members)
        for chunk in prefilling:
            self._parts.append(_Prefilling(chunk, tokens))
            self.chunks.append(chunk)
            tokens += chunk.count
        self.tokens = tokens
        self._pack(device)

    def _pack(self, device: torch.device) -> None:
        ids: list[int] = []
        positions: list[int] = []
        self.finishing: list[Running] = []  # those whose last known token is computed here: they sample next
        rows: list[int] = []  # where
        for chunk in self.chunks:
            sequence, end = chunk.sequence, chunk.sequence.computed + chunk.count
            ids += sequence.ids[sequence.computed : end]
            positions += range(sequence.computed, end)
            if end == len(sequence.ids):
                self.finishing.append(sequence)
                rows.append(len(ids) - 1)
        extra = [0] * (padded_rows(self.tokens) - self.tokens)
        self.ids_N = torch.tensor(ids + extra, device=device)
        self.positions_N = torch.tensor(positions + extra, device=device)
        rows += [0] * (padded_rows(len(rows)) - len(rows))
        self.rows_M = torch.tensor(rows, device=device)

    def attend(self, layer: int, query_HNE: Tensor, key_KNE: Tensor, value_KNE: Tensor, scale: float) -> Tensor:
        heads, count, width = query_HNE.shape
        kv_JNE = torch.cat((key_KNE, value_KNE))
        out_NHE = query_HNE.new_zeros(count, heads, width)
        for part in self._parts:
            part.attend(layer, query_HNE, kv_JNE, scale, out_NHE)
        return out_NHE
