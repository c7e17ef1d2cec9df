"""From finished groups to packed micro-batches. Pure: the same input gives the same output, nothing is read or written.

    groups + advantages --trajectories_to_samples--> samples --pack--> micro-batches

What is trained comes from the engine's record alone: no text, no tokenizer.

Packing keeps each distinct prefix once. Sorted rows form a trie; a row adds one segment with the tokens that its left
neighbour does not have, and attends to its neighbour's path above it:

    row 0   system prompt | task A | reply 1 ...        segment 0: everything
    row 1   .............................. | reply 2     segment 1: from "reply 2", context = the start of segment 0
    row 2   ............. | task B | reply 1            segment 2: from "task B", context = a shorter start

Tokens after the last trained one of a row cannot change the loss and are not computed.

Shapes: P groups, G attempts, D samples, T tokens of a row, N packed tokens, M trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from longtail.types import Advantages, Group, MicroBatch, ModelCall, PolicyVersion, Sample, Segment, Trajectory

Ints = np.ndarray[Any, np.dtype[np.int64]]
SPLIT_COST = 16  # a group is split over two micro-batches when at most 1/16 of one is computed twice for it

Spans = tuple[tuple[int, int], ...]


# --- from the call graph to rows ------------------------------------------------------------------------------------


def trajectories_to_samples(
    groups_P: Sequence[Group], advantages_P: Sequence[Advantages | None], normalization: str
) -> list[Sample]:
    """Rows of all usable trajectories, each sampled token trained once.

    `advantages_P[p]` is aligned with `groups_P[p].usable` and the model calls of each; None drops the group. Weights
    are normalised over the step: "token" gives each trained token the same, "sequence" each trajectory, "constant"
    divides by the number of trajectories and the longest that the task allows, whatever was sampled.
    """
    assert len(groups_P) == len(advantages_P), "advantages for each group"
    taken: list[tuple[Group, list[Sample]]] = []  # one entry per trajectory
    for group, advantages_G in zip(groups_P, advantages_P, strict=True):
        if advantages_G is None:
            continue
        for trajectory, of_turns in zip(group.usable, advantages_G, strict=True):
            rows = list(_rows(trajectory, of_turns))
            if rows:
                taken.append((group, rows))
    counts = [sum(sum(row.mask) for row in rows) for _, rows in taken]
    samples_D: list[Sample] = []
    for (group, rows), count in zip(taken, counts, strict=True):
        match normalization:
            case "token":
                weight = 1.0 / sum(counts)
            case "sequence":
                weight = 1.0 / (len(taken) * count)
            case "constant":
                weight = 1.0 / (len(taken) * group.task.limits.tokens)
            case _:
                raise ValueError(f"normalization must be token, sequence or constant, got {normalization!r}")
        samples_D += [replace(row, weight=weight) for row in rows]
    return samples_D


def _rows(trajectory: Trajectory, of_turns: Sequence[float]) -> Iterator[Sample]:
    """Root-to-leaf paths; a call that several paths share is trained by the first of them."""
    calls = {call.index: call for call in trajectory.model_calls}
    advantages = dict(zip(calls, of_turns, strict=True))
    parents = {call.parent for call in calls.values()}
    trained: set[int] = set()
    for leaf in calls.values():
        if leaf.index in parents:
            continue
        path = _path(calls, leaf)
        new = [call for call in path if call.index not in trained and call.completion.ids]
        for temperature in sorted({call.temperature for call in new}):
            here = {call.index: advantages[call.index] for call in new if call.temperature == temperature}
            yield _row(trajectory, path, here, temperature)
        trained.update(call.index for call in path)


def _path(calls: Mapping[int, ModelCall], leaf: ModelCall) -> list[ModelCall]:
    path = [leaf]
    while path[-1].parent is not None:
        path.append(calls[path[-1].parent])
    return path[::-1]


def _row(trajectory: Trajectory, path: Sequence[ModelCall], trained: Mapping[int, float], temperature: float) -> Sample:
    """`trained`: which calls this row trains, with their advantages."""
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    advantages: list[float] = []
    versions: list[PolicyVersion] = []
    for call in path:
        prompt, reply = len(call.delta_ids), call.completion
        ids += [*call.delta_ids, *reply.ids]
        mask += [False] * prompt + [call.index in trained] * len(reply.ids)
        # The sampler's distribution was cut by top-p/top-k; the kept mass brings it back to the whole vocabulary.
        whole = (a + b for a, b in zip(reply.logprobs, reply.log_mass, strict=True))
        logprobs += [0.0] * prompt + list(whole)
        advantages += [0.0] * prompt + [trained.get(call.index, 0.0)] * len(reply.ids)
        versions += [-1] * prompt + list(reply.versions)
    assert not mask[0], "a sampled token must stand after a prompt"
    return Sample(
        group_id=trajectory.group_id,
        trajectory_id=trajectory.id,
        ids=tuple(ids),
        mask=tuple(mask),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        advantages=tuple(advantages),
        temperature=temperature,
        weight=0.0,
    )


# --- from rows to micro-batches -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row as arrays: the tokens that are computed, and the loss rows it brings."""

    unit: str  # rows of one unit stay together where that saves tokens: the group
    sequence: int  # rows of one sequence always stay together: the trajectory
    inputs: Ints  # (T,) up to the last token that predicts a trained one
    tokens: int  # of the whole row
    order: bytes  # big-endian inputs: sorting by it puts shared prefixes side by side
    sources: Ints  # (M,) positions in `inputs`
    targets: Ints  # (M,)
    logprobs: Sequence[float]
    advantages: Sequence[float]
    weights: Sequence[float]
    versions: Sequence[int]
    temperature: float


