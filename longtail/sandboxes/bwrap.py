"""Level "bwrap": each sandbox is a set of Linux namespaces made by bubblewrap, with a limited view and no network.

    BwrapSandboxes ── Launcher ──> bubblewrap, then an agent in the new namespaces (inside/)
         │  create()                    │
         └─ BwrapSandbox <──frames──> agent

It shares the host's kernel: for code that is hostile to the kernel a stronger level is needed. Calls on one sandbox run
one after another. What an agent answers is untrusted; anything malformed, late or too large ends the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.errors import DiskFull, InfrastructureError, SandboxLost, UserError, disk_is_full
from longtail.sandboxes import launcher, layers, seccomp
from longtail.sandboxes.cgroups import Cgroup, Cgroups
from longtail.sandboxes.inside import wire
from longtail.sandboxes.launcher import Launcher
from longtail.sandboxes.places import Holder, Places
from longtail.types import ExecResult, SandboxLimits, SandboxSpec

_START_S = 20.0
_FILE_S = 20.0  # deadline of a file operation
_GRACE_S = 5.0  # past its own deadline, an exec is ended from outside
_END_S = 10.0
_MOST_STDIN = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """A nurse and the cgroup it lives in, for one sandbox after another."""

    limits: SandboxLimits
    cgroup: Cgroup | None
    nurse: launcher.Nurse


class BwrapSandboxes:
    """Makes sandboxes. `max_live` may be open at the same time, and a few more that are second ones of the task that
    asks; create() waits for a free place."""

    level = "bwrap"

    def __init__(self, workdir: Path, max_live: int) -> None:
        try:
            launcher.find_bwrap()
        except FileNotFoundError as error:
            raise UserError(f"sandbox level 'bwrap' cannot be used: {error}") from None
        self._directory = layers.DriverDirectory(workdir)
        path = self._directory.path
        self._layers = layers.Layers(path / "lower", None if os.getuid() else launcher.SANDBOX_UID)
        self._cgroups = Cgroups(path.name)
        self._directory.note(self._cgroups.parents)
        launcher.write_code(path / "code", seccomp.compile_filter(unowned_memory=not self._cgroups.reason))
        self.launcher = Launcher(path / "code", path / "lower", path / "launcher.log")
        self._max_live = max_live
        self._places = Places(max_live)
        self._seats: list[_Seat] = []  # free, the last used at the end
        self._live: set[BwrapSandbox] = set()
        self._deleting: set[asyncio.Task[None]] = set()

    def enforcement(self) -> dict[str, str]:
        """How each limit is held here; what is weaker than it should be says so."""
        reason = self._cgroups.reason
        weaker = f"per process and by sampling, not by the kernel for all together: {reason}"
        return {
            "memory": weaker if reason else f"cgroup v{self._cgroups.version}",
            "processes": "rlimit" if reason else f"rlimit and cgroup v{self._cgroups.version}",
            "workspace": "tmpfs size",
            "network": "no interface but its own loopback",
            "system calls": "seccomp" if seccomp.compile_filter() else "no filter for this machine type: not enforced",
        }

    async def create(self, spec: SandboxSpec) -> BwrapSandbox:
        """A fresh sandbox. Waits for a place as long as its caller does. Raises SandboxLost, DiskFull when the host
        cannot start it."""
        try:
            return await self._create(spec)
        except OSError as error:
            raise host_error(error) from error

    async def _create(self, spec: SandboxSpec) -> BwrapSandbox:
        holder = await self._places.take()
        try:
            lower = await self._hold_layer(spec.files)
        except BaseException:
            self._places.give(holder)
            raise
        sandbox = BwrapSandbox(self, spec, lower, holder)
        self._live.add(sandbox)
        try:
            await sandbox.start(await self._take_seat(spec.limits))
        except BaseException as error:
            if isinstance(error, SandboxLost):
                self._drop_seats(0)  # their launcher may be gone
            await sandbox.close()
            raise
        return sandbox

    async def _take_seat(self, limits: SandboxLimits) -> _Seat:
        for seat in reversed(self._seats):
            if seat.limits == limits:
                self._seats.remove(seat)
                return seat
        cgroup = None if self._cgroups.reason else await asyncio.to_thread(self._cgroups.make, limits)
        fds = [] if cgroup is None else cgroup.open()
        try:
            return _Seat(limits=limits, cgroup=cgroup, nurse=await self.launcher.nurse(fds))
        finally:
            for fd in fds:
                os.close(fd)

    async def _hold_layer(self, files: Mapping[str, bytes]) -> str:
        big = sum(map(len, files.values())) > 1 << 20
        lower = await asyncio.to_thread(layers.digest, files) if big else layers.digest(files)
        if not self._layers.ready(lower):
            await asyncio.to_thread(self._layers.write, lower, files)
        self._layers.hold(lower)
        return lower

    def give_back(self, sandbox: BwrapSandbox) -> None:
        """Take what a dead sandbox held. Called once by each."""
        self._live.discard(sandbox)
        self._places.give(sandbox.holder)
        self._delete(self._layers.release(sandbox.lower))
        if sandbox.seat is not None and sandbox.seat_usable:
            self._seats.append(sandbox.seat)
        elif sandbox.seat is not None:
            self._close_seat(sandbox.seat)
        self._drop_seats(self._max_live)

    def _drop_seats(self, keep: int) -> None:
        """Let go of the seats that were not used for longest."""
        while len(self._seats) > keep:
            self._close_seat(self._seats.pop(0))

    def _close_seat(self, seat: _Seat) -> None:
        seat.nurse.close()
        if seat.cgroup is not None:
            self._delete(seat.cgroup.directories)

    def _delete(self, paths: Sequence[Path]) -> None:
        if paths:
            task = asyncio.create_task(asyncio.to_thread(layers.delete, paths))
            self._deleting.add(task)
            task.add_done_callback(self._deleting.discard)

    async def close(self) -> None:
        """End every sandbox and remove everything from disk."""
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._live)))
        self._drop_seats(0)
        await self.launcher.close()
        await asyncio.gather(*self._deleting)
        await asyncio.to_thread(self._cgroups.close)
        await asyncio.to_thread(self._directory.close)


class BwrapSandbox:
    """One sandbox. After SandboxLost only close() is of use."""

    def __init__(self, owner: BwrapSandboxes, spec: SandboxSpec, lower: str, holder: Holder) -> None:
        self._owner = owner
        self.holder = holder
        self._limits = spec.limits
        self._lower_bytes = sum(map(len, spec.files.values()))
        self.lower = lower
        self.seat: _Seat | None = None
        self.seat_usable = False  # for the next sandbox
        self._socket: socket.socket | None = None
        self._pidfd = -1
        self._oom_kills = 0
        self._turn = asyncio.Lock()
        self._lost = ""
        self._ending: asyncio.Task[None] | None = None

    async def start(self, seat: _Seat) -> None:
        self.seat = seat
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._socket = ours
        try:
            self._pidfd = await seat.nurse.launch(self._request(seat.cgroup), theirs.fileno())
        except (OSError, TimeoutError) as error:
            raise SandboxLost(f"the sandbox launcher ended ({error}): {self._owner.launcher.said()}") from None
        finally:
            theirs.close()
        self.seat_usable = True
        self._count_oom_kills()
        try:
            async with asyncio.timeout(_START_S):
                ready = wire.unpack(await self._receive(64))
        except (OSError, ValueError, TimeoutError):
            ready = []
        if ready != [b"ready"]:
            raise SandboxLost("the agent of a new sandbox did not start")

    def _request(self, cgroup: Cgroup | None) -> dict[str, Any]:
        limits = self._limits
        memory = 0 if cgroup is not None else limits.memory_mb << 20
        rlimits = {"RLIMIT_CORE": 0, "RLIMIT_NPROC": limits.processes + 2, "RLIMIT_NOFILE": 1024}
        if memory:
            rlimits["RLIMIT_DATA"] = memory
        return {
            "lower": self.lower,
            "workspace": limits.workspace_mb << 20,
            "agent": {"memory": memory, "output": limits.output_kb << 10, "snapshot": self._most_bytes()},
            "rlimits": rlimits,
        }

    def _most_bytes(self) -> int:
        return self._lower_bytes + (self._limits.workspace_mb << 20)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a command to its end or its deadline; nothing of it is alive afterwards.

        `python` runs in a fork of a ready interpreter unless env has LONGTAIL_COLD_PYTHON=1. A command that cannot be
        started exits with 127 or 126, one that a signal ended with minus its number.
        """
        limit = self._limits.seconds if seconds is None else seconds
        changes = [f"{name}={value}" for name, value in (env or {}).items()]
        check_command(argv, stdin, env or {})
        fields = [b"exec", b"%f" % limit, stdin, b"%d" % len(argv), *map(os.fsencode, (*argv, *changes))]
        reply = await self._call(fields, most=2 * (self._limits.output_kb << 10) + 4096, seconds=limit + _GRACE_S)
        try:
            code, reason, dropped, took, stdout, stderr = reply
            oom = reason == b"memory" or (code != b"0" and self._count_oom_kills() > 0)
            killed = oom and code in (b"", b"%d" % -signal.SIGKILL)
            return ExecResult(
                exit_code=None if killed or not code else int(code),
                stdout=stdout,
                stderr=stderr,
                timed_out=reason == b"time",
                oom_killed=oom,
                dropped_bytes=int(dropped),
                seconds=float(took),
            )
        except ValueError:
            raise await self._lose("its agent sent a malformed answer") from None

    def _count_oom_kills(self) -> int:
        """Those since the last call."""
        if self.seat is None or self.seat.cgroup is None:
            return 0
        before, self._oom_kills = self._oom_kills, self.seat.cgroup.oom_kills()
        return self._oom_kills - before

    async def read(self, path: str, *, limit: int = 1 << 20) -> bytes:
        """At most `limit` bytes from the start of a regular file."""
        reply = await self._call([b"read", os.fsencode(path), b"%d" % limit], most=limit + 4096, path=path)
        if len(reply) != 1:
            raise await self._lose("its agent sent a malformed answer")
        return reply[0]

    async def write(self, path: str, data: bytes) -> None:
        """Create or overwrite a regular file, with the directories above it."""
        if len(data) > self._limits.workspace_mb << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        await self._call([b"write", os.fsencode(path), data], most=4096, path=path)

    async def list(self, path: str = ".") -> list[str]:
        """Paths, relative to the workspace, of all regular files below `path`, sorted."""
        reply = await self._call([b"list", os.fsencode(path)], most=wire.MOST_NAMES, path=path)
        return [os.fsdecode(name) for name in reply]

    async def snapshot(self) -> SandboxSpec:
        reply = await self._call([b"snapshot"], most=self._most_bytes() + wire.MOST_NAMES)
        if len(reply) % 2:
            raise await self._lose("its agent sent a malformed answer")
        files = {os.fsdecode(name): data for name, data in zip(reply[::2], reply[1::2], strict=True)}
        return SandboxSpec(files=files, limits=self._limits)

    async def _call(
        self, fields: Sequence[bytes], *, most: int, seconds: float = _FILE_S, path: str = "."
    ) -> list[bytes]:
        """One request and its answer of at most `most` bytes. Any failure of the exchange ends the sandbox."""
        async with self._turn:
            if self._lost or self._socket is None:
                raise SandboxLost(f"the sandbox is gone: {self._lost or 'it was closed'}")
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.get_running_loop().sock_sendall(self._socket, wire.pack(*fields))
                    status, *reply = wire.unpack(await self._receive(most))
                if status == b"ok":
                    return reply
                number, text = int(reply[0]), reply[1].decode()
            except TimeoutError:
                raise await self._lose("its agent did not answer in time") from None
            except (OSError, ValueError, IndexError) as error:
                raise await self._lose(str(error) or "its agent is gone") from None
            except asyncio.CancelledError:
                self._lost = "a call on it was cancelled"
                self._kill()
                raise
        raise OSError(number, text, path)

    async def _receive(self, most: int) -> bytes:
        """The next frame, without its leading length. Raises OSError at the end, ValueError when it is too long."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        buffer = bytearray()
        needed = wire.HEADER
        while len(buffer) < needed:
            data = await loop.sock_recv(self._socket, 1 << 18)
            if not data:
                raise ConnectionResetError("its agent was killed")
            buffer += data
            if len(buffer) >= wire.HEADER:
                needed = wire.HEADER + int.from_bytes(buffer[: wire.HEADER], "little")
                if needed > most + 4096:
                    raise ValueError("its agent sent too large an answer")
        if len(buffer) > needed:
            raise ValueError("its agent sent more than an answer")
        return bytes(memoryview(buffer)[wire.HEADER :])

    async def _lose(self, reason: str) -> SandboxLost:
        self._lost = reason
        self._kill()
        return SandboxLost(f"sandbox lost: {reason}")

    def _kill(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def close(self) -> None:
        """Kill everything in the sandbox; returns when nothing of it is alive."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        self._lost = self._lost or "it was closed"
        self._kill()
        if self._pidfd >= 0:
            try:
                async with asyncio.timeout(_END_S):
                    await launcher.readable(self._pidfd)
            except TimeoutError:
                self.seat_usable = False  # something in it cannot die: its nurse waits
            os.close(self._pidfd)
            self._pidfd = -1
        async with self._turn:  # a call that is under way sees the end of the socket first
            if self._socket is not None:
                self._socket.close()
                self._socket = None
        self._owner.give_back(self)


def host_error(error: OSError) -> InfrastructureError:
    """What to raise when the host refuses what a new sandbox needs: it is not the policy's doing, nor the task's."""
    kind = DiskFull if disk_is_full(error) else SandboxLost
    return kind(f"the host could not start a sandbox: {error}")


def check_command(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> None:
    """Raises ValueError for what no process can be given."""
    if not argv or not argv[0]:
        raise ValueError("argv must name a command")
    if any("\0" in text for text in (*argv, *env, *env.values())) or any("=" in name or not name for name in env):
        raise ValueError("arguments and environment cannot hold NUL, nor names of variables '='")
    if len(stdin) > _MOST_STDIN:
        raise ValueError(f"stdin must be at most {_MOST_STDIN} bytes, got {len(stdin)}")
