"""Level "none": plain subprocesses in a temporary directory. For tests only, with code that is trusted.

Deadlines, output limits and paths hold; nothing else does: no isolation, no limit on memory, processes or files, and a
daemon that leaves the process group lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from longtail.errors import SandboxLost
from longtail.sandboxes import layers
from longtail.sandboxes.bwrap import check_command, host_error
from longtail.sandboxes.inside import files
from longtail.types import ExecResult, SandboxLimits, SandboxSpec

_DRAIN_S = 0.2  # for output of processes that outlive the command
_BLOCK = 1 << 16


class LocalSandboxes:
    level = "none"

    def __init__(self, workdir: Path) -> None:
        workdir.mkdir(parents=True, exist_ok=True)
        self._root = Path(tempfile.mkdtemp(prefix="local-", dir=workdir.resolve()))

    @staticmethod
    def enforcement() -> dict[str, str]:
        return {"everything": "not enforced: plain processes of this user, for tests"}

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        layers.digest(spec.files)  # refuses bad paths
        try:
            path = Path(tempfile.mkdtemp(dir=self._root))
            await asyncio.to_thread(layers.fill, path, spec.files)
        except OSError as error:
            raise host_error(error) from error
        return LocalSandbox(str(path), spec.limits)

    async def close(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)


class LocalSandbox:
    def __init__(self, root: str, limits: SandboxLimits) -> None:
        self._root = root
        self._limits = limits
        self._closed = False
        self._turn = asyncio.Lock()

    async def exec(
        self,
        argv: Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        check_command(argv, stdin, env or {})
        async with self._turn:
            self._require_open()
            started = time.monotonic()
            try:
                process = await self._start(argv, env or {})
            except OSError as error:
                code = 127 if isinstance(error, FileNotFoundError) else 126
                return ExecResult(exit_code=code, stdout=b"", stderr=f"{argv[0]}: {error.strerror}\n".encode())
            out, err = _Kept(self._limits.output_kb << 10), _Kept(self._limits.output_kb << 10)
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            tasks = [
                asyncio.create_task(work)
                for work in (_feed(process.stdin, stdin), out.collect(process.stdout), err.collect(process.stderr))
            ]
            timed_out = await _wait(process, self._limits.seconds if seconds is None else seconds)
            await asyncio.wait(tasks, timeout=_DRAIN_S)
            for task in tasks:
                task.cancel()
            return ExecResult(
                exit_code=None if timed_out else process.returncode,
                stdout=bytes(out.data),
                stderr=bytes(err.data),
                timed_out=timed_out,
                dropped_bytes=out.dropped + err.dropped,
                seconds=time.monotonic() - started,
            )

    async def _start(self, argv: Sequence[str], env: Mapping[str, str]) -> asyncio.subprocess.Process:
        binaries = str(Path(sys.executable).parent)
        base = {"PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
        base |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        base |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        found = shutil.which(argv[0], path={**base, **env}["PATH"]) or argv[0]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            found,
            *argv[1:],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self._root,
            env={**base, **env},
            start_new_session=True,
        )

    async def read(self, path: str, *, limit: int = 1 << 20) -> bytes:
        self._require_open()
        return await asyncio.to_thread(files.read, self._root, path, limit)

    async def write(self, path: str, data: bytes) -> None:
        self._require_open()
        await asyncio.to_thread(files.write, self._root, path, data)

    async def list(self, path: str = ".") -> list[str]:
        self._require_open()
        return await asyncio.to_thread(files.listing, self._root, path)

    async def snapshot(self) -> SandboxSpec:
        self._require_open()
        found = await asyncio.to_thread(files.snapshot, self._root, self._limits.workspace_mb << 20)
        return SandboxSpec(files=dict(found), limits=self._limits)

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxLost("the sandbox is gone: it was closed")

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(_remove, self._root)


def _remove(root: str) -> None:
    for directory, below, _ in os.walk(root):
        for path in (Path(directory, name) for name in below):
            if not path.is_symlink():  # what a link leads to is not the sandbox's
                path.chmod(0o700)  # else its owner could not empty it
    shutil.rmtree(root, ignore_errors=True)


class _Kept:
    """The head of a stream; the rest is counted."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.dropped = 0
        self._limit = limit

    async def collect(self, stream: asyncio.StreamReader) -> None:
        while block := await stream.read(_BLOCK):
            room = self._limit - len(self.data)
            self.data += block[:room]
            self.dropped += max(len(block) - room, 0)


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
        stream.close()


async def _wait(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Wait for the end or the deadline, then kill what is left of the group. True when the deadline came first."""
    timed_out = False
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if timed_out:
        await process.wait()
    return timed_out
