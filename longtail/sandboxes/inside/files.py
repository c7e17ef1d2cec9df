"""The files of a workspace, under a root directory. Used by the agent inside a sandbox and by level "none".

Paths are resolved before use, which is safe as long as nothing else runs in the workspace meanwhile: in a sandbox that
holds between two execs.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

_BLOCK = 1 << 20


def resolve(root: str, path: str) -> str:
    """The real path. PermissionError when it leaves the root."""
    if "\0" in path:
        raise FileNotFoundError(errno.ENOENT, "a path cannot hold a NUL character")
    real = os.path.realpath(os.path.join(root, path))
    if real != root and not real.startswith(root + "/"):
        raise PermissionError(errno.EACCES, "the path leaves the workspace")
    return real


def _require_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise PermissionError(errno.EACCES, "not a regular file")


def read(root: str, path: str, limit: int) -> bytes:
    """At most `limit` bytes from the start of a regular file."""
    real = resolve(root, path)
    _require_regular(os.stat(real).st_mode)
    with open(real, "rb", buffering=0) as file:
        return _read_up_to(file.fileno(), limit)


def _read_up_to(fd: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    while limit > 0 and (piece := os.read(fd, min(limit, _BLOCK))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def write(root: str, path: str, data: bytes) -> None:
    """Create or overwrite a regular file; missing directories are made."""
    real = resolve(root, path)
    try:
        _require_regular(os.stat(real).st_mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(real), exist_ok=True)
    with open(real, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]


def listing(root: str, path: str) -> list[str]:
    """Paths, relative to the root, of all regular files below `path`, sorted."""
    real = resolve(root, path)
    if not stat.S_ISDIR(os.stat(real).st_mode):
        _require_regular(os.stat(real).st_mode)
        return [os.path.relpath(real, root)]
    return sorted(os.path.relpath(found, root) for found in _walk(real))


def snapshot(root: str, limit: int) -> list[tuple[str, bytes]]:
    """(path, content) of every regular file. OSError(EFBIG) when they hold more than `limit` bytes together."""
    files: list[tuple[str, bytes]] = []
    for name in listing(root, "."):
        path = os.path.join(root, name)
        _let_owner(path, 0o400)
        with open(path, "rb", buffering=0) as file:
            data = _read_up_to(file.fileno(), limit + 1)
        limit -= len(data)
        if limit < 0:
            raise OSError(errno.EFBIG, "the workspace is too large for a snapshot")
        files.append((name, data))
    return files


def _walk(directory: str) -> Iterator[str]:
    """Regular files below a directory; links are not followed."""
    waiting = [directory]
    while waiting:
        path = waiting.pop()
        _let_owner(path, 0o500)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield entry.path


def _let_owner(path: str, bits: int) -> None:
    """A file of mode 000 is part of the workspace too: its owner is given the permission bits."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & bits != bits:
        os.chmod(path, mode | bits)
