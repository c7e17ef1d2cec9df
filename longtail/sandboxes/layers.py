"""The driver's directory on disk: lower layers of workspaces, written once, and what a dead driver left.

workdir/driver-XXXX/   held by a lock for as long as its driver lives
    lock               the lock; its content names cgroups to remove with the directory
    code/              what the launcher runs
    lower/<digest>/    the files of a spec, read-only for its sandboxes
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from longtail.errors import UserError
from longtail.sandboxes import cgroups

_KEPT = 256  # unused layers that stay for the next sandbox of the spec


class DriverDirectory:
    """A locked directory of this driver's own. Making one removes what dead drivers left in the same place."""

    def __init__(self, workdir: Path) -> None:
        workdir.mkdir(parents=True, exist_ok=True)
        sweep(workdir)
        self.path = Path(tempfile.mkdtemp(prefix="driver-", dir=workdir.resolve()))
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def note(self, directories: Sequence[Path]) -> None:
        """Write down cgroups for the janitor of a later driver."""
        os.write(self._lock, "".join(f"{path}\n" for path in directories).encode())

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(workdir: Path) -> list[Path]:
    """Remove the directories and cgroups of drivers that no longer live; returns the directories."""
    removed: list[Path] = []
    for path in workdir.glob("driver-*"):
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # being made or being removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(lock, "rb", closefd=False) as file:
                cgroups.remove([Path(line) for line in file.read().decode().splitlines()])
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
    return removed


def digest(files: Mapping[str, bytes]) -> str:
    """The address of a layer. Raises UserError for paths that cannot be files of a workspace."""
    sha = hashlib.sha256()
    for name in sorted(files):
        parts = name.split("/")
        if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise UserError(f"sandbox file {name!r}: must be a relative path without '.' and '..' parts")
        path = os.fsencode(name)
        sha.update(b"%d %d " % (len(path), len(files[name])))
        sha.update(path)
        sha.update(files[name])
    return sha.hexdigest()[:32]


class Layers:
    """Content-addressed directories, counted by the live sandboxes on them. `owner`: uid and gid of their files."""

    def __init__(self, root: Path, owner: int | None) -> None:
        self.root = root
        self._owner = owner
        self._users: dict[str, int] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._dropped = 0
        root.mkdir()
        root.chmod(0o755)

    def ready(self, name: str) -> bool:
        return name in self._users or name in self._idle

    def write(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write the layer to disk. Blocking; two writers of one layer do no harm."""
        making = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            fill(making, files)
            self._give(making)
            making.rename(self.root / name)
        except BaseException as error:
            shutil.rmtree(making, ignore_errors=True)
            if not (isinstance(error, OSError) and (self.root / name).is_dir()):
                raise

    def _give(self, root: Path) -> None:
        root.chmod(0o755)
        if self._owner is None:
            return
        for path in (root, *root.rglob("*")):
            os.chown(path, self._owner, self._owner, follow_symlinks=False)

    def hold(self, name: str) -> None:
        self._idle.pop(name, None)
        self._users[name] = self._users.get(name, 0) + 1

    def release(self, name: str) -> list[Path]:
        """Returns the directories to delete, which are layers no more: their names are free to be written again."""
        self._users[name] -= 1
        if self._users[name]:
            return []
        del self._users[name]
        self._idle[name] = None
        if len(self._idle) <= _KEPT:
            return []
        name = self._idle.popitem(last=False)[0]
        self._dropped += 1
        aside = self.root / f".old-{self._dropped}"
        with suppress(OSError):  # else it stays, whole, for who writes it again
            (self.root / name).rename(aside)
        return [aside]


def fill(root: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a spec below an empty directory. Raises UserError when one path is below another."""
    made = {root}
    for name, data in files.items():
        path = root / name
        try:
            if path.parent not in made:
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                made.add(path.parent)
            with path.open("xb", buffering=0) as file:
                file.write(data)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise UserError(f"sandbox file {name!r}: its path collides with another file of the spec") from None


def delete(paths: Sequence[Path]) -> None:
    """Remove directories and cgroups; never raises."""
    cgroups.remove([path for path in paths if (path / "cgroup.procs").exists()])
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
