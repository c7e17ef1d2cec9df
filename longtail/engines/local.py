"""The local engine: continuous batching with torch, in one thread of this process.

    generate() ...... commands ......> thread:  take commands -> next pass -> forward -> draw -> append
        ^                                |
        '------ call_soon_threadsafe ----'

All state of requests belongs to the thread; the event loop holds one future per caller. generate() waits for its
future, the thread waits for commands when nothing runs. When the thread dies, every future gets an EngineError, and so
does every later call.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file as load_any_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from longtail.config import EngineConfig
from longtail.engines.worker import Ended, Worker
from longtail.errors import EngineError
from longtail.models.forward import open_forward
from longtail.types import Completion, EngineStats, GenerateRequest

Command = tuple[Callable[[], Any], "asyncio.Future[Any] | None"]  # work between two passes, and who waits for it


load_file = cast("Callable[[Path], dict[str, Tensor]]", load_any_file)  # its stub leaves types open


class _Waiters:
    """Who waits for a request in flight."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.futures: list[asyncio.Future[Completion]] = []


class LocalEngine:
    """ports.Engine. Use it from one event loop."""

    def __init__(self, model: str, config: EngineConfig, threads: int = 0) -> None:
        self._worker = Worker(open_forward(model), config)
        self._threads = threads
        self._waiters: dict[str, _Waiters] = {}  # by key of the request
        self._asked: set[asyncio.Future[Any]] = set()  # by commands
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()  # None: end
        self._dead: EngineError | None = None
        self._thread = threading.Thread(target=self._main, name="longtail-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerateRequest) -> Completion:
        """Equal requests in flight share a reply. Raises EngineError when only their keys are equal."""
        self._check_alive()
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(request.key, _Waiters(request))
        if waiters.request != request:
            raise EngineError(f"request '{request.key}': another request with this key is in flight")
        waiters.futures.append(future)
        if len(waiters.futures) == 1:
            now = time.monotonic()
            self._send(lambda: self._deliver(self._worker.submit(request, now)))
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(request.key, future)
            raise

    async def cancel(self, key: str) -> None:
        if key in self._waiters:
            await self._ask(lambda: self._deliver(self._worker.cancel(key)))

    async def load(self, path: Path, version: int) -> None:
        self._check_alive()
        try:
            weights = await asyncio.to_thread(load_file, path)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"weights {path} cannot be read: {error}") from error
        await self._ask(lambda: self._worker.load(path, weights, version))

    async def stats(self) -> EngineStats:
        return await self._ask(self._worker.stats)

    async def close(self) -> None:
        """End the thread; requests in flight get an EngineError."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)
        self._dead = self._dead or EngineError("the local engine is closed")
        self._fail_all(self._dead)

    # --- in the event loop ---

    async def _ask(self, run: Callable[[], Any]) -> Any:
        self._check_alive()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        self._send(run, future)
        return await future

    def _send(self, run: Callable[[], Any], future: asyncio.Future[Any] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._commands.put((run, future))

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineError(str(self._dead)) from self._dead

    def _abandon(self, key: str, future: asyncio.Future[Completion]) -> None:
        """A caller gave up; the last one ends the request."""
        waiters = self._waiters.get(key)
        if waiters is not None and future in waiters.futures:
            waiters.futures.remove(future)
            if not waiters.futures:
                del self._waiters[key]
                self._send(lambda: self._worker.cancel(key))

    def _resolve(self, ended: list[Ended]) -> None:
        for key, result in ended:
            waiters = self._waiters.pop(key, None)
            for future in waiters.futures if waiters else ():
                _settle(future, result)

    def _fail_all(self, error: EngineError) -> None:
        self._resolve([(key, error) for key in self._waiters])
        for future in tuple(self._asked):
            _settle(future, error)

    # --- in the thread ---

    def _main(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._take_commands():
                    if not self._worker.idle:
                        self._deliver(self._worker.step())
        except BaseException as error:
            self._die(error)

    def _take_commands(self) -> bool:
        """Run the commands at hand, waiting for one when there is nothing else to do. False: end."""
        block = self._worker.idle
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return True
            if command is None:
                return False
            self._run(*command)
            block = False

    def _run(self, run: Callable[[], Any], future: asyncio.Future[Any] | None) -> None:
        try:
            result = run()
        except EngineError as error:
            result = error
        if future is not None:
            self._call_loop(_settle, future, result)

    def _deliver(self, ended: list[Ended]) -> None:
        if ended:
            self._call_loop(self._resolve, ended)

    def _call_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None  # set by whoever sent the first command
        self._loop.call_soon_threadsafe(function, *arguments)

    def _die(self, error: BaseException) -> None:
        self._dead = EngineError(f"the local engine died: {error!r}")
        self._dead.__cause__ = error
        if self._loop is not None and not self._loop.is_closed():
            self._call_loop(self._fail_all, self._dead)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, EngineError):
        future.set_exception(result)
    else:
        future.set_result(result)
