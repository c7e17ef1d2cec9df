"""The law of the local engine: sampled ids and logprobs are a bitwise function of (weights, prompt, sampling, seed)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longtail.config import EngineConfig
from longtail.engines.worker import Worker
from longtail.models.forward import Forward, open_forward
from longtail.models.native import native
from longtail.types import Completion, GenerateRequest, Sampling

VOCAB = 200


@pytest.fixture(scope="module", params=["llama", "llama-torch", "gpt2"])
def forward(request: pytest.FixtureRequest) -> Iterator[Forward]:
    """The fused pass with and without native code, and the generic pass."""
    name, _, without = request.param.partition("-")
    with pytest.MonkeyPatch.context() as patch:
        native.cache_clear()
        if without:
            patch.setenv("LONGTAIL_NATIVE", "0")
        yield open_forward(str(request.getfixturevalue(name)))  # attention asks native() in every pass
    native.cache_clear()


def run(
    forward: Forward, config: EngineConfig, arrivals: Sequence[tuple[int, GenerateRequest]]
) -> dict[str, Completion]:
    """Submit each request after its number of passes; returns the replies."""
    worker = Worker(forward, config)
    replies: dict[str, Completion] = {}
    waiting = sorted(arrivals, key=lambda arrival: arrival[0])
    clock = 0
    with torch.inference_mode():
        while waiting or not worker.idle:
            while waiting and waiting[0][0] <= clock:
                assert worker.submit(waiting.pop(0)[1], 0.0) == []
            if not worker.idle:
                for key, reply in worker.step():
                    assert isinstance(reply, Completion)
                    replies[key] = reply
            clock += 1
    return replies


def record(reply: Completion) -> tuple[object, ...]:
    return reply.ids, reply.logprobs, reply.log_mass


def prompt(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(length))


samplings = st.builds(
    Sampling,
    max_tokens=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.3]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    top_k=st.sampled_from([0, 1, 20]),
)
# few seeds, so that prompts share prefixes; lengths around the edges of attention's blocks
requests = st.builds(
    lambda seed, length, sampling: (prompt(seed, length), sampling, seed + length),
    st.integers(0, 2),
    st.one_of(st.integers(1, 60), st.sampled_from([150, 190, 193, 250, 380, 385, 460])),
    samplings,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted=requests,
    others=st.lists(st.tuples(st.integers(0, 30), requests), max_size=14),
    arrival=st.integers(0, 20),
    prefill=st.sampled_from([16, 33, 100, 2048]),
    cache=st.sampled_from([0, 300, 100_000]),
)
def test_a_reply_does_not_depend_on_what_runs_beside_it(forward, wanted, others, arrival, prefill, cache):
    ids, sampling, seed = wanted
    request = GenerateRequest(key="it", ids=ids, sampling=sampling, seed=seed)
    alone = run(forward, EngineConfig(cache_tokens=0), [(0, request)])["it"]
    crowd = [
        (start, GenerateRequest(key=str(index), ids=other[0], sampling=other[1], seed=other[2]))
        for index, (start, other) in enumerate(others)
    ]
    config = EngineConfig(max_running=8, prefill_tokens=prefill, cache_tokens=cache)
    beside = run(forward, config, [*crowd, (arrival, request)])["it"]
    assert record(beside) == record(alone)


def test_the_next_turn_is_the_same_from_the_cache_and_from_nothing(forward):
    """Keys and values of decoded tokens equal those of the same tokens read as a prompt."""
    worker = Worker(forward, EngineConfig())
    ids = prompt(5, 100)
    with torch.inference_mode():
        for turn in range(4):
            request = GenerateRequest(key=str(turn), ids=ids, sampling=Sampling(max_tokens=60), seed=turn)
            worker.submit(request, 0.0)
            ended = []
            while not worker.idle:
                ended += worker.step()
            reply = ended[0][1]
            assert isinstance(reply, Completion)
            fresh = run(forward, EngineConfig(cache_tokens=0), [(0, request)])[str(turn)]
            assert record(reply) == record(fresh)
            assert reply.cached_tokens == (0 if turn == 0 else len(ids) - 21)
            ids = ids + reply.ids + prompt(turn, 20)


def test_seeds_differ(forward):
    requests = [
        GenerateRequest(key=str(seed), ids=(1, 2, 3), sampling=Sampling(max_tokens=20), seed=seed) for seed in range(8)
    ]
    replies = run(forward, EngineConfig(), [(0, request) for request in requests])
    assert len({reply.ids for reply in replies.values()}) == 8
    again = run(forward, EngineConfig(), [(0, dataclasses.replace(request)) for request in reversed(requests)])
    assert {key: record(reply) for key, reply in again.items()} == {k: record(r) for k, r in replies.items()}
