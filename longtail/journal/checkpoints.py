"""The checkpoint directories of a run: names, which are complete, which go.

The trainer writes a directory atomically, so one that has its final name is complete. One that goes is renamed first,
so that a half-deleted directory is never taken for a checkpoint.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

_NAME = re.compile(r"step-\d{6,}")


def name_of(step: int) -> str:
    """Relative to the run directory."""
    return f"checkpoints/step-{step:06d}"


def is_complete(directory: Path, name: str) -> bool:
    return bool(name) and (directory / name).is_dir()


def prune(directory: Path, keep: Collection[str]) -> None:
    """Remove every checkpoint, whole or part, that is not in `keep` (names relative to the run directory)."""
    root = directory / "checkpoints"
    kept = {Path(name).name for name in keep}
    for path in sorted(root.iterdir()):
        if path.name in kept or not _NAME.search(path.name):
            continue
        doomed = path
        if _NAME.fullmatch(path.name):
            doomed = path.with_name(f".gone-{path.name}")
            path.rename(doomed)
        if doomed.is_dir() and not doomed.is_symlink():
            shutil.rmtree(doomed)
        else:
            doomed.unlink()


def sync_directory(path: Path) -> None:
    """Make renames in `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
