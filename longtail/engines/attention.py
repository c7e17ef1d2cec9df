"""Attention of the flat tokens of a pass against pages: natively, or with torch.

Shapes: N flat tokens, D sequences that decode one token, C tokens of a chunk of a prompt, H query heads, K key-value
heads, G = H / K, L keys, n pages of a sequence, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from longtail.engines.pages import PagePool, Running
from longtail.models.native import PAGE, AttentionCall, Native, native

BLOCK = 512  # keys that torch's CPU kernel sums together
QUERY_BLOCK = 256  # queries of a prompt that attend together: bounds the mask, skips most of the masked half


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The next `count` tokens of a sequence."""

    sequence: Running
    count: int


class Attention(Protocol):
    def attend(self, layer: int, query_HNE: Tensor, key_KNE: Tensor, value_KNE: Tensor, scale: float) -> Tensor: ...


def attention_for(pool: PagePool, chunks: Sequence[Chunk], head_dim: int) -> Attention:
    """Attention for chunks that stand one after the other in the flat tokens."""
    code = native() if pool.storage_PF.device.type == "cpu" and head_dim % 16 == 0 else None
    return NativeAttention(code, pool, chunks) if code else TorchAttention(pool, chunks)


class NativeAttention:
    """kernels.c."""

    def __init__(self, code: Native, pool: PagePool, chunks: Sequence[Chunk]) -> None:
        self._code = code
        self._pool = pool
        firsts = [chunk.sequence.computed for chunk in chunks]
        counts = [chunk.count for chunk in chunks]
        self._sequences = [chunk.sequence for chunk in chunks]  # keeps their tables
        addresses = [sequence.address for sequence in self._sequences]
        self._tables = np.repeat(np.array(addresses, np.uint64), counts)
        starts = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
        self._positions = np.repeat(np.array(firsts, np.int64), counts) + np.arange(sum(counts)) - starts
        self._call = AttentionCall(
            tokens=len(self._positions),
            tables=self._tables.ctypes.data,
            positions=self._positions.ctypes.data,
            longest=int(self._positions.max()) + 1,
            page_stride=pool.storage_PF.shape[1],
        )

    def attend(self, layer: int, query_HNE: Tensor, key_KNE: Tensor, value_KNE: Tensor, scale: float) -> Tensor:
        heads, count, width = query_HNE.shape
        out_NHE = torch.empty(count, heads, width)
        if count > self._call.tokens:
            out_NHE[self._call.tokens :] = 0
        call = self._call
        call.query, call.key, call.value = query_HNE.data_ptr(), key_KNE.data_ptr(), value_KNE.data_ptr()
        call.query_head, call.query_token, _ = query_HNE.stride()
        call.key_head, call.key_token, _ = key_KNE.stride()
        call.value_head, call.value_token, _ = value_KNE.stride()
        call.heads, call.kv_heads, call.width = heads, len(key_KNE), width
        call.pages = self._pool.storage_PF.data_ptr() + 4 * layer * self._pool.layer_floats
        call.scale = scale
        call.out = out_NHE.data_ptr()
        self._code.attend(call)
        return out_NHE


class TorchAttention:
    """Gathers pages and calls torch. Slower; works on any device.

    On a CPU, torch gives a query the same bits whatever runs beside it when blocks of queries are padded to 4 and keys
    to `padded_length`.
    """

    def __init__(self, pool: PagePool, chunks: Sequence[Chunk]) -> None:
        self._parts: list[_Decoding | _Prefilling] = []
        start, decoding = 0, 0
        while decoding < len(chunks) and chunks[decoding].count == 1:
            decoding += 1
        if decoding:
            self._parts.append(_Decoding(pool, [chunk.sequence for chunk in chunks[:decoding]]))
            start = decoding
        for chunk in chunks[decoding:]:
            self._parts.append(_Prefilling(pool, chunk, start))
            start += chunk.count

    def attend(self, layer: int, query_HNE: Tensor, key_KNE: Tensor, value_KNE: Tensor, scale: float) -> Tensor:
        heads, count, width = query_HNE.shape
        out_NHE = query_HNE.new_zeros(count, heads, width)
        for part in self._parts:
            part.attend(layer, query_HNE, key_KNE, value_KNE, scale, out_NHE)
        return out_NHE


