"""Which sequences run, and what each forward pass computes. Owned by the engine's thread; no locks.

    submit -> waiting -> running, over pages of its own and of the prefix cache -> finished
                 |          ^
                 '----------'  a prompt whose prefix is being computed right now waits, then finds it in the cache

A pass takes one token of every decoding sequence and fills up with prompt tokens, first come first served.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from longtail.config import EngineConfig
from longtail.engines.attention import Chunk
from longtail.engines.pages import PagePool, Running, pages_for
from longtail.engines.passes import Pass
from longtail.engines.prefix import PrefixCache, common_prefix
from longtail.models.forward import Forward
from longtail.types import Completion, EngineStats, Finish, GenerateRequest

WORTH_WAITING = 16  # tokens of a prefix being computed that make another prompt wait for it


class Scheduler:
    def __init__(self, forward: Forward, config: EngineConfig) -> None:
        self.version = 0
        self._forward = forward
        self._config = config
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []
        self._pool = PagePool(forward.shape, forward.device)
        self._cache = PrefixCache(config.cache_tokens, self._pool)
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

    def submit(self, request: GenerateRequest, limit: int, submitted_s: float) -> None:
        """Queue a request for at most `limit` tokens of prompt and reply."""
        table = np.zeros(pages_for(limit), np.int32)
        self._waiting.append(
            Running(request=request, ids=list(request.ids), limit=limit, submitted_s=submitted_s, table=table)
        )

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
                sequence.reserve(sequence.computed + count, self._pool)
                chunks.append(Chunk(sequence=sequence, count=count))
        return Pass(chunks, self._pool, self._forward.shape.head_dim, self._forward.rows)

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

    def expire(self) -> list[tuple[str, Completion]]:
        """End the replies that have run for as long as they may; returns them by key."""
        now = time.monotonic()
        begun = [sequence for sequence in self._running if sequence.versions]  # a row to train has a token
        late = [sequence for sequence in begun if now - sequence.started_s >= sequence.request.seconds]
        return [(sequence.request.key, self._finish(sequence, Finish.CANCELLED)) for sequence in late]

    def forget(self, sequences: Sequence[Running]) -> None:
        """Drop sequences whose numbers are not finite, and what the cache may have taken from them."""
        if not sequences:
            return
        self._cache.clear()
        for sequence in sequences:
            self._running.remove(sequence)
            sequence.release(self._pool, wipe=True)

    def new_weights(self, version: int) -> None:
        """Later passes use other weights. Replies go on over their old keys and values; prompts start again."""
        self.version = version
        self._cache.clear()
        for sequence in self._running:
            sequence.version = -1
            if not sequence.versions:
                sequence.release(self._pool)
                sequence.cached = 0
                sequence.version = version

    def _admit(self) -> None:
        deferred: list[Running] = []
        while self._waiting and len(self._running) < self._config.max_running:
            sequence = self._waiting.popleft()
            match = self._cache.match(sequence.ids[:-1])  # the last token is computed: its logits are wanted
            if self._cache.enabled and self._prefix_underway(sequence) >= match.tokens + WORTH_WAITING:
                deferred.append(sequence)
                continue
            for page in match.pages:
                self._pool.share(page)
                sequence.add(page)
            if match.partial >= 0:
                sequence.add(self._pool.copy(match.partial))
            sequence.started_s = time.monotonic()
            sequence.computed = sequence.cached = match.tokens
            sequence.version = self.version
            self._running.append(sequence)
            self._prompt_tokens += len(sequence.ids)
            self._cached_tokens += match.tokens
        self._waiting.extendleft(reversed(deferred))

    def _prefix_underway(self, sequence: Running) -> int:
        """Leading ids shared with a prompt that is being computed."""
        underway = [other for other in self._running if not other.versions]
        if not underway:
            return 0
        return max(common_prefix(sequence.ids[:-1], other.ids) for other in underway)

    def _remember(self, sequence: Running) -> None:
        """Keep what has keys and values of the present weights alone."""
        if sequence.version == self.version:
            pages = sequence.table[: pages_for(sequence.computed)].tolist()
            self._cache.insert(sequence.ids[: sequence.computed], pages)

    def _finish(self, sequence: Running, finish: Finish) -> Completion:
        self._remember(sequence)
        self._running.remove(sequence)
        sequence.release(self._pool)
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
