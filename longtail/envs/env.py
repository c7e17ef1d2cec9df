"""The second front door: an environment whose methods are tools becomes a RolloutFn.

    chat -> the reply names a call -> run it through ctx.tool -> its text is the next observation -> chat ...

until a tool sets `self.done`, a limit is reached, or `max_bad_replies` replies in a row make no sense. Then score() is
asked. What a reply looks like is in calls.py; the sandbox, the model and the record are behind ctx.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from longtail.envs.calls import CallError, Format, Tool, ToolRequest, describe, parse, tool_from
from longtail.envs.text import KEPT_CHARS, clip, scrub
from longtail.errors import PolicyFailure, UserError
from longtail.ports import Ctx, Reply, RolloutFn
from longtail.types import Finish, Message, Sampling, Score, Task

F = TypeVar("F", bound=Callable[..., Any])


def tool(function: F) -> F:
    """Mark a method as a tool: hinted parameters, a docstring for the model, returns str (sync or async)."""
    function.__longtail_tool__ = tool_from(function)  # pyright: ignore[reportFunctionMemberAccess]
    return function


class Env:
    """One episode. Subclass it, write setup(), tools and score(); the constructor takes the recipe's env params."""

    call_format: Format = "command"
    sampling: Sampling | None = None  # None: as the run says; else it holds in evaluations too
    max_bad_replies: int = 3  # malformed or truncated replies in a row that end the episode
    max_observation: int = 2000  # characters of one observation; more is cut in the middle

    # Kept by the rollout, for score() to read.
    done: bool = False  # a tool sets it to end the episode
    replies: int = 0
    bad_replies: int = 0  # of those, malformed or truncated
    ended: str = ""  # why: "done", a limit's message, "malformed calls", "truncated replies"

    async def setup(self, task: Task, ctx: Ctx) -> Sequence[Message]:
        """Prepare the episode and return the first prompt."""
        raise NotImplementedError

    async def score(self) -> Score:
        """Grade the episode, however it ended."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of what setup() took beyond ctx, which cleans up after itself."""

    @classmethod
    def tools(cls) -> dict[str, Tool]:
        """The tools of the class by name, base classes first."""
        found: dict[str, Tool] = {}
        for base in reversed(cls.__mro__):
            for name, member in vars(base).items():
                mark = getattr(member, "__longtail_tool__", None)
                if isinstance(mark, Tool):
                    found[name] = mark
        return found

    @classmethod
    def tool_prompt(cls) -> str:
        """The tools as text for a system prompt."""
        return describe(list(cls.tools().values()), cls.call_format)


def env(environment: type[Env], **params: Any) -> RolloutFn:
    """The RolloutFn of an environment class. Raises UserError when it cannot be built with these params."""
    tools = environment.tools()
    if not tools:
        raise UserError(f"{environment.__name__} has no @tool method; a single-turn task wants reward() instead")
    if missing := [name for name in ("setup", "score") if getattr(environment, name) is getattr(Env, name)]:
        raise UserError(f"{environment.__name__} has no {' and no '.join(missing)}; an environment defines both")
    try:
        inspect.signature(environment).bind(**params)
    except TypeError as error:
        raise UserError(f"{environment.__name__}: {error}") from None

    async def rollout(task: Task, ctx: Ctx) -> Score:
        episode = environment(**params)
        try:
            messages = list(await episode.setup(task, ctx))
            episode.ended = await _converse(episode, tools, messages, ctx)
            await ctx.event("ended", reason=episode.ended)
            return await episode.score()
        finally:
            await episode.close()

    rollout.__qualname__ = rollout.__name__ = f"env({environment.__name__})"
    rollout.__longtail_roles__ = ("user", "tool")  # pyright: ignore[reportFunctionMemberAccess] what it says to the policy
    return rollout


async def _converse(episode: Env, tools: Mapping[str, Tool], messages: list[Message], ctx: Ctx) -> str:
    """Talk until the episode ends; returns why."""
    bad_in_a_row = 0
    try:
        while True:
            reply = await ctx.model.chat(messages, episode.sampling)
            episode.replies += 1
            messages.append(reply.message)
            problem = ""
            for call in _calls(reply, tools, episode.call_format):
                if isinstance(call, CallError):
                    problem, text = call.message, f"error: {call.message}"
                else:
                    text = await _run(episode, call, ctx)
                messages.append(Message(role="tool", content=clip(text, episode.max_observation)))
                if episode.done:
                    return "done"
            bad_in_a_row = bad_in_a_row + 1 if problem else 0
            episode.bad_replies += bool(problem)
            if bad_in_a_row >= episode.max_bad_replies:
                return "truncated replies" if problem == _TRUNCATED.message else "malformed calls"
    except PolicyFailure as failure:
        return str(failure) or type(failure).__name__


_TRUNCATED = CallError(message="the reply was cut at its token limit")


def _calls(reply: Reply, tools: Mapping[str, Tool], form: Format) -> tuple[ToolRequest | CallError, ...]:
    """The reply's calls; a reply cut by length is never parsed: half a call is not a call."""
    if reply.completion.finish is Finish.LENGTH:
        return (_TRUNCATED,)
    return parse(reply.message.content, tools, form)


async def _run(episode: Env, call: ToolRequest, ctx: Ctx) -> str:
    """Run one call on the record; its text, or what went wrong with it."""
    record = await ctx.tool(call.name, call.arguments, functools.partial(_invoke, episode, call))
    return scrub(record.result if record.error is None else f"error: {record.error}")


async def _invoke(episode: Env, call: ToolRequest) -> str:
    result: str | Awaitable[str] = getattr(episode, call.name)(**call.arguments)
    text = await result if inspect.isawaitable(result) else result
    return clip(scrub(text), KEPT_CHARS)
