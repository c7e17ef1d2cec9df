"""The launcher: starts bubblewrap for each sandbox, and forks the agent that enters it.

It lives as pid 1 of its own pid namespace in the root that stage.py built, with the modules of an agent and of common
programs imported, so that an agent costs a fork instead of an interpreter start. It trusts the driver and nobody else:
what runs in a sandbox cannot reach it. When the driver goes, it goes, and the kernel takes all sandboxes with it.

    driver: {"id", "lower", "workspace", "agent": {...}} + socket of the agent + cgroup.procs files
    reply:  {"id"} + pidfd of the sandbox's pid 1, whose end is the end of everything in it; or {"id", "error"}
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

from . import agent, linux, runner

_SOCKET = 3  # the descriptor of the socket to the driver
_UID = 1000  # inside
_INODE_BYTES = 4096  # a tmpfs gets one inode for each of these
_PRELOADED = (
    "argparse ast collections contextlib copy dataclasses datetime functools importlib.util inspect io itertools json "
    "linecache math operator pathlib random re runpy string subprocess tempfile textwrap traceback typing unittest"
).split()
_BWRAP = (
    "--unshare-all --unshare-user --disable-userns --die-with-parent --new-session --as-pid-1 --cap-drop ALL "
    f"--uid {_UID} --gid {_UID} --hostname sandbox --clearenv --ro-bind /sandbox / --proc /proc --dev /dev "
    "--bind /box/scratch/tmp /tmp --bind /box/scratch/shm /dev/shm --remount-ro /dev "
    f"--overlay-src /layers/LOWER --overlay /box/work/upper /box/work/work {agent.ROOT} --chdir /"
)
_ALIVE = b"+"  # what pid 1 echoes
_FIRST = ("/opt/longtail/cat",)  # pid 1: echoes one byte when it runs, then waits for ever; not readable, so not traceable


class _Starting:
    """A sandbox between the start of bubblewrap and the first sign of life of its pid 1."""

    def __init__(self, request: dict[str, Any], fds: list[int]) -> None:
        self.request, self.fds = request, fds
        self.hold_read, self.hold = os.pipe()  # stdin of pid 1: it lives as long as this is open
        self.output, self.output_write = os.pipe()
        self.info, self.info_write = os.pipe()
        os.write(self.hold, _ALIVE)
        self.said = b""
        self.pid = os.fork()

    def find_first(self) -> int | None:
        """A pidfd of pid 1; None when bubblewrap did not come that far. Kills it when it does not live as it should."""
        os.set_blocking(self.info, False)
        try:
            first = os.pidfd_open(json.loads(os.read(self.info, 4096))["child-pid"])
            if self.said != _ALIVE:
                signal.pidfd_send_signal(first, signal.SIGKILL)
        except (OSError, ValueError):
            return None
        return first

    def close(self) -> None:
        for fd in (self.output, self.info, *self.fds):
            os.close(fd)


class Zygote:
    """`uid`: what a root driver's sandboxes run as; None for any other user."""

    def __init__(self, options: dict[str, Any], fresh: frozenset[str]) -> None:
        self._bwrap: str = options["bwrap"]
        self._uid: int | None = options["uid"]
        self._driver: int = options["driver"]
        self._fresh = fresh
        with open("/opt/longtail/filter", "rb") as file:
            self._filter = file.read()
        for fd in (_SOCKET, self._driver):
            os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=_SOCKET)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._starting: dict[int, _Starting] = {}  # by descriptor of the output
        self._holds: dict[int, int] = {}  # pid of bubblewrap -> descriptor
        self._poll = select.poll()

    def serve(self) -> None:
        """Until the driver goes. Raises agent.Program in a child of an agent."""
        wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fd in (_SOCKET, self._driver, wake):
            self._poll.register(fd, select.POLLIN)
        self._socket.send(b"{}")
        while True:
            for fd, _ in self._poll.poll():
                if fd == wake:
                    os.read(wake, 4096)
                    self._reap()
                elif fd == _SOCKET:
                    self._begin()
                elif fd == self._driver:
                    os._exit(0)
                else:
                    self._hear(self._starting[fd])

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                if (hold := self._holds.pop(pid, None)) is not None:
                    os.close(hold)

    def _begin(self) -> None:
        message, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, 8, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        starting = _Starting(json.loads(message), fds)
        if not starting.pid:
            self._become_bwrap(starting)
        for fd in (starting.hold_read, starting.output_write, starting.info_write):
            os.close(fd)
        self._holds[starting.pid] = starting.hold
        self._starting[starting.output] = starting
        self._poll.register(starting.output, select.POLLIN)

    def _become_bwrap(self, starting: _Starting) -> None:
        """In the child: never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _join(starting.fds[1:])
            self._mount_box(starting.request["workspace"])
            if self._uid is not None:
                os.setgroups([])
                os.setresgid(self._uid, self._uid, self._uid)
                os.setresuid(self._uid, self._uid, self._uid)
            for name in ("work/upper", "work/work", "scratch/tmp", "scratch/shm"):
                os.mkdir(f"/box/{name}")
            os.chmod("/box/scratch/tmp", 0o1777)
            os.chmod("/box/scratch/shm", 0o1777)
            arguments = [*_BWRAP.replace("LOWER", starting.request["lower"]).split(), "--info-fd", str(starting.info_write)]
            if self._filter:
                arguments += ["--seccomp", str(_memory_file(self._filter))]
            for target, fd in enumerate((starting.hold_read, starting.output_write, starting.output_write)):
                os.dup2(fd, target)
            os.set_inheritable(starting.info_write, True)
            listed = _memory_file(b"".join(os.fsencode(text) + b"\0" for text in arguments))
            os.execve(self._bwrap, ["bwrap", "--args", str(listed), "--", *_FIRST], os.environ)
        except BaseException as error:
            os.write(starting.output_write, str(error).encode())
        finally:
            os._exit(1)

    def _mount_box(self, size: int) -> None:
        linux.unshare(linux.CLONE_NEWNS)  # so that these mounts end with the sandbox
        owner = self._uid if self._uid is not None else os.getuid()
        group = self._uid if self._uid is not None else os.getgid()
        limits = f"size={size},nr_inodes={size // _INODE_BYTES + 64},mode=0755,uid={owner},gid={group}"
        for name in ("work", "scratch"):
            linux.mount("tmpfs", f"/box/{name}", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, limits)

    def _hear(self, starting: _Starting) -> None:
        """Some output of pid 1, or of bubblewrap when it fails."""
        data = os.read(starting.output, 4096)
        starting.said += data
        if data and starting.said != _ALIVE and not data.endswith(b"\n"):
            return
        self._poll.unregister(starting.output)
        del self._starting[starting.output]
        reply: dict[str, Any] = {"id": starting.request["id"]}
        first = starting.find_first()
        if starting.said == _ALIVE and first is not None:
            self._fork_agent(starting, first)
            socket.send_fds(self._socket, [json.dumps(reply).encode()], [first])
        else:
            reply["error"] = starting.said.decode(errors="replace").strip() or "bubblewrap ended without a word"
            self._socket.send(json.dumps(reply).encode())
        starting.close()
        if first is not None:
            os.close(first)

    def _fork_agent(self, starting: _Starting, first: int) -> None:
        linux.setns(first, linux.CLONE_NEWPID)  # for children only
        if os.fork():
            linux.setns(self._own_pids, linux.CLONE_NEWPID)
            return
        try:
            self._enter(starting, first)
        except BaseException as error:
            os.write(2, f"agent: {error}\n".encode())
            os._exit(1)
        raise _Agent(starting.request["agent"])

    def _enter(self, starting: _Starting, first: int) -> None:
        """Leave everything of the launcher behind and be an unprivileged process of the sandbox."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _join(starting.fds[1:])
        if self._uid is not None:
            os.setgroups([])
        linux.setns(
            first,
            linux.CLONE_NEWUSER
            | linux.CLONE_NEWNS
            | linux.CLONE_NEWNET
            | linux.CLONE_NEWIPC
            | linux.CLONE_NEWUTS
            | linux.CLONE_NEWCGROUP,
        )
        os.setresgid(_UID, _UID, _UID)
        os.setresuid(_UID, _UID, _UID)
        self._socket.detach()  # its descriptor is the agent's from here
        os.dup2(starting.fds[0], agent.CONTROL)
        os.closerange(agent.CONTROL + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.setsid()
        os.umask(0o022)
        os.chdir(agent.ROOT)
        for name, value in starting.request["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        linux.drop_privileges(self._filter)
        linux.become_subreaper()
        linux.set_dumpable(False)


class _Agent(Exception):  # noqa: N818
    """Raised in the process that has entered a sandbox: unwind and be its agent."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options


def _join(cgroups: list[int]) -> None:
    for fd in cgroups:
        os.write(fd, b"0")


def _memory_file(data: bytes) -> int:
    """A descriptor for a child program to read this from."""
    fd = os.memfd_create("arguments", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def main(fresh: frozenset[str]) -> None:
    """argv[1]: JSON of `bwrap`, `uid`, `driver`. `fresh`: the modules of an interpreter that has imported nothing."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    for name in _PRELOADED:
        importlib.import_module(name)
    runner.freeze_state()
    try:
        Zygote(options, fresh).serve()
    except _Agent as chosen:
        settings = chosen.options
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    agent.run(env=dict(os.environ), fresh=fresh, **settings)
