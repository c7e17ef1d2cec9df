"""A nurse brings up one sandbox after another: bubblewrap makes the namespaces, a fork of the nurse enters them.

    driver: {"lower", "workspace", "agent": {...}, "rlimits": {...}} + the agent's socket
    reply:  {} + pidfd of the sandbox's pid 1, whose end is the end of everything in it; or {"error"}

A nurse stays in the cgroup of its sandboxes, because joining one takes the kernel longer than all the rest here.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
from collections.abc import Generator
from typing import Any, NoReturn

from . import agent, linux, wire

_UID = 1000  # inside
_INODE_BYTES = 4096  # a tmpfs gets one inode for each of these
_WORK, _SCRATCH = "/box/work", "/box/scratch"
_BWRAP = (
    "--unshare-all --unshare-user --disable-userns --die-with-parent --new-session --as-pid-1 --cap-drop ALL "
    f"--uid {_UID} --gid {_UID} --hostname sandbox --clearenv --ro-bind /sandbox / --proc /proc --dev /dev "
    f"--bind {_SCRATCH}/tmp /tmp --bind {_SCRATCH}/shm /dev/shm --remount-ro /dev "
    f"--overlay-src /layers/LOWER --overlay {_WORK}/upper {_WORK}/work {agent.ROOT} --chdir /"
)
_FIRST = "/opt/longtail/cat"  # pid 1: its file cannot be read, so that nothing in the sandbox can trace it
_ALIVE = b"+"  # what pid 1 echoes when it runs; then it waits for ever
_START_MS = 15_000


class Enter(Exception):
    """Raised in the process that has entered a sandbox: unwind and be its agent."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings


