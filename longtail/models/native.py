"""kernels.c, compiled by the system's C compiler at first use and kept in the user's cache directory.

Without a compiler, or with LONGTAIL_NATIVE=0, there is no native part and torch does the work, more slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

PAGE = 16  # tokens of a page of keys and values; kernels.c says how it is laid out

_SOURCE = Path(__file__).with_name("kernels.c")
_COMMON = ("-O3", "-std=gnu11", "-shared", "-fPIC")
_FLAGS = (  # the first that compiles
    (*_COMMON, "-march=native", "-fopenmp"),
    (*_COMMON, "-mcpu=native", "-fopenmp"),
    (*_COMMON, "-march=native"),
    (*_COMMON, "-mcpu=native"),
    _COMMON,
)
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
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    try:
        library = _build(compiler)
        return Native(ctypes.CDLL(str(library))) if library else None
    except (OSError, subprocess.SubprocessError):
        return None


def _build(compiler: str) -> Path | None:
    """The shared library for this source and this processor; None when it does not compile."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=20).stdout
    kind = "\n".join([_processor(), compiler, repr(_FLAGS)]).encode()
    digest = hashlib.blake2b(_SOURCE.read_bytes() + kind + version, digest_size=12).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longtail" / "kernels"
    target = cache / f"{digest}.so"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        scratch = Path(folder) / "kernels.so"
        for flags in _FLAGS:
            command = [compiler, *flags, str(_SOURCE), "-o", str(scratch), "-lm"]
            if subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 0:
                scratch.replace(target)
                return target
    return None


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.platform()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
