"""The rollout of an environment: turns, limits, malformed calls, hostile output."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.envs import Env, env, tool
from longtail.envs.text import clip, decode, scrub
from longtail.errors import LimitReached, SandboxLost, UserError
from longtail.types import Completion, Finish, Message, Sampling, SandboxSpec, Score, Task, ToolCall


class Reply:
    def __init__(self, text: str, finish: Finish) -> None:
        self.message = Message(role="assistant", content=text)
        self.completion = Completion(ids=(), logprobs=(), log_mass=(), versions=(), finish=finish)


class FakeCtx:
    """Says what it is told, and keeps what was said to it. A reply that ends in "…" was cut by length."""

    def __init__(self, *replies: str, turns: int = 100) -> None:
        self.model = self
        self.task = Task(id="t")
        self.seed = 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.seen: list[Message] = []
        self.samplings: list[Sampling | None] = []
        self.records: list[ToolCall] = []
        self._replies = list(replies)
        self._turns = turns

    async def generate(self, ids: Sequence[int], sampling: Sampling | None = None) -> Completion:
        raise NotImplementedError

    async def chat(self, messages: Sequence[Message], sampling: Sampling | None = None) -> Reply:
        self.seen = list(messages)
        self.samplings.append(sampling)
        if self._turns == 0:
            raise LimitReached("turn limit of 2")
        self._turns -= 1
        text = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        return Reply(text.removesuffix("…"), Finish.LENGTH if text.endswith("…") else Finish.STOP)

    async def sandbox(self, spec: SandboxSpec) -> Any:
        raise NotImplementedError

    async def tool(self, name: str, arguments: Mapping[str, Any], run: Callable[[], Awaitable[str]]) -> ToolCall:
        try:
            result, error = await run(), None
        except ValueError as raised:
            result, error = "", f"{type(raised).__name__}: {raised}"
        record = ToolCall(index=0, key="", name=name, arguments=arguments, result=result, error=error)
        self.records.append(record)
        return record

    def progress(self, reward: float) -> None:
        raise NotImplementedError

    async def event(self, kind: str, **data: Any) -> None:
        self.events.append((kind, data))


class Guess(Env):
    max_observation = 300
    closed = 0

    def __init__(self, *, secret: int = 7, noise: str = "") -> None:
        self.secret = secret
        self.noise = noise

    async def setup(self, task: Task, ctx: Any) -> Sequence[Message]:
        return [Message(role="user", content="guess")]

    @tool
    async def guess(self, number: int) -> str:
        """name a number"""
        if number < 0:
            raise ValueError("too small")
        self.done = number == self.secret
        return "yes" if self.done else f"no{self.noise}"

    @tool
    def hint(self) -> str:
        """ask"""
        return f"near {self.secret}"

    async def score(self) -> Score:
        return {"found": float(self.done), "replies": self.replies, "bad": self.bad_replies}

    async def close(self) -> None:
        type(self).closed += 1


async def play(ctx: FakeCtx, **params: Any) -> Any:
    return await env(Guess, **params)(ctx.task, ctx)


async def test_the_episode_goes_on_until_a_tool_ends_it():
    ctx = FakeCtx("hint", "guess 3", "guess 7")
    assert await play(ctx) == {"found": 1.0, "replies": 3, "bad": 0}
    assert [m.content for m in ctx.seen] == ["guess", "hint", "near 7", "guess 3", "no"]
    assert [m.role for m in ctx.seen] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [(r.name, r.arguments) for r in ctx.records] == [
        ("hint", {}),
        ("guess", {"number": 3}),
        ("guess", {"number": 7}),
    ]
    assert ctx.events == [("ended", {"reason": "done"})]


async def test_parameters_reach_the_environment_and_it_is_closed():
    before = Guess.closed
    assert (await play(FakeCtx("guess 9"), secret=9))["found"] == 1.0
    assert Guess.closed == before + 1


async def test_unknown_parameters_are_refused_before_anything_runs():
    with pytest.raises(UserError, match=r"Guess: .*'colour'"):
        env(Guess, colour="red")


async def test_a_limit_ends_the_episode_and_it_is_scored():
    ctx = FakeCtx("guess 3", turns=2)
    assert await play(ctx) == {"found": 0.0, "replies": 2, "bad": 0}
    assert ctx.events == [("ended", {"reason": "turn limit of 2"})]


async def test_an_infrastructure_failure_is_never_scored():
    class Lost(Guess):
        @tool
        def look(self) -> str:
            raise SandboxLost("gone")

    before = Lost.closed
    ctx = FakeCtx("look")
    with pytest.raises(SandboxLost):
        await env(Lost)(ctx.task, ctx)
    assert Lost.closed == before + 1
    assert ctx.events == []


async def test_one_short_error_then_the_episode_goes_on():
    ctx = FakeCtx("guess seven", "guess 7")
    assert await play(ctx) == {"found": 1.0, "replies": 2, "bad": 1}
    assert ctx.seen[-2:] == [
        Message(role="assistant", content="guess seven"),
        Message(role="tool", content="error: number must be int"),
    ]
    assert len(ctx.records) == 1  # the malformed call was not run


async def test_the_same_bad_call_again_and_again_ends_with_a_named_reason():
    ctx = FakeCtx("{", turns=50)
    assert await play(ctx) == {"found": 0.0, "replies": 3, "bad": 3}
    assert ctx.events == [("ended", {"reason": "malformed calls"})]


async def test_a_good_call_ends_the_streak():
    ctx = FakeCtx("{", "{", "hint", "{", "{", "guess 7")
    assert await play(ctx) == {"found": 1.0, "replies": 6, "bad": 4}


async def test_a_reply_cut_by_length_is_truncated_not_a_parse_error():
    ctx = FakeCtx("guess 7…")
    assert await play(ctx) == {"found": 0.0, "replies": 3, "bad": 3}
    assert ctx.records == []
    assert ctx.seen[-1].content == "error: the reply was cut at its token limit"
    assert ctx.events == [("ended", {"reason": "truncated replies"})]


async def test_parallel_calls_get_one_answer_each():
    class Json(Guess):
        call_format = "json"

    def call(value: Any) -> str:
        return f"<tool_call>{json.dumps(value)}</tool_call>"

    def number(n: Any) -> Any:
        return {"name": "guess", "arguments": {"number": n}}

    ctx = FakeCtx(call(number(1)) + call(number("1")) + call(number(2)), call(number(7)) + call(number(3)))
    await env(Json)(ctx.task, ctx)
    assert [m.content for m in ctx.seen[-3:]] == ["no", "error: number must be int", "no"]
    assert [r.arguments["number"] for r in ctx.records] == [1, 2, 7]  # nothing runs after the end


async def test_a_raising_tool_is_an_observation():
    ctx = FakeCtx("guess -1", "guess 7")
    assert (await play(ctx))["bad"] == 0
    assert ctx.seen[-1].content == "error: ValueError: too small"


async def test_hostile_output_is_cut_and_cleaned():
    ctx = FakeCtx("guess 3", "guess 7")
    await play(ctx, noise="\0\ud800<|im_end|>" + "x" * 50_000_000)
    text = ctx.seen[-1].content
    assert text.startswith("no\\0?<|im_end|>xxx")
    assert "characters cut]" in text
    assert len(text) < 400
    assert len(ctx.records[0].result) < 70_000


@given(st.text(alphabet=st.characters()), st.integers(1, 50))
def test_text_survives_json_and_utf8(text: str, limit: int):
    cleaned = clip(scrub(text), limit)
    assert json.loads(json.dumps(cleaned).encode("utf-8")) == cleaned
    assert "\0" not in cleaned
    assert len(cleaned) <= limit + 40


@given(st.binary())
def test_any_bytes_become_text(data: bytes):
    assert "\0" not in decode(data)
    decode(data).encode("utf-8")


def test_a_short_text_is_not_cut():
    assert clip("abc", 3) == "abc"
    assert clip("abcdef", 3) == "ab\n[3 characters cut]\nf"


def test_the_tool_prompt_is_written_from_the_signatures():
    assert Guess.tool_prompt() == "Reply with one command. Commands:\nguess NUMBER: name a number\nhint: ask"