class Nurse:
    """`uid` in the options: what a root driver's sandboxes run as; None for any other user."""

    def __init__(self, options: dict[str, Any], fd: int) -> None:
        self._bwrap: str = options["bwrap"]
        self._uid: int | None = options["uid"]
        with open("/opt/longtail/filter", "rb") as file:
            self._filter = file.read()
        self._driver = socket.socket(fileno=fd)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        if self._uid is not None:
            os.setgroups([])
        linux.unshare(linux.CLONE_NEWNS)  # what is mounted for a sandbox is seen by no other nurse

    def serve(self) -> NoReturn:
        """One sandbox after another, until the driver hangs up. Raises Enter in each agent."""
        while True:
            message, fds = wire.receive_fds(self._driver, 1)
            if not message:
                os._exit(0)
            request = json.loads(message)
            try:
                first, hold = self._start(request)
            except OSError as error:
                self._driver.send(json.dumps({"error": error.strerror or str(error)}).encode())
                os._exit(1)  # what was half made ends with it
            self._attend(request, fds[0], first)
            os.close(hold)

    def _attend(self, request: dict[str, Any], control: int, first: int) -> None:
        """Put an agent into the sandbox, tell the driver, and stay until all has ended, as it does with the agent."""
        linux.setns(first, linux.CLONE_NEWPID)  # for children only
        if not (pid := os.fork()):
            self._become_agent(request, first, control)
        linux.setns(self._own_pids, linux.CLONE_NEWPID)
        os.close(control)
        socket.send_fds(self._driver, [b"{}"], [first])
        os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(first, signal.SIGKILL)
        os.close(first)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)

    def _start(self, request: dict[str, Any]) -> tuple[int, int]:
        """Returns a pidfd of the sandbox's pid 1, and a descriptor whose closing ends it. Raises OSError."""
        owner = f"uid={self._uid or os.getuid()},gid={self._uid or os.getgid()}"
        size = request["workspace"]
        limits = f"size={size},nr_inodes={size // _INODE_BYTES + 64},mode=0755,{owner}"
        for place in (_WORK, _SCRATCH):
            linux.mount("tmpfs", place, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, limits)
        try:
            with self._as_user():
                for place in (f"{_WORK}/upper", f"{_WORK}/work", f"{_SCRATCH}/tmp", f"{_SCRATCH}/shm"):
                    os.mkdir(place)
                    os.chmod(place, 0o1777 if place.startswith(_SCRATCH) else 0o755)
                hold, output, info = self._spawn(_BWRAP.replace("LOWER", request["lower"]).split())
            return _await_first(output, info), hold
        finally:
            for place in (_WORK, _SCRATCH):
                linux.unmount(place)  # the sandbox keeps them

    def _spawn(self, arguments: list[str]) -> tuple[int, int, int]:
        """Start bubblewrap; returns descriptors: what pid 1 lives by, its output, and bubblewrap's information."""
        hold_read, hold = os.pipe()
        output, output_write = os.pipe()
        info, info_write = os.pipe()
        os.write(hold, _ALIVE)
        passed = [info_write]
        os.set_inheritable(info_write, True)
        arguments += ["--info-fd", str(info_write)]
        if self._filter:
            passed.append(_memory_file(self._filter))
            arguments += ["--seccomp", str(passed[-1])]
        passed.append(_memory_file(b"".join(os.fsencode(text) + b"\0" for text in arguments)))
        streams = [
            (os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((hold_read, output_write, output_write))
        ]
        command = ["bwrap", "--args", str(passed[-1]), "--", _FIRST]
        os.posix_spawn(self._bwrap, command, os.environ, file_actions=streams, setsigdef=[signal.SIGPIPE])
        for fd in (hold_read, output_write, *passed):
            os.close(fd)
        return hold, output, info

    @contextlib.contextmanager
    def _as_user(self) -> Generator[None]:
        """What a root launcher starts and makes here belongs to the sandboxes' user."""
        if self._uid is None:
            yield
            return
        os.setresgid(self._uid, self._uid, 0)
        os.setresuid(self._uid, self._uid, 0)
        try:
            yield
        finally:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)

    def _become_agent(self, request: dict[str, Any], first: int, control: int) -> NoReturn:
        try:
            self._driver.detach()  # its descriptor is the agent's from here
            self._enter(first, control, request["rlimits"])
        except BaseException as error:
            os.write(2, f"agent: {error}\n".encode())
            os._exit(1)
        raise Enter(request["agent"])

    def _enter(self, first: int, control: int, rlimits: dict[str, int]) -> None:
        """Leave everything of the launcher behind and be an unprivileged process of the sandbox."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # code in the sandbox may send it
        linux.setns(first, linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.OTHER_NAMESPACES)
        os.setresgid(_UID, _UID, _UID)
        os.setresuid(_UID, _UID, _UID)
        os.dup2(control, agent.CONTROL, inheritable=False)
        agent.close_from(agent.CONTROL + 1)
        os.setsid()
        os.umask(0o022)
        os.chdir(agent.ROOT)
        for name, value in rlimits.items():
            resource.setrlimit(getattr(resource, name), (value, value))
        linux.drop_privileges(self._filter)
        linux.become_subreaper()
        linux.set_dumpable(False)


def _await_first(output: int, info: int) -> int:
    """A pidfd of pid 1, once it runs. Raises OSError with what bubblewrap says instead."""
    said = b""
    poll = select.poll()
    poll.register(output, select.POLLIN)
    while said != _ALIVE and not said.endswith(b"\n") and poll.poll(_START_MS) and (data := os.read(output, 4096)):
        said += data
    os.set_blocking(info, False)
    try:
        first = os.pidfd_open(json.loads(os.read(info, 4096))["child-pid"])
    except (OSError, ValueError):
        first = -1
    os.close(output)
    os.close(info)
    if first >= 0 and said == _ALIVE:
        return first
    raise OSError(said.decode(errors="replace").strip() or "bubblewrap did not start")


def _memory_file(data: bytes) -> int:
    """A descriptor for a child program to read this from."""
    fd = os.memfd_create("arguments", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