def padded_length(length: int) -> int:
    """Keys that attention reads for sequences of at most `length` tokens: whole blocks. Inside a block, the order in
    which torch's kernel sums depends on their number, and how, on the processor."""
    return -(-length // BLOCK) * BLOCK


def _layer(pool: PagePool, layer: int, kv_heads: int, width: int) -> Tensor:
    """Pages of a layer, (pages, K, 2, PAGE, E)."""
    start = layer * pool.layer_floats
    return pool.storage_PF[:, start : start + pool.layer_floats].view(-1, kv_heads, 2, PAGE, width)


def _mask(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)


class _Decoding:
    """One token of each of some sequences; the first flat tokens."""

    def __init__(self, pool: PagePool, sequences: Sequence[Running]) -> None:
        device = pool.storage_PF.device
        self._pool = pool
        self._positions_D = torch.tensor([sequence.computed for sequence in sequences], device=device)
        keys = padded_length(int(self._positions_D.max()) + 1)
        table_Dn = np.zeros((len(sequences), keys // PAGE), np.int64)
        for row, sequence in zip(table_Dn, sequences, strict=True):
            row[: sequence.pages] = sequence.table[: sequence.pages]
        self._table_Dn = torch.as_tensor(table_Dn, device=device)
        self._pages_D = self._table_Dn.gather(1, self._positions_D[:, None] // PAGE)[:, 0]
        self._mask_D11L = _mask(torch.arange(keys, device=device) > self._positions_D[:, None])[:, None, None]

    def attend(
        self, layer: int, query_HNE: Tensor, key_KNE: Tensor, value_KNE: Tensor, scale: float, out_NHE: Tensor
    ) -> None:
        count, kv_heads, width = len(self._positions_D), len(key_KNE), query_HNE.shape[2]
        pages = _layer(self._pool, layer, kv_heads, width)
        at_D = self._positions_D % PAGE
        pages[self._pages_D, :, 0, at_D] = key_KNE[:, :count].transpose(0, 1)
        pages[self._pages_D, :, 1, at_D] = value_KNE[:, :count].transpose(0, 1)
        kv_2DKLE = pages[self._table_Dn].permute(3, 0, 2, 1, 4, 5).flatten(3, 4)
        groups = len(query_HNE) // kv_heads
        query_DKGE = query_HNE[:, :count].transpose(0, 1).reshape(count, kv_heads, groups, width)
        query_DKGE = pad(query_DKGE, (0, 0, 0, -groups % 4))
        mask = self._mask_D11L.expand(-1, -1, query_DKGE.shape[2], -1)
        seen_DKGE = scaled_dot_product_attention(query_DKGE, kv_2DKLE[0], kv_2DKLE[1], attn_mask=mask, scale=scale)
        out_NHE[:count] = seen_DKGE[:, :, :groups].flatten(1, 2)


class _Prefilling:
    """A chunk of one sequence."""

    def __init__(self, pool: PagePool, chunk: Chunk, start: int) -> None:
        device = pool.storage_PF.device
        self._pool = pool
        self._start, self._count, self._done = start, chunk.count, chunk.sequence.computed
        keys = padded_length(self._done + self._count)
        table_n = np.zeros(keys // PAGE, np.int64)
        table_n[: chunk.sequence.pages] = chunk.sequence.table[: chunk.sequence.pages]
        self._table_n = torch.as_tensor(table_n, device=device)
        positions_C = torch.arange(self._done, self._done + self._count, device=device)
        self._pages_C, self._at_C = self._table_n[positions_C // PAGE], positions_C % PAGE
        self._blocks = [self._block(first) for first in range(0, self._count, QUERY_BLOCK)]

    def _block(self, first: int) -> tuple[int, int, Tensor]:
        device = self._pool.storage_PF.device
        last = min(first + QUERY_BLOCK, self._count)
        rows = -(-(last - first) // 4) * 4
        positions_C1 = torch.arange(self._done + first, self._done + first + rows, device=device)[:, None]
        return first, last, _mask(torch.arange(padded_length(self._done + last), device=device) > positions_C1)

    def attend(
        self, layer: int, query_HNE: Tensor, key_KNE: Tensor, value_KNE: Tensor, scale: float, out_NHE: Tensor
    ) -> None:
        kv_heads, width = len(key_KNE), query_HNE.shape[2]
        pages = _layer(self._pool, layer, kv_heads, width)
        span = slice(self._start, self._start + self._count)
        pages[self._pages_C, :, 0, self._at_C] = key_KNE[:, span].transpose(0, 1)
        pages[self._pages_C, :, 1, self._at_C] = value_KNE[:, span].transpose(0, 1)
        kv_2KLE = pages[self._table_n].permute(2, 1, 0, 3, 4).flatten(2, 3)
        groups = len(query_HNE) // kv_heads
        for first, last, mask_CL in self._blocks:
            rows, keys = mask_CL.shape
            query_HCE = query_HNE[:, self._start + first : self._start + last]
            query_KGCE = pad(query_HCE, (0, 0, 0, rows - (last - first))).reshape(kv_heads, groups, rows, width)
            key_KGLE, value_KGLE = kv_2KLE[:, :, None, :keys].expand(-1, -1, groups, -1, -1)
            seen_KGCE = scaled_dot_product_attention(query_KGCE, key_KGLE, value_KGLE, attn_mask=mask_CL, scale=scale)
            seen_HCE = seen_KGCE.flatten(0, 1)[:, : last - first]
            out_NHE[self._start + first : self._start + last] = seen_HCE.transpose(0, 1)
