"""Events to rows and back. Payloads are JSON text; arrays are one binary value beside it.

An array is MessagePack of (form, count, content): integers as they are (one to nine bytes each), floats as float32
where that is exact for every element and float64 otherwise; an array of equal elements stores one of them. What comes
back is equal bit for bit; ints in an array that begins with a float come back as floats.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from longtail.types import Event

Row = tuple[str, str, float, str, bytes | None]  # trajectory, kind, at_s, data, arrays

_Stored = tuple[str, int, Any]  # form, count, content

_encode_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[str, _Stored]).decode


def row_of(event: Event, at_s: float) -> Row:
    """Raises TypeError for what is not JSON, OverflowError for an integer beyond 64 bits."""
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
    """JSON text; NaN and infinities become null.

    What the encoder refuses the standard library may still write: lone surrogates, as escapes; numpy.float64.
    """
    try:
        return _encode_json(data).decode()
    except (UnicodeEncodeError, TypeError):
        return json.dumps(data, separators=(",", ":"))


def encode_arrays(arrays: Mapping[str, Sequence[int] | Sequence[float]]) -> bytes:
    return _pack({name: _encode(values) for name, values in arrays.items()})


def decode_arrays(data: bytes) -> dict[str, tuple[Any, ...]]:
    return {name: _decode(*stored) for name, stored in _unpack(data).items()}


def _encode(values: Sequence[int] | Sequence[float]) -> _Stored:
    items = tuple(values)
    if items and isinstance(items[0], float):
        return _encode_floats(items)
    if len(items) > 1 and items.count(items[0]) == len(items):
        return "same", len(items), items[0]
    return "list", len(items), items


def _encode_floats(items: tuple[Any, ...]) -> _Stored:
    count = len(items)
    code, raw = "f", _pack_float32(items)
    if not raw:
        code, raw = "d", struct.pack(f"<{count}d", *items)
    one = raw[: len(raw) // count]
    return code, count, one if raw == one * count else raw


def _pack_float32(items: tuple[Any, ...]) -> bytes:
    """b"" where that would lose a bit."""
    form = f"<{len(items)}f"
    try:
        raw = struct.pack(form, *items)
    except OverflowError:
        return b""
    return raw if struct.unpack(form, raw) == items else b""


def _decode(code: str, count: int, stored: Any) -> tuple[Any, ...]:
    match code:
        case "list":
            return tuple(stored)
        case "same":
            return (stored,) * count
        case _:
            size = len(stored) // (4 if code == "f" else 8)
            values = struct.unpack(f"<{size}{code}", stored)
            return values if size == count else values * count
