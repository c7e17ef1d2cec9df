"""RepairEnv in the sandboxes that it is made for: a true repair is graded as one, and nowhere is it to be read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from repair_stage import Stage

from longtail.envs import env
from longtail.ports import Sandboxes
from longtail.sandboxes.bwrap import BwrapSandboxes
from longtail.sandboxes.probe import LevelReport, probe
from longtail.types import SandboxSpec, Task
from longtail_repair.env import RepairEnv, workspace
from longtail_repair.tasks import repair_tasks

TASK = repair_tasks("test", 3, 4, levels=(5,))[2]

# Reads all files that it can, and prints the needles that it finds and how many files it read.
GREP = """
import json, os, sys
asked = json.load(sys.stdin)
needles = {text.encode() for text in asked["needles"]}
found, count = set(), 0
for place in asked["places"]:
    for folder, _, names in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 4 << 20:
                    with open(path, "rb") as file: data = file.read()
                    count += 1
                    found |= {needle for needle in needles if needle in data}
            except OSError: pass
print(json.dumps([count, sorted(needle.decode() for needle in found)]))
"""
PLACES = [
    "/workspace",
    "/tmp",
    "/dev/shm",
    "/etc",
    "/home",
    "/root",
    "/srv",
    "/var",
    "/opt",
    "/usr/local",
    "/usr/lib/python3",
]


@cache
def bwrap_report() -> LevelReport:
    return probe()[0]


@pytest_asyncio.fixture
async def bwrap(tmp_path: Path) -> AsyncIterator[BwrapSandboxes]:
    report = await asyncio.to_thread(bwrap_report)
    if not report.works:
        pytest.skip(f"bwrap does not work here: {report.reason}; {report.fix}")
    made = BwrapSandboxes(tmp_path, 1)
    yield made
    await made.close()


class BwrapStage(Stage):
    def __init__(self, task: Task, script: list[str], sandboxes: Sandboxes) -> None:
        super().__init__(task, script, Path())
        self._sandboxes = sandboxes

    async def sandbox(self, spec: SandboxSpec) -> Any:
        self.boxes.append(await self._sandboxes.create(spec))
        return self.boxes[-1]

    async def run(self, **params: Any) -> Any:
        """As an attempt does it: what is left open is closed."""
        try:
            return await env(RepairEnv, **params)(self.task, self)
        finally:
            await asyncio.gather(*(box.close() for box in self.boxes))


def fixes() -> list[str]:
    data = TASK.data
    return [
        f"edit {path} 1 {len(data['files'][path].splitlines())}\n{text}"
        for path, text in data["truth"].items()
        if text != data["files"][path]
    ]


@pytest.mark.parametrize("progress", [False, True])
async def test_the_truth_is_graded_as_solved(bwrap: BwrapSandboxes, progress: bool):
    stage = BwrapStage(TASK, [*fixes(), "test", "submit"], bwrap)
    score = await stage.run(progress=progress)
    assert stage.said[-1].startswith("all ")
    assert (score["solved"], score["fixed"]) == (1.0, 1.0)
    assert stage.progressed[-1:] == ([score["reward"]] if progress else [])


async def test_code_that_prints_and_exits_where_it_is_graded_fails(bwrap: BwrapSandboxes):
    path = next(path for path, text in TASK.data["truth"].items() if text)
    stage = BwrapStage(
        TASK, [*fixes(), f"edit {path} 1 0\nprint('x' * 200000)\nimport os\nos._exit(0)", "submit"], bwrap
    )
    score = await stage.run()
    assert (score["solved"], score["fixed"]) == (0.0, -1.0)


@pytest.mark.parametrize("alike", [True, False])
async def test_siblings_that_ask_for_progress_at_the_same_time_never_wait_for_each_other_s_sandboxes(
    bwrap: BwrapSandboxes, alike: bool
):
    """There is one place for six of them, and each holds one when it asks."""
    marks = ["" if alike else f"\n# {number}" for number in range(6)]
    stages = [BwrapStage(TASK, ["test", *(f"{fix}{mark}" for fix in fixes()), "submit"], bwrap) for mark in marks]
    scores = await asyncio.wait_for(asyncio.gather(*(stage.run(progress=True) for stage in stages)), 60)
    assert [score["solved"] for score in scores] == [1.0] * 6
    assert len({tuple(stage.progressed) for stage in stages}) == 1
    graded, previews = sum(len(stage.boxes) - 1 for stage in stages), len(fixes()) * (1 if alike else 6)
    assert previews < graded <= previews + 6


async def test_no_file_in_the_sandbox_holds_the_fix_or_a_hidden_test(bwrap: BwrapSandboxes):
    data = TASK.data
    seen = "\n".join(data["files"].values())
    truth = [line.strip() for bug in data["bugs"] for line in bug["original"].splitlines()]
    hidden = [line.strip() for text in data["hidden"].values() for line in text.splitlines() if "assert" in line]
    needles = [line for line in (*truth, *hidden) if line not in seen and len(line) > 20]  # short ones are anywhere
    needles += [bug["original"] for bug in data["bugs"]]
    assert any(line in needles for line in truth)
    bug = data["bugs"][0]["source"]  # is to be read, and shows that the search works
    box = await bwrap.create(workspace(TASK))
    asked = json.dumps({"needles": [*needles, bug], "places": PLACES}).encode()
    result = await box.exec(["python", "-c", GREP], stdin=asked, seconds=60)
    count, found = json.loads(result.stdout)
    assert found == [bug]
    assert count > 300  # the standard library is among them


@pytest.mark.parametrize("name", ["longtail_repair", "longtail_repair.tasks", "longtail"])
async def test_what_makes_the_tasks_cannot_be_imported(bwrap: BwrapSandboxes, name: str):
    box = await bwrap.create(workspace(TASK))
    for cold in ("0", "1"):
        result = await box.exec(["python", "-c", f"import {name}"], env={"LONGTAIL_COLD_PYTHON": cold})
        assert result.exit_code == 1
        assert result.stderr.rstrip().endswith(f"No module named {name.partition('.')[0]!r}".encode())
