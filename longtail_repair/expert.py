"""Noisy experts: scripted episodes for the warm start, played through RepairEnv's own code.

The expert knows the bugs. It looks where the failures point, edits, tests, and makes mistakes as its habits say: wrong
edits, wrong files, work handed in untested or unfinished. The habits set how good the cloned policy is, and what
reinforcement learning has left to teach: to verify, to try again, to be accurate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from longtail.envs import env
from longtail.errors import LimitReached, UserError
from longtail.types import Completion, Finish, Json, Message, Sampling, SandboxSpec, Score, Task, ToolCall
from longtail_repair import runner
from longtail_repair.env import RepairEnv
from longtail_repair.memory import MemorySandbox
from longtail_repair.mutate import mutate
from longtail_repair.tasks import repair_tasks

Script = Generator[str, str, None]  # yields replies, is sent observations


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Probabilities of the expert's weaknesses and ways."""

    wrong: float = 0.25  # an edit is wrong: another plausible change of the function
    sloppy: float = 0.1  # submits without testing the last edits
    give_up: float = 0.1  # submits although the tests failed
    tries: int = 4  # rounds of repair before giving up
    lost: float = 0.1  # opens a file that has no bug first
    search: float = 0.05  # looks for the function although the tests told where it starts
    search_hidden: float = 0.8  # looks for the function when a test shows another one
    list: float = 0.03  # lists the files first
    test_first: float = 0.03  # runs the tests first
    test_each: float = 0.5  # tests after each edit, not only after the last
    reread: float = 0.15  # opens a file again before editing it again


def expert_chats(
    count: int,
    seed: int,
    *,
    noise: float = 1.0,
    split: str = "train",
    levels: Sequence[int] = (1, 2, 3),
    families: Sequence[str] = (),
    **habits: float,
) -> Iterator[list[Message]]:
    """`count` episodes of different tasks; `noise` multiplies all mistakes. Equal arguments, equal episodes."""
    for _, messages, _ in expert_episodes(
        count, seed, noise=noise, split=split, levels=levels, families=families, graded=False, **habits
    ):
        yield messages


def expert_episodes(
    count: int,
    seed: int,
    *,
    noise: float = 1.0,
    split: str = "train",
    levels: Sequence[int] = (1, 2, 3),
    families: Sequence[str] = (),
    graded: bool = True,
    **habits: float,
) -> Iterator[tuple[Task, list[Message], Score]]:
    """The same with their tasks and, if `graded`, their scores."""
    unknown = [name for name in habits if name not in {field.name for field in fields(Habits)}]
    if unknown:
        raise UserError(f"expert: no habit {unknown[0]!r}; there are {', '.join(f.name for f in fields(Habits))}")
    manner = _scaled(Habits(**habits), noise)  # pyright: ignore[reportArgumentType]
    rollout = env(RepairEnv if graded else _Ungraded)
    for index, task in enumerate(repair_tasks(split, count, seed, levels=levels, families=families)):
        ctx = _Stage(task, Random(f"expert/{seed}/{index}"), manner)
        score = _finish(rollout(task, ctx))
        yield task, ctx.messages, score


def _scaled(habits: Habits, noise: float) -> Habits:
    mistakes = ("wrong", "sloppy", "give_up", "lost")
    return replace(habits, **{name: min(1.0, getattr(habits, name) * noise) for name in mistakes})


class _Ungraded(RepairEnv):
    async def score(self) -> Score:
        return None


