"""An engine that never answers a request, to be run as a role and stopped. Small, because the role imports it."""

import asyncio
import os


class QuietEngine:
    def __init__(self) -> None:
        self.asked = 0

    async def generate(self, request) -> None:
        self.asked += 1
        await asyncio.Event().wait()

    async def cancel(self, key: str) -> None: ...

    async def load(self, path, version: int) -> None: ...

    async def requests(self) -> int:
        return self.asked

    async def pid(self) -> int:
        return os.getpid()

    async def close(self) -> None: ...
