"""Memory and process limits by cgroup, below the driver's own cgroup: v1, or v2 where its controllers are delegated.

Where none can be made, `reason` says why, and the driver reports weaker limits.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longtail.types import SandboxLimits

_OVERHEAD_BYTES = 32 << 20  # the nurse's and the agent's own pages, which are not the policy's
_OVERHEAD_PROCESSES = 4  # the nurse, bubblewrap, pid 1 and the agent
_OWN = ("memory", "pids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """One sandbox's directories: one for v2, one for each controller of v1."""

    directories: tuple[Path, ...]

    def open(self) -> list[int]:
        """Descriptors on which a process joins by writing "0"."""
        return [os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for path in self.directories]

    def oom_kills(self) -> int:
        """Processes that the kernel killed here for memory, since the directory exists."""
        for name in ("memory.oom_control", "memory.events"):
            with contextlib.suppress(OSError):
                words = (self.directories[0] / name).read_text("ascii").split()
                return int(words[words.index("oom_kill") + 1])
        return 0


class Cgroups:
    """Makes cgroups. `reason` is "" when they work."""

    def __init__(self, name: str, proc: Path = Path("/proc/self")) -> None:
        self._count = 0
        self.parents: tuple[Path, ...] = ()
        self.version, self.reason = 0, ""
        try:
            self.version, own = find_own(proc)
            if self.version == 2:
                (own[0] / "cgroup.subtree_control").write_text("+memory +pids", "ascii")
            made = tuple(path / name for path in own)
            for path in made:
                path.mkdir()
                self.parents += (path,)
            if self.version == 2:
                (made[0] / "cgroup.subtree_control").write_text("+memory +pids", "ascii")
            remove(self.make(SandboxLimits()).directories)
        except OSError as error:
            self.close()
            self.reason = f"no writable cgroup ({error.strerror or error})"

    def make(self, limits: SandboxLimits) -> Cgroup:
        self._count += 1
        directories = tuple(path / f"box-{self._count}" for path in self.parents)
        for path in directories:
            path.mkdir()
        memory = str((limits.memory_mb << 20) + _OVERHEAD_BYTES)
        if self.version == 1:
            (directories[0] / "memory.limit_in_bytes").write_text(memory, "ascii")
            with contextlib.suppress(OSError):  # absent without swap accounting
                (directories[0] / "memory.memsw.limit_in_bytes").write_text(memory, "ascii")
        else:
            (directories[0] / "memory.max").write_text(memory, "ascii")
            with contextlib.suppress(OSError):
                (directories[0] / "memory.swap.max").write_text("0", "ascii")
        (directories[-1] / "pids.max").write_text(str(limits.processes + _OVERHEAD_PROCESSES), "ascii")
        return Cgroup(directories=directories)

    def close(self) -> None:
        remove(self.parents)
        self.parents = ()


def remove(parents: Sequence[Path]) -> None:
    """Remove cgroups and those directly below. Waits a moment for what is dying in them; never raises."""
    for parent in parents:
        below = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
        for path in (*below, parent):
            for _ in range(20):
                try:
                    path.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)


def find_own(proc: Path) -> tuple[int, tuple[Path, ...]]:
    """(version, this process's directories): for v1 those of memory and pids. Raises OSError when there are none."""
    groups: dict[str, str] = {}
    for line in (proc / "cgroup").read_text("utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    found: dict[str, Path] = {}
    for line in (proc / "mountinfo").read_text("utf-8").splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        names = [""] if kind == "cgroup2" else [n for n in options.split(",") if n in _OWN] if kind == "cgroup" else []
        for name in names:
            if name in groups:
                found[name] = Path(point) / os.path.relpath(groups[name], root)
    if all(name in found for name in _OWN):
        return 1, tuple(found[name] for name in _OWN)
    if "" in found and not any(name in found for name in _OWN):
        return 2, (found[""],)
    raise OSError("no memory and pids controllers are mounted")