def _finish(episode: Awaitable[Score]) -> Score:
    """Run a coroutine that never waits for anything; an event loop would cost more than the episode."""
    try:
        episode.__await__().send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("an episode on the in-memory stage must not wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    message: Message
    completion: Completion


_SPOKEN = Completion(ids=(), logprobs=(), log_mass=(), versions=(), finish=Finish.STOP)


class _Stage:
    """The Ctx of a scripted episode; it is its own model."""

    def __init__(self, task: Task, rng: Random, habits: Habits) -> None:
        self.task = task
        self.seed = 0
        self.model = self
        self.messages: list[Message] = []
        self._rng = rng
        self._habits = habits
        self._script: Script | None = None
        self._box: MemorySandbox | None = None

    async def sandbox(self, spec: SandboxSpec) -> MemorySandbox:
        box = MemorySandbox(spec)
        self._box = self._box or box  # the first is the agent's, a later one is for grading
        return box

    async def tool(self, name: str, arguments: Mapping[str, Json], run: Callable[[], Awaitable[str]]) -> ToolCall:
        return ToolCall(index=0, key="", name=name, arguments=arguments, result=await run())

    def progress(self, reward: float) -> None:
        pass

    async def event(self, kind: str, **data: Json) -> None:
        pass

    async def generate(self, ids: Sequence[int], sampling: Sampling | None = None) -> Completion:
        raise NotImplementedError("the expert speaks text")

    async def chat(self, messages: Sequence[Message], sampling: Sampling | None = None) -> _Reply:
        assert self._box is not None
        if sum(message.role == "assistant" for message in messages) >= self.task.limits.turns:
            raise LimitReached("turn limit")
        try:
            if self._script is None:
                self._script = _Expert(self.task, self._box, self._rng, self._habits).play(messages[-1].content)
                text = next(self._script)
            else:
                text = self._script.send(messages[-1].content)
        except StopIteration:
            raise LimitReached("the script ended") from None
        reply = Message(role="assistant", content=text)
        self.messages = [*messages, reply]
        return _Reply(message=reply, completion=_SPOKEN)


class _Expert:
    """Decides what to say; sees the workspace and knows the original."""

    def __init__(self, task: Task, box: MemorySandbox, rng: Random, habits: Habits) -> None:
        self._data = task.data
        self._box = box
        self._rng = rng
        self._habits = habits
        self._bugs: list[dict[str, Any]] = list(task.data["bugs"])
        self._current: dict[str, str] = {bug["function"]: bug["source"] for bug in self._bugs}
        self._tried: set[str] = {source for bug in self._bugs for source in (bug["source"], bug["original"])}
        self._seen: set[str] = set()
        self._touched: set[str] = set()

    def play(self, prompt: str) -> Script:
        if self._chance(self._habits.list):
            yield "ls"
        if self._chance(self._habits.test_first):
            yield "test"
        output: str | None = prompt
        for _ in range(self._habits.tries):
            output = yield from self._round(self._pending(output), output)
            if output is None or output.startswith("all ") or self._chance(self._habits.give_up):
                break
        yield "submit"

    def _pending(self, output: str) -> list[dict[str, Any]]:
        """The bugs that tests still see, in the order in which the output names their files."""
        left = [bug for bug in self._bugs if self._current[bug["function"]] != bug["original"] and self._shows(bug)]
        return sorted(left, key=lambda bug: output.find(f" in {_short(bug['path'])}") % (len(output) + 1))

    def _shows(self, bug: dict[str, Any]) -> bool:
        """A wrong edit may pass all tests; there is no reason to touch it again."""
        current = self._current[bug["function"]]
        if current == bug["source"]:
            return True
        tests = {path: text for path, text in self._data["files"].items() if path.startswith("tests/")}
        changed = self._data["truth"][bug["path"]].replace(bug["original"], current)
        results = runner.run({**self._data["truth"], **tests, bug["path"]: changed}.get, sorted(tests))
        return any(failures for *_, failures in results)

    def _round(self, pending: Sequence[dict[str, Any]], output: str) -> Generator[str, str, str | None]:
        """Edit each pending bug; the last test output, or None when the last edits go untested."""
        tested: str | None = None
        for bug in pending:
            yield from self._find(bug, output)
            yield from self._edit(bug)
            tested = None
            if self._chance(self._habits.test_each):
                tested = output = yield "test"
                if output.startswith("all "):
                    return output
        if tested is None and not self._chance(self._habits.sloppy):
            tested = yield "test"
        return tested

    def _find(self, bug: dict[str, Any], output: str) -> Script:
        """Open the file of a bug, by way of the file where it shows."""
        path = bug["path"]
        others = [
            other for other in self._data["truth"] if other not in (path, *self._seen) and self._data["truth"][other]
        ]
        if path not in self._seen and others and self._chance(self._habits.lost):
            yield from self._open(self._rng.choice(others))
        pointed = [other for other in others if f" in {_short(other)}" in output]
        if path not in self._seen and f" in {_short(path)}" not in output and pointed:
            yield from self._open(pointed[0])
        told = f" in {_short(path)} line {self._start(bug)}\n" in f"{output}\n"
        if self._chance(self._habits.search if told else self._habits.search_hidden):
            yield f"search {bug['function']}"
        if path not in self._seen or (path in self._touched and self._chance(self._habits.reread)):
            yield from self._open(path)

    def _open(self, path: str) -> Script:
        self._seen.add(path)
        yield f"read {_short(path)}"

    def _edit(self, bug: dict[str, Any]) -> Script:
        """Write the function anew, in its original form or in a wrong one.

        A small model finds a bug best while it copies: at each token it asks only whether this one is right. To name
        the line first it would have to see the bug before it says anything.
        """
        path, name = bug["path"], bug["function"]
        target = (self._mistake(bug) if self._chance(self._habits.wrong) else None) or bug["original"]
        self._tried.add(target)
        start = self._start(bug)
        end = start + self._current[name].count("\n")
        self._current[name] = target
        self._touched.add(path)
        yield f"edit {_short(path)} {start} {end}\n{target}"

    def _start(self, bug: dict[str, Any]) -> int:
        """The function's first line."""
        before, _, _ = self._box.text(bug["path"]).partition(self._current[bug["function"]])
        return before.count("\n") + 1

    def _mistake(self, bug: dict[str, Any]) -> str | None:
        """A wrong version of the function one edit away: mostly a wrong repair, sometimes a change of another line."""
        current = self._current[bug["function"]]
        base = current if self._chance(0.25) else bug["original"]
        for _ in range(8):
            mutation = mutate(base, self._rng)
            if mutation is not None and mutation.source not in self._tried:
                return mutation.source
        return None

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability


def _short(path: str) -> str:
    return path.rpartition("/")[2]
