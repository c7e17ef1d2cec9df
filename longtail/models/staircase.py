"""Attention over packed segments with shared ancestors, forward and backward, without autograd.

A segment's keys are its ancestors' and its own. Its queries go in blocks: each sees all keys up to its own end, and a
mask cuts only the triangle at that end, so that about half of the causal square is never computed. Grouped key-value
heads are not copied.

Shapes: N packed tokens, U query rows, H query heads, K key-value heads, E head width, L keys of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from longtail.types import Segment

BLOCK = 96  # query rows of one kernel call

Spans = tuple[tuple[int, int], ...]

_OPS: Any = cast("Any", torch.ops.aten)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    start: int  # query rows
    end: int
    keys: int  # seen by the last of them
    mask: Tensor  # (rows, keys) added to the scores


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    spans: Spans  # of the keys, neighbours joined
    blocks: tuple[_Block, ...]


class Staircase:
    """The plan of one micro-batch."""

    def __init__(self, segments: Sequence[Segment], dtype: torch.dtype = torch.float32) -> None:
        self._segments = segments
        self._dtype = dtype
        self._longest = max((_length(_spans(s)) for s in segments), default=0)
        corner = torch.full((BLOCK, BLOCK), float("-inf"), dtype=dtype).triu_(1)
        # Every mask is a view of this one: nothing is hidden but the triangle at its right end.
        self._mask = torch.cat((torch.zeros(BLOCK, self._longest, dtype=dtype), corner), dim=1)
        self.parts: tuple[_Part, ...] = tuple(self._full(segment) for segment in segments)

    def _full(self, segment: Segment) -> _Part:
        spans = _spans(segment)
        before = _length(spans) - (segment.end - segment.start)
        blocks: list[_Block] = []
        for start in range(segment.start, segment.end, BLOCK):
            end = min(segment.end, start + BLOCK)
            keys = before + end - segment.start
            right = self._longest + end - start
            blocks.append(_Block(start=start, end=end, keys=keys, mask=self._mask[: end - start, right - keys : right]))
        return _Part(spans=spans, blocks=tuple(blocks))

    def only(self, rows_U: Tensor) -> Staircase:
        """The plan for the query rows at these sorted packed positions alone."""
        chosen = object.__new__(Staircase)
        parts: list[_Part] = []
        starts = torch.tensor([segment.start for segment in self._segments] + [1 << 62])
        cuts = cast("list[int]", cast("Any", torch.searchsorted(rows_U, starts)).tolist())
        for segment, first, last in zip(self._segments, cuts, cuts[1:], strict=False):
            spans = _spans(segment)
            before = _length(spans) - (segment.end - segment.start)
            blocks: list[_Block] = []
            for start in range(first, last, BLOCK):
                end = min(last, start + BLOCK)
                seen = rows_U[start:end] - segment.start + before + 1
                keys = int(seen[-1])
                hidden = torch.arange(keys) >= seen[:, None]
                mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
                blocks.append(_Block(start=start, end=end, keys=keys, mask=mask))
            if blocks:
                parts.append(_Part(spans=spans, blocks=tuple(blocks)))
        chosen.parts = tuple(parts)
        return chosen


def attend(plan: Staircase, q_UHE: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Outputs (U, H * E), and what the backward pass needs beside them."""
    o_UHE = torch.empty_like(q_UHE)
    normalizers: list[Tensor] = []
    for part in plan.parts:
        key, value = _gather(k_NKE, part.spans), _gather(v_NKE, part.spans)
        for block in part.blocks:
            out, normalizer = _OPS._scaled_dot_product_flash_attention_for_cpu(
                _heads(q_UHE[block.start : block.end]),
                _heads(key[: block.keys]),
                _heads(value[: block.keys]),
                attn_mask=block.mask,
            )
            o_UHE[block.start : block.end] = out[0].transpose(0, 1)
            normalizers.append(normalizer)
    return o_UHE.flatten(1), normalizers


def attend_backward(
    plan: Staircase,
    inputs: tuple[Tensor, Tensor, Tensor],
    outputs: tuple[Tensor, list[Tensor], Tensor],
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Fill the gradients (dq, dk, dv) from (q, k, v) and (outputs, normalizers, gradient of outputs).

    dk and dv must be zero before: shared keys add up.
    """
    q_UHE, k_NKE, v_NKE = inputs
    o_UHE, do_UHE = (x.view_as(q_UHE) for x in (outputs[0], outputs[2]))
    dq_UHE, dk_NKE, dv_NKE = grads
    normalizers = iter(outputs[1])
    for part in plan.parts:
        key, value = _gather(k_NKE, part.spans), _gather(v_NKE, part.spans)
        one = len(part.spans) == 1
        d_key = _gather(dk_NKE, part.spans) if one else torch.zeros_like(key)
        d_value = _gather(dv_NKE, part.spans) if one else torch.zeros_like(value)
        for block in part.blocks:
            rows = slice(block.start, block.end)
            d_query, d_keys, d_values = _OPS._scaled_dot_product_flash_attention_for_cpu_backward(
                _heads(do_UHE[rows]),
                _heads(q_UHE[rows]),
                _heads(key[: block.keys]),
                _heads(value[: block.keys]),
                _heads(o_UHE[rows]),
                next(normalizers),
                0.0,
                False,
                attn_mask=block.mask,
            )
            dq_UHE[rows] = d_query[0].transpose(0, 1)
            d_key[: block.keys] += d_keys[0].transpose(0, 1)
            d_value[: block.keys] += d_values[0].transpose(0, 1)
        if not one:
            _scatter(dk_NKE, part.spans, d_key)
            _scatter(dv_NKE, part.spans, d_value)


def _spans(segment: Segment) -> Spans:
    """Where a segment's keys lie; what is contiguous is one span and needs no copy."""
    joined: list[tuple[int, int]] = []
    for start, end in (*segment.context, (segment.start, segment.end)):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def _length(spans: Spans) -> int:
    return sum(end - start for start, end in spans)


def _heads(x_LHE: Tensor) -> Tensor:
    return x_LHE.transpose(0, 1)[None]


def _gather(x_NKE: Tensor, spans: Spans) -> Tensor:
    pieces = [x_NKE[start:end] for start, end in spans]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _scatter(into_NKE: Tensor, spans: Spans, add_LKE: Tensor) -> None:
    offset = 0
    for start, end in spans:
        into_NKE[start:end] += add_LKE[offset : offset + end - start]
        offset += end - start
