"""What the engine's thread does, without the thread: take requests, run passes, hand out replies."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from longtail.config import EngineConfig
from longtail.engines.pages import Running
from longtail.engines.sampling import draw, uniforms
from longtail.engines.scheduler import Scheduler
from longtail.errors import ContextFull, EngineError
from longtail.models.forward import Forward
from longtail.types import Completion, EngineStats, GenerateRequest

Ended = tuple[str, Completion | EngineError]  # key of the request, and how it ended


class Worker:
    """Call under torch.inference_mode(), from one thread."""

    def __init__(self, forward: Forward, config: EngineConfig) -> None:
        longest = forward.shape.max_length
        self._max_length = min(config.max_length or longest, longest)
        self._forward = forward
        self._scheduler = Scheduler(forward, config)
        self._busy_s = 0.0

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    def submit(self, request: GenerateRequest, submitted_s: float) -> list[Ended]:
        """Queue a request; returns its refusal, if it is refused."""
        problem = _problem(request, self._forward.shape.vocab)
        if problem:
            return [(request.key, EngineError(f"request '{request.key}': {problem}"))]
        if len(request.ids) >= self._max_length:
            words = f"the prompt has {len(request.ids)} tokens and leaves no room for a reply in {self._max_length}"
            return [(request.key, ContextFull(f"request '{request.key}': {words}"))]
        limit = min(self._max_length, len(request.ids) + request.sampling.max_tokens)
        self._scheduler.submit(request, limit, submitted_s)
        return []

    def cancel(self, key: str) -> list[Ended]:
        completion = self._scheduler.cancel(key)
        return [(key, completion)] if completion else []

    def load(self, path: Path, weights: Mapping[str, Tensor], version: int) -> None:
        try:
            self._forward.load(weights)
        except ValueError as error:
            raise EngineError(f"weights {path} do not fit the model: {error}") from error
        self._scheduler.new_weights(version)

    def stats(self) -> EngineStats:
        return self._scheduler.stats(self._busy_s)

    def step(self) -> list[Ended]:
        """One forward pass. Call only when not idle."""
        started = time.monotonic()
        work = self._scheduler.next_pass()
        hidden_NW = self._forward.hidden(work.ids_N, work.positions_N, work)
        self._scheduler.advance(work)
        ended = self._sample(work.finishing, hidden_NW[work.rows_M]) if work.finishing else []
        ended += self._scheduler.expire()
        self._busy_s += time.monotonic() - started
        return ended

    def _sample(self, sequences: list[Running], hidden_MW: Tensor) -> list[Ended]:
        logits_MV = self._forward.logits(hidden_MW)[: len(sequences)]  # rows after them are padding
        samplings = [sequence.request.sampling for sequence in sequences]
        uniform_M = uniforms(
            [sequence.request.seed for sequence in sequences], [len(sequence.versions) for sequence in sequences]
        )
        drawn = draw(logits_MV, samplings, uniform_M)
        healthy = drawn.finite
        broken = [sequence for sequence, finite in zip(sequences, healthy, strict=True) if not finite]
        self._scheduler.forget(broken)
        ended: list[Ended] = [
            (sequence.request.key, EngineError(f"request '{sequence.request.key}': the model's logits are not finite"))
            for sequence in broken
        ]
        for index, sequence in enumerate(sequences):
            if healthy[index]:
                completion = self._scheduler.append(
                    sequence, drawn.ids[index], drawn.logprobs[index], drawn.log_mass[index]
                )
                if completion:
                    ended.append((sequence.request.key, completion))
        return ended


def _problem(request: GenerateRequest, vocab: int) -> str:
    """Why a request cannot be run; empty when it can."""
    sampling = request.sampling
    if not request.ids:
        return "the prompt is empty"
    if not 0 <= min(request.ids) <= max(request.ids) < vocab:
        return f"prompt ids must be in 0..{vocab - 1}, got {min(request.ids)}..{max(request.ids)}"
    if sampling.max_tokens < 1:
        return f"max_tokens must be at least 1, got {sampling.max_tokens}"
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature must be a number of at least 0, got {sampling.temperature}"
    if not 0 < sampling.top_p <= 1:
        return f"top_p must be above 0 and at most 1, got {sampling.top_p}"
    if sampling.top_k < 0:
        return f"top_k must be at least 0, got {sampling.top_k}"
    return ""
