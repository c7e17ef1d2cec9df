"""The first front door: a reward function of TRL's signature becomes a single-turn RolloutFn.

    f(prompts, completions, **columns) -> list[float | None], sync or async

Episodes that finish in the same moment of the event loop are scored in one call. A sync function runs in a thread of
its own, one call at a time, as it would in TRL; an async one may run several batches at once. A function that raises,
returns the wrong count or a number that is not finite is a TaskError of the episodes in that batch, never a zero.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, SupportsFloat

from longtail.envs.functions import is_async, signature_of
from longtail.errors import LongtailError, TaskError, UserError, deciding
from longtail.ports import Ctx, RolloutFn
from longtail.types import Json, Message, Score, Task

RewardFunction = Callable[..., Any]


def reward(function: RewardFunction, *, max_batch: int = 256, conversational: bool | None = None) -> RolloutFn:
    """The RolloutFn that asks the policy once and scores its answer with `function`.

    `conversational` says whether the function gets lists of message dicts or strings; None: a prompt of one user
    message is plain text, anything else a conversation.
    """
    if max_batch < 1:
        raise UserError(f"reward: max_batch must be at least 1, got {max_batch}")
    batcher = _Batcher(function, max_batch)

    async def rollout(task: Task, ctx: Ctx) -> Score:
        reply = await ctx.model.chat(task.prompt)
        chat = _is_conversation(task.prompt) if conversational is None else conversational
        case = _Case(
            prompt=[_as_dict(m) for m in task.prompt] if chat else "\n".join(m.content for m in task.prompt),
            completion=[_as_dict(reply.message)] if chat else reply.message.content,
            ids=list(reply.completion.ids),
            columns=task.data,
        )
        return await batcher.score(case)

    rollout.__qualname__ = rollout.__name__ = f"reward({batcher.name})"
    rollout.__longtail_check__ = batcher.check  # pyright: ignore[reportFunctionMemberAccess]
    rollout.__longtail_sandbox__ = False  # pyright: ignore[reportFunctionMemberAccess] it never asks for one
    return rollout


def _is_conversation(prompt: Sequence[Message]) -> bool:
    return [m.role for m in prompt] != ["user"]


def _as_dict(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    prompt: str | list[dict[str, str]]
    completion: str | list[dict[str, str]]
    ids: list[int]
    columns: Mapping[str, Json]

    @property
    def shape(self) -> tuple[bool, tuple[str, ...]]:
        """Cases of one shape may share a call: every column has a value for each of them."""
        return isinstance(self.prompt, str), tuple(sorted(self.columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    case: _Case
    score: asyncio.Future[float | None]


class _Batcher:
    """Gathers single cases into calls of the reward function."""

    def __init__(self, function: RewardFunction, max_batch: int) -> None:
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._max_batch = max_batch
        self._is_async = is_async(function)
        self._accepts = _accepted(function)
        self._thread = _Thread(f"reward-{self.name}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly

    async def score(self, case: _Case) -> float | None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what waits on a loop that is gone has nobody left to read it
            self._loop, self._waiting = loop, []
        if not self._waiting:
            loop.call_soon(self._flush)
        waiting = _Waiting(case=case, score=loop.create_future())
        self._waiting.append(waiting)
        return await waiting.score

    def check(self, task: Task) -> None:
        """Raises UserError when the function cannot be called with a task's columns."""
        names = {"prompts", "completions", "completion_ids", *task.data}
        try:
            inspect.signature(self._function).bind(**dict.fromkeys(n for n in names if self._takes(n)))
        except TypeError as error:
            raise UserError(
                f"reward function {self.name}: {error}; it is called with {', '.join(sorted(names))}"
            ) from None

    def _takes(self, name: str) -> bool:
        return self._accepts is None or name in self._accepts

    def _flush(self) -> None:
        shapes: dict[Any, list[_Waiting]] = {}
        for waiting in self._waiting:
            shapes.setdefault(waiting.case.shape, []).append(waiting)
        self._waiting = []
        for group in shapes.values():
            for start in range(0, len(group), self._max_batch):
                task = asyncio.ensure_future(self._deliver(group[start : start + self._max_batch]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _deliver(self, batch: Sequence[_Waiting]) -> None:
        try:
            scores = self._check(await self._call([w.case for w in batch]), len(batch))
        except Exception as error:  # whatever it is: the episodes wait
            scores = [self._fault(error)] * len(batch)
        for waiting, score in zip(batch, scores, strict=True):
            if waiting.score.done():  # its episode was cancelled
                continue
            if isinstance(score, LongtailError):
                waiting.score.set_exception(score)
            else:
                waiting.score.set_result(score)

    async def _call(self, cases: Sequence[_Case]) -> Any:
        columns: dict[str, Any] = {name: [case.columns[name] for case in cases] for name in cases[0].columns}
        columns |= {
            "prompts": [case.prompt for case in cases],
            "completions": [case.completion for case in cases],
            "completion_ids": [case.ids for case in cases],
        }
        columns = {name: column for name, column in columns.items() if self._takes(name)}
        if self._is_async:
            return await self._function(**columns)
        return await asyncio.wrap_future(self._thread.submit(lambda: self._in_thread(columns)))

    def _in_thread(self, columns: Mapping[str, Any]) -> Any:
        try:
            return self._function(**columns)
        except BaseException as error:  # StopIteration cannot pass a future, SystemExit should not
            raise self._fault(error) from error

    def _fault(self, error: BaseException) -> LongtailError:
        error = deciding(error)
        if isinstance(error, LongtailError):
            return error
        fault = TaskError(f"reward function {self.name} raised {type(error).__name__}: {error}")
        fault.__cause__ = error
        return fault

    def _check(self, scores: Any, count: int) -> list[float | LongtailError | None]:
        """One entry per case; a bad number fails its own episode alone."""
        try:
            listed = list(scores)
        except TypeError:
            raise TaskError(f"reward function {self.name} must return a list, got {type(scores).__name__}") from None
        if len(listed) != count:
            raise TaskError(f"reward function {self.name} must return {count} scores, got {len(listed)}")
        return [self._number(score) for score in listed]

    def _number(self, score: SupportsFloat | None) -> float | LongtailError | None:
        if score is None:
            return None
        try:
            number = float(score)
        except Exception:  # of its own __float__ too: a tensor of two elements, an integer too large
            return TaskError(f"reward function {self.name} must return numbers or None, got {score!r:.50}")
        if not math.isfinite(number):
            return TaskError(f"reward function {self.name} returned {number}")
        return number


class _Thread:
    """Makes calls one after another in a daemon thread: one that hangs does not hold up the interpreter's exit."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        if self._thread.ident is None:
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return future

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


def _accepted(function: RewardFunction) -> frozenset[str] | None:
    """The keyword names the function takes; None: any."""
    parameters = signature_of(function, "reward").parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)
