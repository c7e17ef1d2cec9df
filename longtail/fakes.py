"""Shipped fakes of the ports that an attempt and a step work with: to test environments and schedules without a model,
a sandbox, a disk or a clock.

engine = ScriptedEngine(["read a.py", "submit"])       says these, one after the other, in every conversation
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from longtail.errors import EngineError, SandboxLost
from longtail.types import (
    Advantages,
    Completion,
    EngineStats,
    Event,
    ExecResult,
    Finish,
    GenerateRequest,
    Group,
    Json,
    Message,
    MicroBatch,
    SandboxSpec,
    StepResult,
)

END = 1  # the toy tokenizer's end of turn; 0 opens a turn, other ids are code points + 2


class ToyRenderer:
    """A tokenizer of one id per character. Implements ports.Renderer."""

    stop_ids = (END,)

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._turns(messages)

    def more(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        return (() if ended else (END,)) + self._turns(messages)

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(i - 2) for i in ids if i > END)

    def transcript(self, ids: Sequence[int]) -> str:
        return "".join("<" if i == 0 else ">" if i == END else chr(i - 2) for i in ids)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(ord(character) + 2 for character in text)

    def _turns(self, messages: Sequence[Message]) -> tuple[int, ...]:
        ids: tuple[int, ...] = ()
        for message in messages:
            ids += (0, *self.encode(message.content), END)
        return (*ids, 0)


class ScriptedEngine:
    """Says what a script says. `delay(request)` is how long it takes, after `queue(request)`, in seconds of `clock`;
    it may raise instead. A reply that takes longer than the request allows ends where it is by then.

    The script is a list of replies by number of the call in its conversation, or a function of the request.
    """

    def __init__(
        self,
        script: Sequence[str] | Callable[[GenerateRequest], str],
        *,
        clock: VirtualClock | None = None,
        delay: Callable[[GenerateRequest], float] = lambda request: 0.0,
        queue: Callable[[GenerateRequest], float] = lambda request: 0.0,
    ) -> None:
        self.version = 0
        self.requests: list[GenerateRequest] = []
        self.cancelled: list[str] = []
        self._script = script
        self._clock = clock
        self._delay = delay
        self._queue = queue

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        queue_s, whole_s = self._queue(request), self._delay(request)
        run_s = min(whole_s, request.seconds)
        if self._clock is not None:
            await self._clock.sleep(queue_s + run_s)
        ids = (*ToyRenderer().encode(self._say(request)), END)
        finish = Finish.STOP
        if len(ids) > request.sampling.max_tokens:
            ids, finish = ids[: request.sampling.max_tokens], Finish.LENGTH
        if run_s < whole_s:
            ids, finish = ids[: int(len(ids) * run_s / whole_s)], Finish.CANCELLED
        return Completion(
            ids=ids,
            logprobs=(-0.5,) * len(ids),
            log_mass=(0.0,) * len(ids),
            versions=(self.version,) * len(ids),
            finish=finish,
            queue_s=queue_s,
            run_s=run_s,
        )

    async def cancel(self, key: str) -> None:
        self.cancelled.append(key)

    async def load(self, path: Path, version: int) -> None:
        self.version = version

    async def stats(self) -> EngineStats:
        return EngineStats(version=self.version)

    async def close(self) -> None: ...

    def _say(self, request: GenerateRequest) -> str:
        if callable(self._script):
            return self._script(request)
        turn = int(request.key.rsplit("/", 1)[-1])
        if turn >= len(self._script):
            raise EngineError(f"the script has {len(self._script)} replies, reply {turn + 1} was asked for")
        return self._script[turn]


class VirtualClock:
    """Time that passes when everybody waits. Use `async with clock.running():` around what waits on it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncGenerator[asyncio.Timeout]:
        async def expire(limit: asyncio.Timeout) -> None:
            await self.sleep(seconds)
            limit.reschedule(asyncio.get_running_loop().time())

        async with asyncio.timeout(None) as limit:
            alarm = asyncio.create_task(expire(limit))
            try:
                yield limit
            finally:
                alarm.cancel()

    @asynccontextmanager
    async def running(self, *, idle_turns: int = 50) -> AsyncGenerator[None]:
        """Wake the next sleeper whenever nothing else has run for `idle_turns` turns of the event loop."""

        async def drive() -> None:
            while True:
                for _ in range(idle_turns):
                    await asyncio.sleep(0)
                while self._sleepers:
                    at, _, future = heapq.heappop(self._sleepers)
                    if not future.done():  # done: nobody sleeps there any more
                        self._now = max(self._now, at)
                        future.set_result(None)
                        break

        task = asyncio.create_task(drive())
        try:
            yield
        finally:
            task.cancel()


