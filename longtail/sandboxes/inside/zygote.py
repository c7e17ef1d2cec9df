"""The launcher: pid 1 of its own pid namespace, in the root that stage.py built, with an agent's modules imported.

It forks nurses (nurse.py), and that is all: a fork of it costs less than an interpreter start. It trusts the driver and
nobody else; what runs in a sandbox cannot reach it. When the driver goes, it goes, and the kernel ends all else here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from . import agent, linux, nurse, runner, wire

_SOCKET = 3  # the descriptor of the socket to the driver
# What programs in sandboxes often import. Not threading, random or logging, nor what imports them: the hooks that these
# run in each forked child cost more than they save.
_PRELOADED = (
    *("argparse", "ast", "collections", "contextlib", "copy", "dataclasses", "datetime", "functools", "importlib.util"),
    *("inspect", "io", "itertools", "json", "linecache", "math", "operator", "pathlib", "re", "runpy", "string"),
    *("textwrap", "traceback", "typing", "unittest"),
)


def _serve(driver: int, options: dict[str, Any]) -> NoReturn:
    """Fork a nurse for each message of the driver: its socket, then cgroup.procs files to join."""
    channel = socket.socket(fileno=_SOCKET)
    for fd in (_SOCKET, driver):
        os.set_inheritable(fd, False)
    wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    poll = select.poll()
    for fd in (channel.fileno(), driver, wake):
        poll.register(fd, select.POLLIN)
    channel.send(b"ready")
    while True:
        for fd, _ in poll.poll():
            if fd == wake:
                os.read(wake, 4096)
                _reap()
                continue
            message, fds = wire.receive_fds(channel, 8)
            if fd == driver or not message:
                os._exit(0)
            if not os.fork():
                channel.detach()
                nurse.Nurse(options, _become_nurse(fds)).serve()
            for received in fds:
                os.close(received)


def _become_nurse(fds: Sequence[int]) -> int:
    """In the child: join the cgroups and keep nothing but the socket, which is returned."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in fds[1:]:
        os.write(fd, b"0")
    os.dup2(fds[0], _SOCKET, inheritable=False)
    agent.close_from(_SOCKET + 1)
    return _SOCKET


def _ignore(*_: object) -> None:
    """A handler, because SIG_IGN would not wake the poll."""


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(fresh: frozenset[str]) -> None:
    """argv[1]: JSON of `driver` (a pidfd) and a nurse's options. `fresh`: the modules of a new interpreter."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    linux.keep_capabilities_here()
    for name in _PRELOADED:
        importlib.import_module(name)
    runner.freeze_state()
    try:
        _serve(options["driver"], options)
    except nurse.Enter as entered:
        settings = entered.settings
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    agent.run(fresh=fresh, **settings)
