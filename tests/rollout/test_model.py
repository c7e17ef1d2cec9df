"""Token-exact conversations and limits."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.errors import LimitReached
from longtail.fakes import END, MemoryJournal, NoTrace, ScriptedEngine, ToyRenderer, VirtualClock
from longtail.rollout.limit import TimeLimit, covered
from longtail.rollout.model import RecordedModel, derive_seed
from longtail.rollout.record import Recorder
from longtail.types import Limits, Message, Sampling


def model_saying(*replies: str, limits: Limits | None = None, max_tokens: int = 64):
    recorder = Recorder("g0.0.0", MemoryJournal())
    engine = ScriptedEngine(replies)
    clock = VirtualClock()
    limits = limits or Limits()
    model = RecordedModel(
        engine=engine,
        renderer=ToyRenderer(),
        recorder=recorder,
        trace=NoTrace(),
        clock=clock,
        sampling=Sampling(max_tokens=max_tokens),
        limits=limits,
        time_limit=TimeLimit(clock, limits.seconds),
        seed=7,
    )
    return model, engine, recorder


def user(text: str) -> Message:
    return Message(role="user", content=text)


async def test_the_second_turn_continues_the_exact_ids_of_the_first():
    model, engine, recorder = model_saying("hello", "bye")
    said = [user("hi")]
    reply = await model.chat(said)
    said += [reply.message, Message(role="tool", content="42")]
    await model.chat(said)
    first, second = engine.requests
    assert second.ids[: len(first.ids) + 6] == first.ids + reply.completion.ids
    calls = recorder.calls
    assert calls[1].parent == 0
    assert ToyRenderer().text(calls[1].delta_ids) == "42"


async def test_rewritten_history_starts_a_new_row_with_the_prompt_that_the_engine_saw():
    model, engine, recorder = model_saying("hello", "bye")
    await model.chat([user("hi")])
    await model.chat([user("a summary of what was said")])
    assert recorder.calls[1].parent is None
    assert recorder.calls[1].delta_ids == engine.requests[1].ids


async def test_a_reply_cut_by_length_is_closed_by_the_environment():
    model, engine, _ = model_saying("abcdef", "x", max_tokens=3)
    said = [user("hi")]
    reply = await model.chat(said)
    assert reply.message.content == "abc"
    await model.chat([*said, reply.message, user("go on")])
    start = len(engine.requests[0].ids)
    assert engine.requests[1].ids[start + 3] == END


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(turns=1), "turn limit of 1"),
        (Limits(tokens=12), "token limit of 12"),
        (Limits(seconds=0), "time limit of 0 s"),
    ],
)
async def test_a_reached_limit_says_which(limits: Limits, words: str):
    model, _, _ = model_saying("hello", "bye", limits=limits)

    async def two_turns() -> None:
        reply = await model.chat([user("hi")])
        await model.chat([user("hi"), reply.message, user("and then?")])

    with pytest.raises(LimitReached, match=words):
        await two_turns()


async def test_a_greedy_reply_is_recorded_with_the_temperature_of_its_logprobs():
    model, engine, recorder = model_saying("yes")
    await model.generate((5, 6), Sampling(temperature=0))
    assert engine.requests[0].sampling.temperature == 0
    assert recorder.calls[0].temperature == 1.0


async def test_calls_at_the_same_time_have_their_own_key_seed_and_prompt():
    model, engine, recorder = model_saying("yes", "no")
    await asyncio.gather(model.generate((5, 6)), model.generate((7, 8, 9)))
    assert [request.key for request in engine.requests] == ["g0.0.0/0", "g0.0.0/1"]
    assert engine.requests[0].seed != engine.requests[1].seed
    assert [(call.index, call.delta_ids) for call in recorder.calls] == [(0, (5, 6)), (1, (7, 8, 9))]
    assert [ToyRenderer().text(call.completion.ids) for call in recorder.calls] == ["yes", "no"]


async def test_calls_at_the_same_time_count_against_the_turn_limit():
    model, engine, _ = model_saying("yes", "no", "maybe", limits=Limits(turns=2))
    ends = await asyncio.gather(*(model.generate((5, 6)) for _ in range(3)), return_exceptions=True)
    assert [type(end) for end in ends][2] is LimitReached
    assert len(engine.requests) == 2


async def test_a_reply_shrinks_to_what_the_token_limit_leaves():
    model, engine, _ = model_saying("hello", limits=Limits(tokens=7))
    await model.chat([user("hi")])
    assert engine.requests[0].sampling.max_tokens == 7 - len(engine.requests[0].ids)


def test_seeds_differ_between_members_and_calls_and_stay_equal_between_runs():
    assert len({derive_seed(0, "t", 0, member) for member in range(100)}) == 100
    assert derive_seed(0, "t", 0, 1) == derive_seed(0, "t", 0, 1)


SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple), max_size=8)


@given(SPANS)
def test_a_second_that_several_spans_cover_counts_once(spans):
    assert covered(spans) == len({second for start, end in spans for second in range(start, end)})