def pack(samples_D: Sequence[Sample], max_tokens: int) -> list[MicroBatch]:
    """Micro-batches of about `max_tokens` distinct tokens, without padding; shared prefixes stand once.

    A row is never cut: one that is longer gets a micro-batch of its own. All rows of a trajectory stay together.
    """
    sequences: dict[str, int] = {}
    rows: list[_Row] = []
    for sample in samples_D:
        sequence = sequences.setdefault(sample.trajectory_id, len(sequences))
        trained = np.flatnonzero(sample.mask)
        chosen = trained.tolist()
        rows.append(
            _make_row(
                unit=sample.group_id,
                sequence=sequence,
                ids=np.asarray(sample.ids, dtype=np.int64),
                trained=trained,
                logprobs=[sample.logprobs[i] for i in chosen],
                advantages=[sample.advantages[i] for i in chosen],
                weights=[sample.weight] * len(chosen),
                versions=[sample.versions[i] for i in chosen],
                temperature=sample.temperature,
            )
        )
    return _pack_rows(rows, max_tokens)


def pack_supervised(rows_D: Sequence[tuple[Sequence[int], Sequence[float]]], max_tokens: int) -> list[MicroBatch]:
    """Micro-batches of rows (ids, weight of each token in the loss); weights are divided by their sum over all rows."""
    total = sum(float(np.sum(weights[1:])) for _, weights in rows_D)
    rows: list[_Row] = []
    for index, (ids, weights) in enumerate(rows_D):
        weights_T = np.asarray(weights, dtype=np.float64)
        trained = np.flatnonzero(weights_T[1:]) + 1  # nothing predicts a first token
        rows.append(
            _make_row(
                unit=str(index),
                sequence=index,
                ids=np.asarray(ids, dtype=np.int64),
                trained=trained,
                logprobs=[0.0] * len(trained),
                advantages=[1.0] * len(trained),
                weights=(weights_T[trained] / total).tolist(),
                versions=[0] * len(trained),
                temperature=1.0,
            )
        )
    return _pack_rows(rows, max_tokens)


def _make_row(*, unit: str, sequence: int, ids: Ints, trained: Ints, **loss: Any) -> _Row:
    assert not len(trained) or trained[0] > 0, "nothing predicts a first token"
    inputs = ids[: trained[-1]] if len(trained) else ids[:0]
    return _Row(
        unit=unit,
        sequence=sequence,
        inputs=inputs,
        tokens=len(ids),
        order=inputs.astype(">i8").tobytes(),
        sources=trained - 1,
        targets=ids[trained],
        **loss,
    )


@dataclass(slots=True)
class _Bin:
    room: int  # distinct tokens that still fit
    trajectories: list[Sequence[_Row]]


def _pack_rows(rows: Sequence[_Row], max_tokens: int) -> list[MicroBatch]:
    """Best-fit decreasing of whole groups; the prefix that all rows share is paid once per bin."""
    rows = sorted((row for row in rows if len(row.sources)), key=lambda row: row.order)
    if not rows:
        return []
    common = _shared(rows[0].inputs, rows[-1].inputs)
    groups: dict[str, dict[int, list[_Row]]] = {}
    for row in rows:
        groups.setdefault(row.unit, {}).setdefault(row.sequence, []).append(row)
    bins: list[_Bin] = []
    for unit in sorted((list(group.values()) for group in groups.values()), key=_cost, reverse=True):
        _place(unit, bins, common, max_tokens)
    return [_micro_batch(sorted(chain.from_iterable(b.trajectories), key=lambda row: row.order)) for b in bins]


