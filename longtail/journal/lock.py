"""One driver per run directory: an advisory lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from longtail.errors import DiskFull, UserError, disk_is_full, no_space

FILE_NAME = "lock"
_PATIENCE_S = 0.2  # a reader that asks whether the run is live holds the lock for a moment


class RunLock:
    """Held from construction to close(). Raises UserError when another process drives this run."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _PATIENCE_S
        while not _try(self._fd, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                owner = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
                os.close(self._fd)
                raise UserError(
                    f"{directory} is in use by a live run (process {owner or 'unknown'}): "
                    "wait for it, stop it, or choose another run_dir"
                )
            time.sleep(0.01)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_directory(directory: Path) -> RunLock:
    """Make the directory and lock it. Raises UserError, DiskFull."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return RunLock(directory)
    except OSError as error:
        raise unusable(directory, error) from error


def unusable(directory: Path, error: OSError) -> DiskFull | UserError:
    """What it means that a run directory cannot be made."""
    if disk_is_full(error):
        return no_space(directory)
    return UserError(f"the run directory {directory} cannot be used: {error}")


def is_live(directory: Path) -> bool:
    """Whether a driver holds the run directory now."""
    try:
        fd = os.open(directory / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _try(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
