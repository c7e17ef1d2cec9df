"""The agent: one process in each sandbox that answers the driver's frames, one at a time.

It starts what exec() asks for, keeps its output within bounds, and ends it: when a call returns, nothing of it lives.
That rests on three things: the agent is a child subreaper, so every descendant that loses its parent becomes its child;
kill(-1) reaches every process of the pid namespace but pid 1 and the agent; and nothing can fork once killed.
Code in the sandbox may kill the agent: then the driver sees the socket close, and the sandbox is lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from . import files, linux, runner, wire

ROOT = "/workspace"
CONTROL = 3  # the descriptor of the socket to the driver
_WATCH_S = 0.05  # how often memory is looked at and orphans are reaped during an exec
_CHUNK = 1 << 16
_PYTHON_IGNORES = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)


class Program(Exception):
    """Raised in a forked child: unwind to the bottom of the stack and become this Python program."""

    def __init__(self, argv: Sequence[str], changes: Mapping[str, str]) -> None:
        self.argv, self.changes = argv, changes


class Agent:
    """`memory` bounds the processes of one exec together, in bytes; 0 where a cgroup does that."""

    def __init__(self, *, memory: int, output: int, snapshot: int) -> None:
        self._memory = memory
        self._output = output
        self._snapshot = snapshot

    def serve(self) -> NoReturn:
        """Answer requests until the driver hangs up. Raises Program in a child."""
        handlers: dict[bytes, Callable[..., Sequence[bytes]]] = {
            b"exec": self._exec,
            b"read": _read,
            b"write": _write,
            b"list": _list,
            b"snapshot": self._take_snapshot,
        }
        _send([b"ready"])
        while True:
            operation, *arguments = wire.unpack(
                _receive_exactly(int.from_bytes(_receive_exactly(wire.HEADER), "little"))
            )
            try:
                _send([b"ok", *handlers[operation](*arguments)])
            except OSError as error:
                if operation == b"exec":
                    raise  # nothing that the command did
                _send([b"error", b"%d" % (error.errno or errno.EIO), (error.strerror or str(error)).encode()])

    def _take_snapshot(self) -> list[bytes]:
        pairs = files.snapshot(ROOT, self._snapshot)
        names = _names([name for name, _ in pairs])
        return [field for name, (_, data) in zip(names, pairs, strict=True) for field in (name, data)]

    def _exec(self, seconds: bytes, stdin: bytes, count: bytes, *texts: bytes) -> Sequence[bytes]:
        argv = [os.fsdecode(text) for text in texts[: int(count)]]
        changes = dict(os.fsdecode(text).split("=", 1) for text in texts[int(count) :])
        started = time.monotonic()
        job = _Job(argv, changes, stdin, keep=self._output)
        reason = job.watch(started + float(seconds), self._memory)
        code = job.end()
        return [
            b"" if reason or code is None else b"%d" % code,
            reason,
            b"%d" % job.dropped,
            b"%.6f" % (time.monotonic() - started),
            *job.kept(),
        ]


def _read(path: bytes, limit: bytes) -> list[bytes]:
    return [files.read(ROOT, os.fsdecode(path), int(limit))]


def _write(path: bytes, data: bytes) -> list[bytes]:
    files.write(ROOT, os.fsdecode(path), data)
    return []


def _list(path: bytes) -> list[bytes]:
    return _names(files.listing(ROOT, os.fsdecode(path)))


def _names(paths: Sequence[str]) -> list[bytes]:
    names = [os.fsencode(path) for path in paths]
    if sum(len(name) + 8 for name in names) > wire.MOST_NAMES:
        raise OSError(errno.EFBIG, "the workspace holds too many files")
    return names


class _Job:
    """One running exec."""

    def __init__(self, argv: Sequence[str], changes: Mapping[str, str], stdin: bytes, *, keep: int) -> None:
        self._status: int | None = None
        self._room = keep
        self.dropped = 0
        self._rest = memoryview(stdin)
        out, out_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        err, err_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(out_write, True)
        os.set_blocking(err_write, True)
        source, self._feed = os.pipe2(os.O_CLOEXEC) if stdin else (os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1)
        if stdin:
            os.set_blocking(self._feed, False)
            self._write()
        start = _fork if runner.is_python(argv, changes) else _spawn
        self._pid = start(argv, changes, (source, out_write, err_write))
        for fd in (source, out_write, err_write):
            os.close(fd)
        self._streams = {out: bytearray(), err: bytearray()}

    def watch(self, deadline: float, memory: int) -> bytes:
        """Collect output until the main process exits; returns why it must be ended before that, or b""."""
        exited = os.pidfd_open(self._pid)
        poll = select.poll()
        for fd in (exited, *self._streams):
            poll.register(fd, select.POLLIN)
        if self._rest:
            poll.register(self._feed, select.POLLOUT)
        poll.register(CONTROL, 0)  # hang-up only: no request comes before the answer
        look = now = time.monotonic()
        try:
            while now < deadline:
                for fd, _ in poll.poll(1000 * min(_WATCH_S, deadline - now)):
                    if fd == CONTROL:
                        raise EOFError
                    if fd == exited:
                        return b""
                    if not (self._write() if fd == self._feed else self._take(fd)):
                        poll.unregister(fd)
                if (now := time.monotonic()) >= look + _WATCH_S:
                    look = now
                    self._reap()  # orphans count against the limit of processes until then
                    if memory and _memory_used() > memory:
                        return b"memory"
            return b"time"
        finally:
            os.close(exited)

    def _take(self, fd: int) -> bool:
        """Read what is there once; False at the end of the stream."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        kept = self._streams[fd]
        room = self._room - len(kept)
        kept += data[:room]
        self.dropped += max(len(data) - room, 0)
        return bool(data)

    def _write(self) -> bool:
        """Write of the input what finds room; False when that was the rest of it, or nobody reads it any more."""
        try:
            self._rest = self._rest[os.write(self._feed, self._rest) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            self._rest = self._rest[:0]
        if not self._rest:
            os.close(self._feed)
            self._feed = -1
        return bool(self._rest)

    def _reap(self, options: int = os.WNOHANG) -> bool:
        """Reap all that can be reaped; False when no child is left."""
        try:
            while pid := (result := os.waitpid(-1, options))[0]:
                if pid == self._pid:
                    self._status = result[1]
        except ChildProcessError:
            return False
        return True

    def end(self) -> int | None:
        """Kill what still runs, read what it left in the pipes, and return the exit code of the main process."""
        if self._reap():
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self._reap(0)
        for fd in self._streams:
            while self._take(fd):
                pass
            os.close(fd)
        if self._feed >= 0:
            os.close(self._feed)
        return None if self._status is None else os.waitstatus_to_exitcode(self._status)

    def kept(self) -> list[bytes]:
        return [bytes(kept) for kept in self._streams.values()]


def _spawn(argv: Sequence[str], changes: Mapping[str, str], streams: Sequence[int]) -> int:
    """Start a program. One that cannot be started is a process that says so, as a shell's would."""
    env = {**os.environ, **changes}
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(streams)]
    found = argv[0] if "/" in argv[0] else _find(argv[0], env)
    try:
        pid = os.posix_spawn(found, list(argv), env, file_actions=actions, setsid=True, setsigdef=_PYTHON_IGNORES)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise
        return _fail(streams[2], f"{argv[0]}: {error.strerror}\n", 127 if error.errno == errno.ENOENT else 126)
    with contextlib.suppress(OSError):
        _prefer_for_oom(pid)
    return pid


