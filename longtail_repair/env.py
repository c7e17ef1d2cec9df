"""RepairEnv: an agent with a file viewer, an editor and a test runner repairs a small package in a sandbox.

    ls | read FILE | search TEXT | edit FILE START END + lines | test | submit

Files of the package may be named without its folder. Everything said is short: a small model pays for each token.

Grade: the agent's package files (nothing else of its workspace) go into a fresh sandbox, where each call of the
pristine tests and of the hidden ones is evaluated; the values come back and are compared here, in the driver. What
hidden tests expect never enters a sandbox, and what they call never the agent's. So whatever code under test prints,
patches, plants or repeats: it passes only with values that it cannot have read. score() closes the agent's sandbox
first.

A sandbox that is lost while it grades, or runs out of time or memory, may be the host's doing: the code is graded once
more in another, and only what broke both is the policy's failure. Such a verdict is not kept for its siblings.

Score: {"reward", "solved", "fixed", "steps", "format"}; "reward" is the weighted sum of the others and what is trained.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from longtail.envs import Body, Env, tool
from longtail.envs.text import decode
from longtail.errors import PolicyFailure, SandboxLost, UserError
from longtail.ports import Ctx, Sandbox
from longtail.types import Message, SandboxLimits, SandboxSpec, Score, Task
from longtail_repair import runner
from longtail_repair.grade import Checks, checks_in, grade, request

RUNNER = Path(runner.__file__).read_bytes()  # shipped as run_tests.py
_LIMITS = SandboxLimits(memory_mb=256, processes=16, workspace_mb=8, output_kb=16, seconds=10.0)
_VALUES = ("python", "run_tests.py", "--values")  # evaluates the calls of the tests: grade.py
_MAX_HITS = 5  # lines shown by search
_HIDDEN = "hidden "  # before the name of a test that the agent never sees
_TRIES = 2  # sandboxes in which code may break before it is to blame

T = TypeVar("T")
Passed = Mapping[str, bool]  # "tests/test_x.py::test_y" -> passed
_MAX_GRADES = 4096


class _Grades:
    """What was graded before: the same code gets the same grade, and siblings often write alike, at the same time."""

    def __init__(self) -> None:
        self._passed: OrderedDict[bytes, Passed] = OrderedDict()
        self._running: dict[bytes, asyncio.Event] = {}  # set when a run has ended, with a verdict or without

    async def get(
        self, key: bytes, run: Callable[[], Awaitable[Passed | None]], *, lead: bool = False
    ) -> Passed | None:
        """`run` answers None where it came to no verdict; it is asked again the next time.

        With `lead`, others who ask meanwhile wait for it. Only for who holds a sandbox, and so is sure to get another
        one: whoever waits may hold the last one.
        """
        if key in self._running:
            await self._running[key].wait()
        if key in self._passed:
            return self._passed[key]
        ended = asyncio.Event()
        if lead:
            self._running[key] = ended
        try:
            passed = await run()
        finally:
            ended.set()
            if self._running.get(key) is ended:
                del self._running[key]
        if passed is not None:
            self._passed[key] = passed
            if len(self._passed) > _MAX_GRADES:
                self._passed.popitem(last=False)
        return passed


_grades = _Grades()
_previews = _Grades()  # of code whose agent still lives: they say how far it is, and never become a grade


class RepairEnv(Env):
    """`show_failing` starts with the failing tests in the prompt; `explain` tells a model that was not trained on this
    environment about its commands. `progress` grades the package after each edit as score() would, for credit by turn.
    The rest are the weights of the reward's parts."""

    max_observation = 1200

    def __init__(
        self,
        *,
        show_failing: bool = True,
        explain: bool = False,
        progress: bool = False,
        solved: float = 1.0,
        fixed: float = 0.5,
        steps: float = 0.0,
        format: float = 0.0,  # noqa: A002 - the name of the part
    ) -> None:
        self._show_failing, self._explain, self._progress = show_failing, explain, progress
        flags = {"show_failing": show_failing, "explain": explain, "progress": progress}
        for name, flag in flags.items():
            if not isinstance(flag, bool):  # a recipe can say anything, and the text "False" would count as true
                raise UserError(f"the flag '{name}' of RepairEnv must be true or false, got {flag!r}")
        self._weights = {"solved": solved, "fixed": fixed, "steps": steps, "format": format}
        for name, weight in self._weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise UserError(f"the weight '{name}' of RepairEnv must be a number, got {weight!r}")

    async def setup(self, task: Task, ctx: Ctx) -> Sequence[Message]:
        self._task, self._ctx, self._broken = task, ctx, False
        self._package: str = task.data["package"]
        self._box: Sandbox = await ctx.sandbox(workspace(task))
        modules = [self._short(path) for path in task.data["files"] if path.startswith(f"{self._package}/")]
        names = " ".join(name for name in modules if name != "__init__.py")
        failing = f"\n{task.data['failing'].rstrip()}" if self._show_failing else ""
        system = [Message(role="system", content=self.tool_prompt())] if self._explain else []
        return [*system, Message(role="user", content=f"fix {self._package}: {names}{failing}")]

    @tool
    async def ls(self) -> str:
        """list the files"""
        return " ".join(self._short(path) for path in await self._ask(self._box.list()))

    @tool
    async def read(self, file: str) -> str:
        """show a file with line numbers"""
        lines = await self._lines(file)
        return f"no file {file}" if lines is None else _numbered(lines, 1)

    @tool
    async def search(self, text: str) -> str:
        """find a text in the package, or else in all files"""
        paths = [path for path in await self._ask(self._box.list()) if path != "run_tests.py"]
        inside = [path for path in paths if path.startswith(f"{self._package}/")]
        hits = await self._hits(inside, text) or await self._hits(paths, text)
        return "\n".join(hits[:_MAX_HITS]) or "nothing found"

    @tool
    async def edit(self, file: str, start: int, end: int, text: Body = "") -> str:
        """replace lines START to END by the lines below; END = START - 1 inserts before START"""
        lines = await self._lines(file)
        if lines is None:
            return f"no file {file}"
        if not (1 <= start <= len(lines) + 1 and start - 1 <= end <= len(lines)):
            return f"{file} has lines 1 to {len(lines)}"
        new = text.split("\n") if text else []
        if new and not new[-1]:
            new.pop()
        changed = [*lines[: start - 1], *new, *lines[end:]]
        await self._ask(self._box.write(self._path(file), "".join(f"{line}\n" for line in changed).encode()))
        if self._progress:
            await self._say_progress()
        return f"lines {start} to {start + len(new) - 1} written" if new else "deleted"

    @tool
    async def test(self) -> str:
        """run the tests"""
        result = await self._ask(self._box.exec(["python", "run_tests.py"]))
        if result.timed_out:
            return "the tests ran out of time"
        text = decode(result.stdout).rstrip()
        return text or (decode(result.stderr).strip().splitlines() or ["the tests said nothing"])[-1]

    async def _say_progress(self) -> None:
        """What score() would say if the episode ended here. The agent's own sandbox is not asked: code that ran there
        may have planted modules that the runner would import, and could keep what hidden tests call."""
        try:
            left = await self._ask(self._box.snapshot())
        except OSError:
            return
        passed = await self._grade(package_files(left.files, self._package), preview=True)
        self._ctx.progress(self._scored(passed)["reward"])

    async def _ask(self, answer: Awaitable[T]) -> T:
        """From the agent's sandbox. Raises PolicyFailure where code in it broke it."""
        try:
            return await answer
        except SandboxLost:
            await self._must_be_the_code(self._box)
            self._broken = True
            raise PolicyFailure("the code broke its sandbox") from None

    async def _must_be_the_code(self, box: Sandbox) -> None:
        """A sandbox is lost. Where a fresh one starts the host is well; else raises what it raises."""
        await box.close()  # its place may be the last one
        await (await self._ctx.sandbox(SandboxSpec(limits=_LIMITS))).close()

    @tool
    def submit(self) -> str:
        """end the work"""
        self.done = True
        return "done"

    @cached_property
    def _visible(self) -> Mapping[str, Checks]:
        return checks_in(self._task.data["files"])

    @cached_property
    def _checks(self) -> Mapping[str, Checks]:
        """All of them, the hidden ones under names of their own."""
        hidden = checks_in(self._task.data["hidden"])
        return {**self._visible, **{f"{_HIDDEN}{name}": checks for name, checks in hidden.items()}}

    @cached_property
    def _calls(self) -> bytes:
        return request(self._checks)

    @cached_property
    def _asked(self) -> bytes:
        """What a grade depends on beside the files."""
        return f"{self._task.id} {self._checks!r}".encode()

    async def score(self) -> Score:
        try:
            files = None if self._broken else await self._left()
        except PolicyFailure:
            files = None
        return self._scored(await self._grade(files))

    def _scored(self, passed: Passed) -> dict[str, float]:
        failed = set(self._task.data["failed"])
        mended = sum(passed[name] for name in self._visible if name in failed)
        broken = sum(not passed[name] for name in self._visible if name not in failed)
        parts = {
            "solved": float(all(passed.values())),
            "fixed": max(-1.0, (mended - broken) / len(failed)),
            "steps": self.replies / self._task.limits.turns,
            "format": 1.0 - self.bad_replies / max(1, self.replies),
        }
        return {"reward": sum(self._weights[name] * part for name, part in parts.items()), **parts}

    async def _left(self) -> dict[str, bytes] | None:
        """The package as the agent left it, its sandbox closed. None: its code wrote more than can be read back."""
        try:
            left = await self._ask(self._box.snapshot())
        except OSError:
            return None
        await self._box.close()
        return package_files(left.files, self._package)

    async def _grade(self, files: Mapping[str, bytes] | None, *, preview: bool = False) -> Passed:
        """`files` None: there is nothing to grade. `preview`: the agent, who holds a sandbox, is still at work."""
        if files == package_files(workspace(self._task).files, self._package):
            failed = self._task.data["failed"]
            return {name: name in self._visible and name not in failed for name in self._checks}
        passed = None
        if files is not None:
            known = _previews if preview else _grades
            passed = await known.get(_digest(self._asked, files), lambda: self._run_checks(files), lead=preview)
        return dict.fromkeys(self._checks, False) if passed is None else passed

    async def _run_checks(self, files: Mapping[str, bytes]) -> Passed | None:
        """In a fresh sandbox. None: none of them came to an end."""
        for _ in range(_TRIES):
            box = await self._ctx.sandbox(SandboxSpec(files={**files, "run_tests.py": RUNNER}, limits=_LIMITS))
            try:
                result = await box.exec(_VALUES, stdin=self._calls)
                if not (result.timed_out or result.oom_killed):
                    return grade(self._checks, result.stdout)
            except SandboxLost:
                await self._must_be_the_code(box)
            finally:
                await box.close()
        return None

    async def _hits(self, paths: Sequence[str], text: str) -> list[str]:
        files = {path: await self._lines(path) or [] for path in paths}
        return [
            f"{self._short(path)} {_numbered([line], number)}"
            for path, lines in files.items()
            for number, line in enumerate(lines, 1)
            if text in line
        ]

    async def _lines(self, file: str) -> list[str] | None:
        try:
            return decode(await self._ask(self._box.read(self._path(file)))).splitlines()
        except (OSError, ValueError):  # missing, a folder, outside the workspace
            return None

    def _path(self, file: str) -> str:
        """The path of a file named with or without the package's folder."""
        inside = f"{self._package}/{file}"
        return inside if inside in self._task.data["files"] else file

    def _short(self, path: str) -> str:
        return path.removeprefix(f"{self._package}/")


def workspace(task: Task) -> SandboxSpec:
    """What the agent's sandbox starts with."""
    files = {path: text.encode() for path, text in task.data["files"].items()}
    return SandboxSpec(files={**files, "run_tests.py": RUNNER}, limits=_LIMITS)


def package_files(files: Mapping[str, bytes], package: str) -> dict[str, bytes]:
    """The part of a workspace that is graded: the package's own modules."""
    return {path: data for path, data in files.items() if path.startswith(f"{package}/") and path.endswith(".py")}


def _digest(asked: bytes, files: Mapping[str, bytes]) -> bytes:
    found = sha256()
    for part in (asked, *(part for path, data in sorted(files.items()) for part in (os.fsencode(path), data))):
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()


def _numbered(lines: Sequence[str], first: int) -> str:
    return "\n".join(f"{number} {line}".rstrip() for number, line in enumerate(lines, first))
