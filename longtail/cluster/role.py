"""The role's end of cluster/processes.py: builds an object and serves its coroutine methods."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import traceback
from typing import Any

import zmq
import zmq.asyncio

from longtail.cluster.factory import build
from longtail.errors import InfrastructureError, LongtailError


async def serve(address: str) -> None:
    """Serve one driver until close() is called."""
    socket: Any = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    socket.bind(address)
    served = _Served()
    calls: set[asyncio.Task[None]] = set()

    async def answer(peer: bytes, message: bytes) -> None:
        number, method, args, kwargs = pickle.loads(message)  # our own driver on a private socket
        try:
            reply = (number, True, await served.call(method, args, kwargs))
        except Exception as error:
            if not isinstance(error, LongtailError):
                traceback.print_exc()
            reply = (number, False, _portable(error))
        await socket.send_multipart([peer, pickle.dumps(reply, protocol=5)])

    while not served.closed.is_set():
        receive = asyncio.ensure_future(socket.recv_multipart())
        ended = asyncio.create_task(served.closed.wait())
        await asyncio.wait({receive, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if receive.done():
            peer, message = receive.result()
            task = asyncio.create_task(answer(peer, message))
            calls.add(task)
            task.add_done_callback(calls.discard)
        else:
            receive.cancel()
    if calls:
        await asyncio.wait(calls, timeout=1.0)
    socket.close(linger=1000)


class _Served:
    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self._role: Any = None

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method == "__build__":
            self._role = await asyncio.to_thread(build, *args)
            return None
        result = await getattr(self._role, method)(*args, **kwargs) if self._role is not None else None
        if method == "close":
            self.closed.set()
        return result


def _portable(error: Exception) -> Exception:
    """An error that can be unpickled by the driver."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return InfrastructureError(f"{type(error).__name__}: {error}")
    return error if isinstance(error, LongtailError) else InfrastructureError(f"{type(error).__name__}: {error}")


def _end_with_driver() -> None:
    sys.stdin.buffer.read()  # returns when the driver closes its end, or dies
    os._exit(0)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # they may come to the whole process group; the driver handles them
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    asyncio.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
