"""Events to rows and back. Payloads are JSON text; arrays are one binary value beside it.

An array is stored as (type code, count, bytes): the smallest integer type that holds it, float32 where that is exact
for every element and float64 otherwise; an array of equal elements stores one of them. What comes back is equal bit
for bit, except that a float array given with some ints comes back as floats.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from longtail.types import Event

Row = tuple[str, str, float, str, bytes | None]  # trajectory, kind, at_s, data, arrays

_INTS = (("b", -(2**7), 2**7), ("H", 0, 2**16), ("i", -(2**31), 2**31), ("q", -(2**63), 2**63))  # code, from, below

_encode_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[str, tuple[str, int, bytes]]).decode


def row_of(event: Event, at_s: float) -> Row:
    """Raises TypeError or ValueError for what is not JSON, or an integer beyond 64 bits."""
    arrays = encode_arrays(event.arrays) if event.arrays else None
    return event.trajectory, event.kind, event.at_s or at_s, _json(event.data), arrays


def event_of(row: Sequence[Any]) -> Event:
    """`row` is (seq, trajectory, kind, at_s, data, arrays)."""
    seq, trajectory, kind, at_s, data, arrays = row
    return Event(
        kind=kind,
        trajectory=trajectory,
        data=json.loads(data),
        arrays=decode_arrays(arrays) if arrays is not None else {},
        at_s=at_s,
        seq=seq,
    )


def _json(data: Mapping[str, Any]) -> str:
    """JSON text; NaN and infinities become null."""
    try:
        return _encode_json(data).decode()
    except UnicodeEncodeError:  # a lone surrogate in what a model or a tool said: only escapes can carry it
        return json.dumps(data, separators=(",", ":"))


def encode_arrays(arrays: Mapping[str, Sequence[int] | Sequence[float]]) -> bytes:
    return _pack({name: _encode(values) for name, values in arrays.items()})


def decode_arrays(data: bytes) -> dict[str, tuple[Any, ...]]:
    return {name: _decode(*stored) for name, stored in _unpack(data).items()}


def _encode(values: Sequence[int] | Sequence[float]) -> tuple[str, int, bytes]:
    packed = _ints(values)
    packed = _floats(values) if packed is None else packed
    if sys.byteorder == "big":
        packed.byteswap()
    raw, size = packed.tobytes(), packed.itemsize
    if len(packed) > 1 and raw == raw[:size] * len(packed):
        raw = raw[:size]
    return packed.typecode, len(packed), raw


def _ints(values: Sequence[Any]) -> array[Any] | None:
    """None when there is a float among the values."""
    try:
        wide = array("q", values)
    except TypeError:
        return None
    except OverflowError:
        raise ValueError("array elements must be 64-bit integers") from None
    low, high = (min(wide), max(wide)) if wide else (0, 0)
    code = next(code for code, lowest, limit in _INTS if lowest <= low and high < limit)
    return array(code, wide)


def _floats(values: Sequence[Any]) -> array[Any]:
    exact = array("d", values)
    short = array("f", exact)
    return short if array("d", short).tobytes() == exact.tobytes() else exact


def _decode(code: str, count: int, raw: bytes) -> tuple[Any, ...]:
    values: array[Any] = array(code, raw)
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values) if len(values) == count else tuple(values) * count
