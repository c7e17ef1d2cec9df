"""A stage for repair episodes: a real process per run, no isolation, and a scripted policy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail.errors import LimitReached
from longtail.types import Completion, ExecResult, Finish, Message, SandboxSpec, Task, ToolCall


class ProcessBox:
    """A folder and real processes, as much of the Sandbox port as RepairEnv needs."""

    def __init__(self, spec: SandboxSpec, root: Path) -> None:
        self.spec, self.root, self.closed, self.runs = spec, root, False, []
        self.inputs: list[bytes] = []
        for path, data in spec.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)

    async def read(self, path: str, *, limit: int = 1 << 20) -> bytes:
        if path.startswith("/") or ".." in path:
            raise PermissionError(path)
        return (self.root / path).read_bytes()[:limit]

    async def write(self, path: str, data: bytes) -> None:
        (self.root / path).write_bytes(data)

    async def list(self, path: str = ".") -> list[str]:
        return sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file())

    async def exec(self, argv: Sequence[str], *, stdin: bytes = b"", **_: Any) -> ExecResult:
        assert not self.closed
        self.runs.append(list(argv))
        self.inputs.append(stdin)
        command = [sys.executable, *argv[1:]]
        done = await asyncio.to_thread(subprocess.run, command, cwd=self.root, input=stdin, capture_output=True)
        kept = self.spec.limits.output_kb << 10
        return ExecResult(exit_code=done.returncode, stdout=done.stdout[:kept], stderr=done.stderr[:kept])

    async def snapshot(self) -> SandboxSpec:
        return SandboxSpec(files={path: await self.read(path) for path in await self.list()}, limits=self.spec.limits)

    async def close(self) -> None:
        self.closed = True


class Reply:
    def __init__(self, text: str) -> None:
        self.message = Message(role="assistant", content=text)
        self.completion = Completion(ids=(), logprobs=(), log_mass=(), versions=(), finish=Finish.STOP)


class Stage:
    """A ctx whose policy says a script."""

    box: Callable[..., ProcessBox] = ProcessBox

    def __init__(self, task: Task, script: Sequence[str], root: Path) -> None:
        self.task, self.model, self.seed = task, self, 0
        self.boxes: list[ProcessBox] = []
        self.said: list[str] = []
        self.reason = ""
        self.progressed: list[float] = []
        self._script = list(script)
        self._root = root

    async def generate(self, ids: Any, sampling: Any = None) -> Completion:
        raise NotImplementedError

    async def chat(self, messages: Sequence[Message], sampling: Any = None) -> Reply:
        self.said = [m.content for m in messages]
        if not self._script:
            raise LimitReached("turn limit")
        return Reply(self._script.pop(0))

    async def sandbox(self, spec: SandboxSpec) -> Any:
        assert sum(not box.closed for box in self.boxes) <= 1, "an episode may hold one more than its own"
        root = self._root / str(len(self.boxes))
        root.mkdir()
        self.boxes.append(self.box(spec, root))
        return self.boxes[-1]

    async def tool(self, name: str, arguments: Mapping[str, Any], run: Callable[[], Awaitable[str]]) -> ToolCall:
        return ToolCall(index=0, key="", name=name, arguments=arguments, result=await run())

    def progress(self, reward: float) -> None:
        self.progressed.append(reward)

    async def event(self, kind: str, **data: Any) -> None:
        self.reason = data["reason"]
