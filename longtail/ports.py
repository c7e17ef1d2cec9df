"""The replaceable things, as Protocols of at most five methods. Fakes of each are in fakes.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from longtail.types import (
    Advantages,
    Completion,
    EngineStats,
    Event,
    ExecResult,
    GenerateRequest,
    Group,
    Json,
    Message,
    MicroBatch,
    Sampling,
    SandboxSpec,
    Score,
    StepResult,
    Task,
    ToolCall,
)


class Timeout(Protocol):
    """As asyncio.Timeout."""

    def expired(self) -> bool: ...


class Clock(Protocol):
    """Time for the core: nothing in the scheduler reads another clock."""

    def now(self) -> float:
        """Seconds, monotonic."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[Timeout]:
        """As asyncio.timeout(): the body is cancelled after `seconds`, and TimeoutError raised."""
        ...


class Engine(Protocol):
    """Samples tokens. Raises EngineError, for a prompt that leaves no room for a reply ContextFull; never returns a
    partial reply without saying so in `finish`. A reply that has run for `request.seconds` ends as it is, cancelled."""

    async def generate(self, request: GenerateRequest) -> Completion: ...

    async def cancel(self, key: str) -> None:
        """End the request of that key; its generate() returns what was sampled, finish = cancelled."""
        ...

    async def load(self, path: Path, version: int) -> None:
        """Take new weights (a safetensors file) between two forward passes; requests in flight go on."""
        ...

    async def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...


class Renderer(Protocol):
    """Text to ids and back, for what the environment says. Model text never passes through encode()."""

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of a conversation's first prompt, ending where the assistant speaks."""
        ...

    def more(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        """Ids to put after a sampled reply: the rest of the assistant's turn (all of its end if not `ended`),
        the messages, and the opening of the next assistant turn."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens of the template left out."""
        ...

    def transcript(self, ids: Sequence[int]) -> str:
        """Text of ids with control tokens shown."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...


class Files(Protocol):
    """The workspace of a sandbox. Paths are relative to it; a path that leaves it raises PermissionError;
    FileNotFoundError, IsADirectoryError and OSError(ENOSPC) as usual."""

    async def read(self, path: str, *, limit: int = 1 << 20) -> bytes: ...

    async def write(self, path: str, data: bytes) -> None: ...

    async def list(self, path: str = ".") -> list[str]:
        """Relative paths of all regular files below `path`, sorted."""
        ...


class Sandbox(Files, Protocol):
    """An isolated workspace with processes. Raises SandboxLost when it is gone."""

    async def exec(
        self,
        argv: Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult: ...

    async def snapshot(self) -> SandboxSpec:
        """The workspace as it is now, as a spec that a fresh sandbox can start from."""
        ...

    async def close(self) -> None: ...


class Sandboxes(Protocol):
    """Makes sandboxes of one isolation level."""

    level: str

    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    async def close(self) -> None: ...


Loss = Callable[[Any, Any], Any]  # algorithms/losses.py: (logprobs_M, LossInputs) -> (loss, metrics)


class Trainer(Protocol):
    """Owns the weights and the optimizer."""

    async def step(self, microbatches: Sequence[MicroBatch], loss: Loss) -> StepResult: ...

    async def export(self, path: Path) -> None:
        """Write the weights as one safetensors file, atomically."""
        ...

    async def save(self, path: Path) -> None:
        """Write a checkpoint directory (weights, optimizer, schedule, RNG), atomically."""
        ...

    async def load(self, path: Path) -> None: ...

    async def close(self) -> None: ...


class WeightSync(Protocol):
    async def publish(self, trainer: Trainer, version: int) -> None:
        """Bring the trainer's weights to every engine; returns when all of them sample with `version`."""
        ...


class Journal(Protocol):
    """Append-only; what append() has acknowledged survives kill -9 and power loss."""

    async def append(self, *events: Event) -> None: ...

    async def resume(self, trainer: Trainer) -> int:
        """Bring trainer and data position to the last committed step and return it (0 on a new run)."""
        ...

    async def commit(
        self, step: int, groups: Sequence[Group], advantages: Sequence[Advantages | None], result: StepResult
    ) -> None:
        """Make the step real: the trained groups, the weights and the counters as one cut."""
        ...

    async def finish(self, step: int) -> None: ...

    async def close(self) -> None: ...


class Cluster(Protocol):
    """Starts and watches roles (sampler, trainer): objects that live in their own process."""

    async def start(self, name: str, factory: str, **kwargs: Any) -> Any:
        """Build `factory` ("package.module:function") with kwargs where the role runs; returns a proxy with the same
        async methods. Raises InfrastructureError from the proxy's calls when the role dies."""
        ...

    async def close(self) -> None: ...


class Tracer(Protocol):
    """Where time goes. Lanes: sample, train, tool, sandbox, sync, eval, commit."""

    def step(self, step: int) -> AbstractContextManager[None]: ...

    def busy(self, lane: str, **attributes: Json) -> AbstractContextManager[None]:
        """Mark the lane busy for the body."""
        ...


class Model(Protocol):
    """The policy as one attempt sees it. Raises LimitReached when the task's turns or tokens are spent."""

    async def generate(self, ids: Sequence[int], sampling: Sampling | None = None) -> Completion: ...

    async def chat(self, messages: Sequence[Message], sampling: Sampling | None = None) -> Reply:
        """Sample the assistant's answer to a conversation.

        `messages` must be what was said before (replies verbatim) and what is new; only the new part is rendered and
        appended to the exact ids. A conversation that rewrites history starts a new row of the call graph."""
        ...


class Reply(Protocol):
    @property
    def message(self) -> Message: ...

    @property
    def completion(self) -> Completion: ...


class Ctx(Protocol):
    """What one attempt may do; the only way an episode reaches the world."""

    @property
    def model(self) -> Model:
        """The policy; each call of it is recorded as it was sampled."""
        ...

    @property
    def task(self) -> Task:
        """What is to be done."""
        ...

    @property
    def seed(self) -> int:
        """Of the attempt: a retry gets the same one, another member of the group another one."""
        ...

    async def sandbox(self, spec: SandboxSpec) -> Sandbox:
        """A fresh sandbox that dies with the attempt."""
        ...

    async def tool(self, name: str, arguments: Mapping[str, Json], run: Callable[[], Awaitable[str]]) -> ToolCall:
        """Run one tool call and record it, with what it raised as its error. An outage (ConnectionError, TimeoutError)
        and a LongtailError, the time limit for one, are raised again after that."""
        ...

    def progress(self, reward: float) -> None:
        """Say, while a tool runs, what the attempt would be rewarded with if it ended after this call."""
        ...

    async def event(self, kind: str, **data: Json) -> None:
        """Put a note into the record of the attempt."""
        ...


RolloutFn = Callable[[Task, Ctx], Awaitable[Score]]


class Rollouts(Protocol):
    """A started scheduler: it keeps as many groups in flight as the staleness bound allows."""

    async def take(self, count: int) -> list[Group]:
        """The next groups to train, none staler than the bound. Raises LongtailError when there will be none."""
        ...

    def release(self, groups: Sequence[Group], version: int) -> None:
        """The groups are trained and `version` is published: their places are free for what the next take() admits."""
        ...

    async def once(self, tasks: Sequence[Task], *, name: str, sampling: Sampling) -> list[Group]:
        """One attempt of each task beside the training, for evaluation: nothing is admitted or dropped."""
        ...
