"""Native and torch kernels against float64, and the law that a row does not depend on the others."""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu

from longtail.models import compiler
from longtail.models.kernels import Kernels, NativeKernels, TorchKernels, kernels_for
from longtail.models.native import native

CPU = torch.device("cpu")


def all_kernels() -> list[Kernels]:
    code = native()
    return [TorchKernels(CPU), *([NativeKernels(code)] if code else [])]


@pytest.fixture(params=all_kernels(), ids=lambda kernels: type(kernels).__name__)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return request.param


def test_a_compiler_that_is_there_is_used():
    """Else a kernel that no longer compiles would pass all that follows, as nobody."""
    assert (native() is not None) == (shutil.which("cc") is not None)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrix_of(kernels: Kernels, weight: torch.Tensor) -> torch.Tensor:
    matrix = kernels.matrix(*weight.shape)
    half = len(weight) // 32 * 16
    kernels.put(matrix, 0, weight[:half])
    kernels.put(matrix, half, weight[half:])
    return matrix


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 100])
@pytest.mark.parametrize("shape", [(48, 16), (100, 64), (256, 192)])
def test_linear(kernels, rows, shape):
    weight, x = normal(*shape), normal(rows, shape[1], seed=1)
    matrix = matrix_of(kernels, weight)
    expected = x.double() @ weight.double().t()
    out = kernels.linear(x, matrix)
    assert torch.allclose(out[:, : shape[0]].double(), expected, atol=1e-4)
    added = kernels.linear(x, matrix, torch.ones_like(out))
    assert torch.allclose(added[:, : shape[0]].double(), expected + 1, atol=1e-4)


def test_rms_norm(kernels):
    x, weight = normal(7, 48), normal(48, seed=1)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert torch.allclose(kernels.rms_norm(x, weight, 1e-5).double(), expected, atol=1e-6)


def test_gate(kernels):
    x = torch.cat((normal(5, 32) * 30, normal(5, 32, seed=1)), dim=1)
    x[0, :4] = torch.tensor([-1000.0, 1000.0, 0.0, -88.5])
    expected = silu(x[:, :32].double()) * x[:, 32:].double()
    assert torch.allclose(kernels.gate(x.clone()).double(), expected, rtol=1e-5, atol=1e-6)


def test_rope(kernels):
    table = torch.polar(torch.ones(50, 8), normal(50, 8))
    x, positions = normal(4, 5 * 16), torch.tensor([0, 49, 7, 7])
    expected = x.clone()
    pairs = torch.view_as_complex(x.view(4, 5, 8, 2))[:, :3] * table[positions][:, None]
    expected.view(4, 5, 16)[:, :3] = torch.view_as_real(pairs).flatten(2)
    kernels.rope(x, 3, positions, table)
    assert torch.allclose(x, expected, atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 70), st.integers(0, 69), st.integers(1, 3))
def test_a_row_does_not_depend_on_how_many_there_are(count, first, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    weight, x = normal(96, 48), normal(140, 48, seed=1)
    for kernels in all_kernels():
        matrix = matrix_of(kernels, weight)
        some = x[first : first + kernels.rows(count)]
        scale = normal(48, seed=2)
        for whole, part in (
            (kernels.linear(x, matrix), kernels.linear(some, matrix)),
            (kernels.rms_norm(x, scale, 1e-5), kernels.rms_norm(some, scale, 1e-5)),
            (kernels.gate(x), kernels.gate(some)),
        ):
            assert torch.equal(part, whole[first : first + len(some)])
    torch.set_num_threads(before)


def test_without_a_compiler_torch_does_the_work(monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda _: None)
    native.cache_clear()
    assert isinstance(kernels_for(CPU, (48, 64)), TorchKernels)
    native.cache_clear()


def test_a_source_that_does_not_compile_is_no_library(monkeypatch, tmp_path):
    (tmp_path / "broken.c").write_text("int f( {")
    monkeypatch.setattr(compiler, "_SOURCE", tmp_path / "broken.c")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.cache_clear()
    assert native() is None
    native.cache_clear()


def test_odd_widths_are_left_to_torch():
    assert isinstance(kernels_for(CPU, (48, 40)), TorchKernels)