def _place(unit: Sequence[Sequence[_Row]], bins: list[_Bin], common: int, max_tokens: int) -> None:
    """Put the trajectories of a group into the fullest bin with room for all, else as many as fit into some bin."""
    while unit:
        cost = _cost(unit) - common
        fitting = [b for b in bins if b.room >= cost]
        target = min(fitting, key=lambda b: b.room, default=None)
        taken = len(unit)
        if target is None and bins:
            target = max(bins, key=lambda b: b.room)
            taken = _worth_splitting(unit, target.room + common, max_tokens)
        if target is None or not taken:
            target = _Bin(room=max_tokens - common, trajectories=[])
            bins.append(target)
            taken = max(1, _that_fit(unit, max_tokens))
        target.room -= _cost(unit[:taken]) - common
        target.trajectories += unit[:taken]
        unit = unit[taken:]


def _worth_splitting(unit: Sequence[Sequence[_Row]], room: int, max_tokens: int) -> int:
    """How many trajectories to split off into a bin: none when that repeats much of a prefix that they share."""
    taken = _that_fit(unit, room)
    repeated = _cost(unit[:taken]) + _cost(unit[taken:]) - _cost(unit) if taken else 0
    return taken if repeated * SPLIT_COST <= max_tokens else 0


def _that_fit(unit: Sequence[Sequence[_Row]], room: int) -> int:
    """Length of the longest start of the unit that costs at most `room`."""
    taken = 0
    while taken < len(unit) and _cost(unit[: taken + 1]) <= room:
        taken += 1
    return taken


def _cost(trajectories: Sequence[Sequence[_Row]]) -> int:
    """Distinct tokens: the size of the trie of all rows."""
    rows = sorted(chain.from_iterable(trajectories), key=lambda row: row.order)
    repeated = sum(_shared(left.inputs, right.inputs) for left, right in pairwise(rows))
    return sum(len(row.inputs) for row in rows) - repeated


def _shared(left: Ints, right: Ints) -> int:
    """Length of the longest common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def _micro_batch(rows: Sequence[_Row]) -> MicroBatch:
    """One micro-batch of rows in sorted order."""
    ids: list[Ints] = []
    positions: list[Ints] = []
    segments: list[Segment] = []
    sources: list[Ints] = []
    path: Ints = np.zeros(0, dtype=np.int64)  # packed position of each token of the row at hand
    spans: Spans = ()  # the same as runs
    before = rows[0].inputs[:0]
    size = 0
    for row in rows:
        kept = _shared(before, row.inputs)
        new = len(row.inputs) - kept
        spans = _clip(spans, kept)
        if new:
            segments.append(Segment(start=size, end=size + new, context=spans))
            ids.append(row.inputs[kept:])
            positions.append(np.arange(kept, kept + new))
            spans = (*spans, (size, size + new))
        path = np.concatenate([path[:kept], np.arange(size, size + new)])
        sources.append(path[row.sources])
        before, size = row.inputs, size + new
    return MicroBatch(
        ids=_flat(ids),
        positions=_flat(positions),
        segments=tuple(segments),
        sources=_flat(sources),
        target_ids=_flat([row.targets for row in rows]),
        logprobs=tuple(x for row in rows for x in row.logprobs),
        advantages=tuple(x for row in rows for x in row.advantages),
        weights=tuple(x for row in rows for x in row.weights),
        temperatures=tuple(row.temperature for row in rows for _ in row.weights),
        versions=tuple(x for row in rows for x in row.versions),
        sequences=tuple(row.sequence for row in rows for _ in row.weights),
        rows=len(rows),
        row_tokens=sum(row.tokens for row in rows),
    )


def _clip(spans: Spans, length: int) -> Spans:
    """The first `length` tokens of a path."""
    kept: list[tuple[int, int]] = []
    for start, end in spans:
        take = min(end - start, length)
        if take:
            kept.append((start, start + take))
        length -= take
    return tuple(kept)


def _flat(parts: Sequence[Ints]) -> tuple[int, ...]:
    return tuple(np.concatenate(parts).tolist())
