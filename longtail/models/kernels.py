"""The operations of a Llama-shaped layer, natively or with torch: same meaning, own layout of the weights.

Both give a row the same bits whatever other rows are computed with it, when passes have `rows(count)` rows.

Shapes: N rows, C columns out, W columns in, F width of the MLP, E head width.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from longtail.models.native import Native, native


class Kernels(Protocol):
    def rows(self, count: int) -> int:
        """Rows that a pass of `count` rows must be padded to."""
        ...

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Room for a weight (rows, columns)."""
        ...

    def put(self, matrix: Tensor, first: int, weight_CW: Tensor) -> None:
        """Fill rows of a matrix, from row `first`."""
        ...

    def linear(self, x_NW: Tensor, matrix: Tensor, out_NC: Tensor | None = None) -> Tensor:
        """x times the transposed matrix; added to `out_NC` if that is given."""
        ...

    def rms_norm(self, x_NW: Tensor, weight_W: Tensor, eps: float) -> Tensor: ...

    def gate(self, x_NF: Tensor) -> Tensor:
        """silu of the left half times the right half."""
        ...

    def rope(self, x_NC: Tensor, heads: int, positions_N: Tensor, table_LE: Tensor) -> None:
        """Turn the first heads of each row, in place. `table_LE` is complex, half a head wide."""
        ...


def padded_rows(count: int) -> int:
    """Rows that a matrix product of torch on a CPU needs so that no row depends on how many there are."""
    return max(16, -(-count // 4) * 4)


class NativeKernels:
    """kernels.c. All widths are multiples of 16."""

    def __init__(self, code: Native) -> None:
        self._code = code

    def rows(self, count: int) -> int:
        return count

    def matrix(self, rows: int, columns: int) -> Tensor:
        return torch.zeros(-(-rows // 16), columns, 16)

    def put(self, matrix: Tensor, first: int, weight_CW: Tensor) -> None:
        short = -weight_CW.shape[0] % 16
        weight_CW = functional.pad(weight_CW, (0, 0, 0, short)) if short else weight_CW
        self._code.pack(weight_CW.float().contiguous(), first, matrix)

    def linear(self, x_NW: Tensor, matrix: Tensor, out_NC: Tensor | None = None) -> Tensor:
        return self._code.linear(x_NW, matrix, out_NC)

    def rms_norm(self, x_NW: Tensor, weight_W: Tensor, eps: float) -> Tensor:
        return self._code.rms_norm(x_NW, weight_W, eps)

    def gate(self, x_NF: Tensor) -> Tensor:
        return self._code.gate(x_NF)

    def rope(self, x_NC: Tensor, heads: int, positions_N: Tensor, table_LE: Tensor) -> None:
        self._code.rope(x_NC, heads, positions_N, table_LE)


class TorchKernels:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def rows(self, count: int) -> int:
        return padded_rows(count)

    def matrix(self, rows: int, columns: int) -> Tensor:
        return torch.zeros(rows, columns, device=self._device)

    def put(self, matrix: Tensor, first: int, weight_CW: Tensor) -> None:
        matrix[first : first + weight_CW.shape[0]] = weight_CW

    def linear(self, x_NW: Tensor, matrix: Tensor, out_NC: Tensor | None = None) -> Tensor:
        return functional.linear(x_NW, matrix) if out_NC is None else out_NC.addmm_(x_NW, matrix.t())

    def rms_norm(self, x_NW: Tensor, weight_W: Tensor, eps: float) -> Tensor:
        return functional.rms_norm(x_NW, weight_W.shape, weight_W, eps)

    def gate(self, x_NF: Tensor) -> Tensor:
        gate_NF, up_NF = x_NF.chunk(2, dim=-1)
        return functional.silu(gate_NF).mul_(up_NF)

    def rope(self, x_NC: Tensor, heads: int, positions_N: Tensor, table_LE: Tensor) -> None:
        half = table_LE.shape[1]
        pairs = x_NC[:, : heads * 2 * half].view(len(x_NC), heads, half, 2)
        torch.view_as_complex(pairs).mul_(table_LE[positions_N][:, None])


def kernels_for(device: torch.device, widths: tuple[int, ...]) -> Kernels:
    """The fastest that can do it."""
    code = native() if device.type == "cpu" and all(width % 16 == 0 for width in widths) else None
    return NativeKernels(code) if code else TorchKernels(device)
