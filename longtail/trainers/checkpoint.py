"""Files that are whole or absent: write aside, fsync, rename. Knows nothing of models."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from longtail.errors import DiskFull, disk_is_full

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # fcntl.h, linux/fs.h


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """One safetensors file, atomically. Raises DiskFull."""
    data = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, {"format": "pt"})
    aside = path.with_name(f".{path.name}.tmp")
    with _disk(path, aside):
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync_directory(path.parent)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, in memory of their own."""
    return load(path.read_bytes())


def write_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """A directory with what `fill` puts into it, atomically; an older one of that name is replaced. Raises DiskFull."""
    aside = path.with_name(f".{path.name}.tmp")
    with _disk(path, aside):
        _remove(aside)
        aside.mkdir(parents=True)
        fill(aside)
        for file in sorted(aside.rglob("*")):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        _sync_directory(aside)
        if path.exists():
            _exchange(aside, path)
        else:
            aside.rename(path)
        _sync_directory(path.parent)
        _remove(aside)


@contextmanager
def _disk(path: Path, aside: Path) -> Generator[None]:
    """What was written so far goes away when the disk is full: its space is needed."""
    try:
        yield
    except (OSError, DiskFull) as error:  # DiskFull: of a file inside the directory
        if isinstance(error, OSError) and not disk_is_full(error):
            raise
        _remove(aside)
        raise DiskFull(f"no space left to write {path}") from error


def _exchange(aside: Path, path: Path) -> None:
    """Swap two directories in one operation where the system can; else there is a moment without `path`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with suppress(AttributeError):
        if libc.renameat2(_AT_FDCWD, bytes(aside), _AT_FDCWD, bytes(path), _RENAME_EXCHANGE) == 0:
            return
    _remove(path)
    aside.rename(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