def _find(name: str, env: Mapping[str, str]) -> str:
    for directory in os.get_exec_path(env):
        path = f"{directory}/{name}"
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return name


def _fail(stderr: int, message: str, code: int) -> int:
    os.write(stderr, os.fsencode(message))
    if not (pid := os.fork()):
        os._exit(code)
    return pid


def _fork(argv: Sequence[str], changes: Mapping[str, str], streams: Sequence[int]) -> int:
    """Fork a child for a Python program. Raises Program in the child."""
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
        linux.set_dumpable(True)
        _prefer_for_oom(os.getpid())
        close_from(CONTROL)
    except BaseException:
        os._exit(126)
    raise Program(argv, changes)


def close_from(fd: int) -> None:
    os.closerange(fd, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _prefer_for_oom(pid: int) -> None:
    """Short of memory, the kernel takes this process before the agent."""
    with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file:
        file.write(b"1000")


def _memory_used() -> int:
    """Bytes of all processes but pid 1 and the agent, shared pages counted by their share."""
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
    return sum(map(_memory_of, others))


def _memory_of(name: str) -> int:
    try:
        with open(f"/proc/{name}/smaps_rollup", "rb") as file:
            return int(next(line for line in file if line.startswith(b"Pss:")).split()[1]) * 1024
    except PermissionError:
        pass  # it made itself unreadable: shared pages, which none of its limits holds, count in full
    except (OSError, StopIteration):
        return 0  # gone
    try:
        with open(f"/proc/{name}/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _receive_exactly(size: int) -> bytes:
    pieces: list[bytes] = []
    while size:
        piece = os.read(CONTROL, min(size, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _send(fields: Sequence[bytes]) -> None:
    rest = memoryview(wire.pack(*fields))
    while rest:
        rest = rest[os.write(CONTROL, rest) :]


def run(*, memory: int, output: int, snapshot: int, fresh: frozenset[str]) -> NoReturn:
    """Be the agent of the sandbox that this process has entered, and in a forked child be a program."""
    try:
        Agent(memory=memory, output=output, snapshot=snapshot).serve()
    except EOFError:
        os._exit(0)
    except Program as program:
        chosen = program
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    runner.become(chosen.argv, chosen.changes, fresh)
