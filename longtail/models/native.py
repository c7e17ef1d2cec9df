"""The functions of kernels.c, for tensors.

Without a compiler, or with LONGTAIL_NATIVE=0, there is no native part and torch does the work, more slowly.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from longtail.models.compiler import compiled

PAGE = 16  # tokens of a page of keys and values; kernels.c says how it is laid out

_Pointer, _Long, _Int, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float


class AttentionCall(ctypes.Structure):
    """`Attention` of kernels.c."""

    _fields_ = (
        *((name, _Pointer) for name in ("query", "key", "value")),
        *((f"{name}_{axis}", _Long) for name in ("query", "key", "value") for axis in ("token", "head")),
        *((name, _Long) for name in ("tokens", "heads", "kv_heads", "width")),
        ("tables", _Pointer),
        ("positions", _Pointer),
        ("longest", _Long),
        ("pages", _Pointer),
        ("page_stride", _Long),
        ("scale", _Float),
        ("out", _Pointer),
    )


class Native:
    """The functions of kernels.c on contiguous float32 tensors of the CPU, with as many threads as torch uses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._linear = _function(library, "lt_linear", _Pointer, _Pointer, _Long, _Long, _Long, _Pointer, _Int, _Int)
        self._pack = _function(library, "lt_pack", _Pointer, _Long, _Long, _Long, _Pointer)
        self._rms = _function(library, "lt_rms_norm", _Pointer, _Pointer, _Long, _Long, _Float, _Pointer, _Int)
        self._gate = _function(library, "lt_gate", _Pointer, _Long, _Long, _Pointer, _Int)
        self._rope = _function(library, "lt_rope", _Pointer, _Long, _Long, _Long, _Long, _Pointer, _Pointer, _Int)
        self._attend = _function(library, "lt_attend", _Pointer, _Int)
        self._draw = _function(library, "lt_draw", _Pointer, *[_Long] * 3, *[_Pointer] * 4, _Int)

    def linear(self, x_NK: Tensor, packed: Tensor, out_NC: Tensor | None) -> Tensor:
        """Adds to `out_NC` if it is given."""
        rows, depth = x_NK.shape
        width = packed.shape[0] * 16
        out = torch.empty(rows, width) if out_NC is None else out_NC
        add, threads = int(out_NC is not None), torch.get_num_threads()
        self._linear(x_NK.data_ptr(), packed.data_ptr(), rows, width, depth, out.data_ptr(), add, threads)
        return out

    def pack(self, weight_NK: Tensor, first: int, packed: Tensor) -> None:
        """Put rows at their place in a packed matrix."""
        rows, depth = weight_NK.shape
        self._pack(weight_NK.data_ptr(), first, rows, depth, packed.data_ptr())

    def rms_norm(self, x_NW: Tensor, weight_W: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x_NW)
        rows, width = x_NW.shape
        self._rms(x_NW.data_ptr(), weight_W.data_ptr(), rows, width, eps, out.data_ptr(), torch.get_num_threads())
        return out

    def gate(self, x_NF: Tensor) -> Tensor:
        rows, width = x_NF.shape[0], x_NF.shape[1] // 2
        out = torch.empty(rows, width)
        self._gate(x_NF.data_ptr(), rows, width, out.data_ptr(), torch.get_num_threads())
        return out

    def rope(self, x_NC: Tensor, heads: int, positions_N: Tensor, table_LE: Tensor) -> None:
        rows, stride = x_NC.shape
        width, threads = 2 * table_LE.shape[1], torch.get_num_threads()
        self._rope(x_NC.data_ptr(), rows, stride, heads, width, positions_N.data_ptr(), table_LE.data_ptr(), threads)

    def attend(self, call: AttentionCall) -> None:
        if self._attend(ctypes.byref(call), torch.get_num_threads()):
            raise MemoryError("no memory for the scores of attention")

    def draw(self, logits_MV: Tensor, uniform_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ids, log-probabilities and log of the sum of exp(logits); rows of logits may stand apart."""
        rows, vocab = logits_MV.shape
        ids_M = torch.empty(rows, dtype=torch.int64)
        logprobs_M, totals_M = torch.empty(2, rows, dtype=torch.float64)
        addresses = (uniform_M.data_ptr(), ids_M.data_ptr(), logprobs_M.data_ptr(), totals_M.data_ptr())
        stride, threads = logits_MV.stride(0), torch.get_num_threads()
        if self._draw(logits_MV.data_ptr(), stride, rows, vocab, *addresses, threads):
            raise MemoryError("no memory to sample")
        return ids_M, logprobs_M, totals_M


def _function(library: ctypes.CDLL, name: str, *arguments: type) -> Callable[..., int]:
    function = library[name]
    function.argtypes = arguments
    return function


@lru_cache(maxsize=1)
def native() -> Native | None:
    """The compiled kernels, or None where they cannot be had."""
    if os.environ.get("LONGTAIL_NATIVE") == "0":
        return None
    library = compiled()
    try:
        return Native(ctypes.CDLL(str(library))) if library else None
    except OSError:
        return None
