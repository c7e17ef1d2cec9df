"""kernels.c as a shared library: made by the system's C compiler at first use, kept in the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("kernels.c")
_COMMON = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-pthread")
_FLAGS = ((*_COMMON, "-march=native"), (*_COMMON, "-mcpu=native"), _COMMON)  # the first that compiles


def find_compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


def compiled() -> Path | None:
    """The library for this processor, or None where it cannot be made."""
    compiler = find_compiler()
    try:
        return _build(compiler) if compiler else None
    except (OSError, subprocess.SubprocessError):
        return None


def _build(compiler: str) -> Path | None:
    """The shared library for this source and this processor; None when it does not compile."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=20).stdout
    kind = "\n".join([_processor(), compiler, repr(_FLAGS)]).encode()
    digest = hashlib.blake2b(_SOURCE.read_bytes() + kind + version, digest_size=12).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longtail" / "kernels"
    target = cache / f"{digest}.so"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        scratch = Path(folder) / "kernels.so"
        for flags in _FLAGS:
            command = [compiler, *flags, str(_SOURCE), "-o", str(scratch), "-lm"]
            if subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 0:
                scratch.replace(target)
                return target
    return None


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.platform()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
