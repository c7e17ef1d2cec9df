"""Which sequences run, and what each forward pass computes. Owned by the engine's thread; no locks.

    submit -> waiting -> (row in a pool, cached prefix copied in) running -> finished
                 |                                 ^
                 '-- a prompt whose prefix is being computed right now waits for it, then finds it in the cache

A pass takes one token of every decoding sequence and fills up with prompt tokens, first come first served.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from longtail.config import EngineConfig
from longtail.engines.passes import Chunk, Pass
from longtail.engines.pools import Pools, Running
from longtail.engines.prefix import PrefixCache, common_prefix
from longtail.models.forward import ModelShape
from longtail.types import Completion, EngineStats, Finish

WORTH_WAITING = 16  # tokens of a prefix being computed that make another prompt wait for it
ROOM = 32  # tokens of reply that a fresh row has room for, at least


class Scheduler:
    def __init__(self, shape: ModelShape, config: EngineConfig, device: torch.device) -> None:
        self.version = 0
        self._shape = shape
        self._config = config
        self._device = device
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []
        self._pools = Pools(shape, device)
        self._cache = PrefixCache(config.cache_tokens)
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._running)

    def stats(self, busy_s: float) -> EngineStats:
        return EngineStats(
            version=self.version,
            running=len(self._running),
            waiting=len(self._waiting),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            busy_s=busy_s,
        )

    def submit(self, sequence: Running) -> None:
        self._waiting.append(sequence)

    def next_pass(self) -> Pass:
        """The next tokens of the running sequences. Call only when not idle."""
        self._admit()
        chunks: list[Chunk] = []
        budget = self._config.prefill_tokens
        for sequence in self._running:
            count = sequence.pending
            if count > 1:
                count = min(count, budget)
                budget -= count
            if count:
                self._pools.reserve(sequence, sequence.computed + count)
                chunks.append(Chunk(sequence=sequence, count=count))
        return Pass(chunks, self._shape.kv_heads, self._device)

    def advance(self, work: Pass) -> None:
        """Count what a pass computed, and keep prompts that are complete."""
        for chunk in work.chunks:
            chunk.sequence.computed += chunk.count
        for sequence in work.finishing:
            if not sequence.versions:
                self._remember(sequence)

    def append(self, sequence: Running, token: int, logprob: float, log_mass: float) -> Completion | None:
        """Record a sampled token; returns the reply when it ended."""
        sequence.ids.append(token)
        sequence.logprobs.append(logprob)
        sequence.log_mass.append(log_mass)
        sequence.versions.append(self.version)
        self._output_tokens += 1
        if token in sequence.request.sampling.stop_ids:
            return self._finish(sequence, Finish.STOP)
        if len(sequence.ids) >= sequence.limit:
            return self._finish(sequence, Finish.LENGTH)
        return None

    def cancel(self, key: str) -> Completion | None:
        for sequence in self._waiting:
            if sequence.request.key == key:
                self._waiting.remove(sequence)
                return _completion(sequence, Finish.CANCELLED)
        for sequence in self._running:
            if sequence.request.key == key:
                return self._finish(sequence, Finish.CANCELLED)
        return None

    def forget(self, sequences: Sequence[Running]) -> None:
        """Drop sequences whose numbers are not finite, and what the cache may have taken from them."""
        for sequence in sequences:
            self._running.remove(sequence)
            self._pools.release(sequence, wipe=True)
        if sequences:
            self._cache.clear()

    def new_weights(self, version: int) -> None:
        """Later passes use other weights. Replies go on over their old keys and values; prompts start again."""
        self.version = version
        self._cache.clear()
        for sequence in self._running:
            sequence.version = -1
            if not sequence.versions:
                sequence.computed = sequence.cached = 0
                sequence.version = version

    def _admit(self) -> None:
        kept: list[Running] = []
        while self._waiting and len(self._running) < self._config.max_running:
            sequence = self._waiting.popleft()
            pieces = self._cache.match(sequence.ids, len(sequence.ids) - 1)
            cached = sum(piece.shape[2] for piece in pieces)
            if self._cache.enabled and self._prefix_underway(sequence) >= cached + WORTH_WAITING:
                kept.append(sequence)
                continue
            self._start(sequence, cached)
            at = 0
            for piece in pieces:
                assert sequence.pool is not None
                sequence.pool.kv_ARJLE[:, sequence.row, :, at : at + piece.shape[2]] = piece
                at += piece.shape[2]
        self._waiting.extendleft(reversed(kept))

    def _start(self, sequence: Running, cached: int) -> None:
        room = min(sequence.limit, len(sequence.ids) + ROOM)
        self._pools.reserve(sequence, room)
        sequence.started_s = time.monotonic()
        sequence.computed = sequence.cached = cached
        sequence.version = self.version
        self._running.append(sequence)
        self._prompt_tokens += len(sequence.ids)
        self._cached_tokens += cached

    def _prefix_underway(self, sequence: Running) -> int:
        """Leading ids shared with a prompt that is being computed."""
        underway = [other for other in self._running if not other.versions]
        if not underway:
            return 0
        ids = np.asarray(sequence.ids[:-1], np.int64)
        return max(common_prefix(ids, np.asarray(other.ids, np.int64)) for other in underway)

    def _remember(self, sequence: Running) -> None:
        """Keep what has keys and values of the present weights alone."""
        if sequence.version == self.version and sequence.pool is not None:
            pool, row = sequence.pool, sequence.row
            self._cache.insert(sequence.ids[: sequence.computed], lambda start, end: pool.read(row, start, end))

    def _finish(self, sequence: Running, finish: Finish) -> Completion:
        self._remember(sequence)
        self._running.remove(sequence)
        self._pools.release(sequence)
        return _completion(sequence, finish)


def _completion(sequence: Running, finish: Finish) -> Completion:
    now = time.monotonic()
    started = sequence.started_s or now
    return Completion(
        ids=tuple(sequence.ids[len(sequence.ids) - len(sequence.versions) :]),
        logprobs=tuple(sequence.logprobs),
        log_mass=tuple(sequence.log_mass),
        versions=tuple(sequence.versions),
        finish=finish,
        cached_tokens=sequence.cached,
        queue_s=started - sequence.submitted_s,
        run_s=now - started,
    )