class MemorySandbox:
    """Files in a dictionary; `run(argv, files)` plays the processes. Implements ports.Sandbox."""

    def __init__(
        self, spec: SandboxSpec, run: Callable[[Sequence[str], dict[str, bytes]], Awaitable[ExecResult]]
    ) -> None:
        self.files = dict(spec.files)
        self.closed = False
        self._spec = spec
        self._run = run

    async def read(self, path: str, *, limit: int = 1 << 20) -> bytes:
        self._check()
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][:limit]

    async def write(self, path: str, data: bytes) -> None:
        self._check()
        if path.startswith("/") or ".." in path.split("/"):
            raise PermissionError(path)
        self.files[path] = data

    async def list(self, path: str = ".") -> list[str]:
        self._check()
        prefix = "" if path == "." else path.rstrip("/") + "/"
        return sorted(name for name in self.files if name.startswith(prefix))

    async def exec(
        self,
        argv: Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        self._check()
        return await self._run(argv, self.files)

    async def snapshot(self) -> SandboxSpec:
        self._check()
        return replace(self._spec, files=dict(self.files))

    async def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.closed:
            raise SandboxLost("the sandbox is closed")


async def _nothing(argv: Sequence[str], files: dict[str, bytes]) -> ExecResult:
    return ExecResult(exit_code=0, stdout=b"", stderr=b"")


class MemorySandboxes:
    """Implements ports.Sandboxes."""

    level = "memory"

    def __init__(self, run: Callable[[Sequence[str], dict[str, bytes]], Awaitable[ExecResult]] = _nothing) -> None:
        self.made: list[MemorySandbox] = []
        self._run = run

    async def create(self, spec: SandboxSpec) -> MemorySandbox:
        self.made.append(MemorySandbox(spec, self._run))
        return self.made[-1]

    async def close(self) -> None: ...


class CountingTrainer:
    """Counts steps; its weights are that number. Implements ports.Trainer."""

    def __init__(self) -> None:
        self.steps: list[Sequence[MicroBatch]] = []

    async def step(self, microbatches: Sequence[MicroBatch], loss: Any) -> StepResult:
        self.steps.append(microbatches)
        return StepResult(metrics={"loss": 0.0})

    async def export(self, path: Path) -> None:
        path.write_text(str(len(self.steps)))

    async def save(self, path: Path) -> None:
        path.mkdir(parents=True)
        (path / "state.json").write_text(str(len(self.steps)))

    async def load(self, path: Path) -> None:
        self.steps = [()] * int((path / "state.json").read_text())

    async def close(self) -> None: ...


class MemoryJournal:
    """Keeps events in a list. Implements ports.Journal."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.committed: list[tuple[int, list[str]]] = []

    async def append(self, *events: Event) -> None:
        self.events += events

    async def resume(self, trainer: Any) -> int:
        return self.committed[-1][0] if self.committed else 0

    async def commit(
        self, step: int, groups: Sequence[Group], advantages: Sequence[Advantages | None], result: StepResult
    ) -> None:
        self.committed.append((step, [group.id for group in groups]))

    async def finish(self, step: int) -> None: ...

    async def close(self) -> None: ...

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


class NoTrace:
    """Implements ports.Tracer by doing nothing."""

    def step(self, step: int) -> AbstractContextManager[None]:
        return nullcontext()

    def busy(self, lane: str, **attributes: Json) -> AbstractContextManager[None]:
        return nullcontext()
