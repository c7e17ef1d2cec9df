"""Where published versions lie: in shared memory where there is room, and gone with their driver."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMORY = Path("/dev/shm")


@contextmanager
def weight_directory(run: Path, room: int, memory: Path = MEMORY) -> Generator[Path]:
    """An empty directory for `room` bytes: in shared memory where there is so much, else in the run directory.

    It is locked as long as its driver lives. What killed drivers left, of this run or of others, goes now.
    """
    name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
    shared, own = memory / f"longtail-weights-{name}", run / "weights"
    for left in (*memory.glob("longtail-weights-*"), own):
        with suppress(OSError), _locked(left):  # refused: its driver lives, or it is another user's
            shutil.rmtree(left)
    usable = memory.is_dir() and os.access(memory, os.W_OK) and not shared.exists()
    place = shared if usable and shutil.disk_usage(memory).free > room else own
    fresh = place.with_name(f".{place.name}")  # locked before it has the name that others look for
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        with _locked(fresh):
            yield fresh.rename(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Generator[None]:
    """Raises OSError where another process holds it."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
