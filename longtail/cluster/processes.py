"""Roles as local processes, called over ZeroMQ on a private socket.

The driver holds a DEALER, the role a ROUTER (cluster/role.py). A call is one message (number, method, arguments), its
answer one message (number, ok, value or error). A role ends when its standard input closes, so it never outlives the
driver; when a role dies, every call that waits on it raises InfrastructureError with its exit status and last words;
when it hangs, a call with a deadline (DEADLINES_S) raises DeadlineExpired.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from longtail.errors import DeadlineExpired, InfrastructureError

START_S = 300.0  # a role must answer its first call within this: loading a model may take minutes
CLOSE_S = 10.0
# A role may hang without dying. generate() is not here: its attempt has a deadline.
DEADLINES_S = {"cancel": 20.0, "stats": 20.0, "load": 600.0, "export": 600.0, "save": 600.0, "step": 7200.0}


class ProcessCluster:
    """Implements ports.Cluster. Each role logs to <logs>/<name>.log."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._sockets = tempfile.TemporaryDirectory(prefix="longtail-")  # mode 0700: only this user can connect
        self._context = zmq.asyncio.Context()
        self._roles: list[RoleProxy] = []

    async def start(self, name: str, factory: str, **kwargs: Any) -> Any:
        self._logs.mkdir(parents=True, exist_ok=True)
        address = f"ipc://{self._sockets.name}/{name}"
        log = self._logs / f"{name}.log"
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "longtail.cluster.role",
                address,
                stdin=PIPE,
                stdout=out,
                stderr=out,
                env=os.environ,
            )
        proxy = RoleProxy(name, process, self._context, address, log)
        self._roles.append(proxy)
        try:
            async with asyncio.timeout(START_S):
                await proxy.call("__build__", factory, kwargs)
        except TimeoutError:
            raise InfrastructureError(f"the {name} process did not start within {START_S:g} s (log: {log})") from None
        return proxy

    async def close(self) -> None:
        await asyncio.gather(*(role.close() for role in self._roles))
        self._roles.clear()
        self._context.term()
        self._sockets.cleanup()


class RoleProxy:
    """The driver's end of a role: any method of the object there, as a coroutine."""

    def __init__(self, name: str, process: Process, context: zmq.asyncio.Context, address: str, log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._closing = False
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)

        async def remote(*args: Any, **kwargs: Any) -> Any:
            return await self.call(method, *args, **kwargs)

        return remote

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._process.returncode is not None:
            raise self._death()
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        seconds = DEADLINES_S.get(method)
        try:
            async with asyncio.timeout(seconds):
                await self._socket.send(pickle.dumps((number, method, args, kwargs), protocol=5))
                return await future
        except TimeoutError:
            raise DeadlineExpired(
                f"the {self._name} process did not answer {method}() within {seconds:g} s (log: {self._log})"
            ) from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the role: by its own close(), else by signal. Returns when the process is gone."""
        self._closing = True
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.call("close")
        except (TimeoutError, InfrastructureError):
            pass
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()

    async def _receive(self) -> None:
        while True:
            number, ok, value = pickle.loads(await self._socket.recv())  # our own process on a private socket
            future = self._waiting.get(number)
            if future is None or future.done():
                continue
            if ok:
                future.set_result(value)
            else:
                future.set_exception(value)

    async def _watch(self) -> None:
        await self._process.wait()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._death())

    def _death(self) -> InfrastructureError:
        status = self._process.returncode
        how = f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
        words = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = f": {words[-1]}" if words and not self._closing else ""
        return InfrastructureError(f"the {self._name} process {how} (log: {self._log}){last}")
