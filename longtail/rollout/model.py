"""The policy as one attempt sees it: token-exact conversations over the Engine port, each call recorded.

Not the engine and not a gateway. What the model sampled is kept in its own ids; only what the environment says is
rendered. A request that extends the conversation continues its exact ids; one that rewrites history starts a new row.
A reply that the time limit cuts is recorded as far as it went: it is trained like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from longtail.errors import ContextFull, EngineError, InfrastructureError, LimitReached
from longtail.ports import Clock, Engine, Renderer, Tracer
from longtail.rollout.limit import TimeLimit
from longtail.rollout.record import Recorder
from longtail.types import Completion, Finish, GenerateRequest, Limits, Message, ModelCall, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """The assistant's answer as text, and the engine's record of it."""

    message: Message
    completion: Completion


@dataclass(slots=True, kw_only=True)
class _Conversation:
    messages: list[Message]
    ids: tuple[int, ...]
    ended: bool  # the last reply ended with a stop token


class RecordedModel:
    """Implements ports.Model. Raises LimitReached when a limit of the task forbids a call or ends it."""

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: Renderer,
        recorder: Recorder,
        trace: Tracer,
        clock: Clock,
        sampling: Sampling,
        limits: Limits,
        time_limit: TimeLimit,
        seed: int,
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._recorder = recorder
        self._trace = trace
        self._clock = clock
        self._sampling = sampling
        self._limits = limits
        self._time_limit = time_limit
        self._seed = seed
        self._started = 0  # calls; each has its own key and seed, also when several run at once
        self._rows: list[tuple[int, tuple[int, ...]]] = []  # (index of a ModelCall, its prompt + reply)
        self._conversation: _Conversation | None = None

    async def chat(self, messages: Sequence[Message], sampling: Sampling | None = None) -> ChatReply:
        said = self._conversation
        if said is not None and list(messages[: len(said.messages)]) == said.messages:
            ids = said.ids + self._renderer.more(messages[len(said.messages) :], ended=said.ended)
        else:
            ids = self._renderer.start(messages)
        completion = await self.generate(ids, sampling)
        reply = Message(role="assistant", content=self._renderer.text(completion.ids))
        self._conversation = _Conversation(
            messages=[*messages, reply], ids=ids + completion.ids, ended=completion.finish is Finish.STOP
        )
        return ChatReply(message=reply, completion=completion)

    async def generate(self, ids: Sequence[int], sampling: Sampling | None = None) -> Completion:
        ids = tuple(ids)
        number = self._started
        request = GenerateRequest(
            key=f"{self._recorder.trajectory_id}/{number}",
            ids=ids,
            sampling=self._within_limits(len(ids), sampling or self._sampling),
            seed=derive_seed(self._seed, number),
            seconds=self._time_limit.left(),
        )
        self._started += 1
        started = self._clock.now()
        with self._trace.busy("sample"), self._time_limit.waiting() as wait:
            completion = await self._sample(request)
            wait.end = wait.start + completion.queue_s
        late = completion.finish is Finish.CANCELLED
        if len(completion.ids) != len(completion.logprobs) or not (completion.ids or late):
            raise EngineError(f"the engine returned {len(completion.ids)} ids for request {request.key}, expected some")
        if completion.ids:
            await self._record(request, completion, started)
        if late:
            raise self._time_limit.reached()
        return completion

    async def _record(self, request: GenerateRequest, completion: Completion, started: float) -> None:
        parent, known = self._longest_prefix(request.ids)
        call = ModelCall(
            index=self._recorder.next_index,
            parent=parent,
            delta_ids=request.ids[known:],
            completion=completion,
            temperature=request.sampling.temperature or 1.0,  # a greedy reply is top_k = 1 at temperature 1
            started_s=started,
            ended_s=self._clock.now(),
        )
        await self._recorder.model_call(call)
        self._rows.append((call.index, request.ids + completion.ids))

    async def _sample(self, request: GenerateRequest) -> Completion:
        """The engine keeps the time: here nobody can tell its queue from its work. When it hangs, the deadline of the
        attempt ends the wait, and the time is not the policy's."""
        try:
            return await self._engine.generate(request)
        except ContextFull as error:
            raise LimitReached("context limit of the engine") from error
        except asyncio.CancelledError:
            with suppress(InfrastructureError):
                await self._engine.cancel(request.key)  # nobody waits for it any more
            raise

    def _within_limits(self, prompt: int, sampling: Sampling) -> Sampling:
        limits = self._limits
        if self._started >= limits.turns:
            raise LimitReached(f"turn limit of {limits.turns}")
        if prompt >= limits.tokens:
            raise LimitReached(f"token limit of {limits.tokens}")
        return replace(
            sampling,
            max_tokens=min(sampling.max_tokens, limits.tokens - prompt),
            stop_ids=sampling.stop_ids or self._renderer.stop_ids,
        )

    def _longest_prefix(self, ids: tuple[int, ...]) -> tuple[int | None, int]:
        best: tuple[int | None, int] = (None, 0)
        for index, row in self._rows:
            if best[1] < len(row) <= len(ids) and ids[: len(row)] == row:
                best = (index, len(row))
        return best


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from anything printable; equal parts, equal seed, on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
