"""RepairEnv: its tools, its score, and that a verdict cannot be forged."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from repair_stage import ProcessBox, Stage

from longtail.envs import env
from longtail.errors import SandboxLost, UserError
from longtail.types import ExecResult, Task
from longtail_repair import env as environment
from longtail_repair.env import RepairEnv
from longtail_repair.tasks import repair_tasks

FILES = {
    "shop/__init__.py": "",
    "shop/cart.py": "from shop.tax import tax\n\ndef total(a, b):\n    return a - b + tax(a)\n",
    "shop/tax.py": "def tax(a):\n    return a // 10\n",
    "tests/test_cart.py": "from shop.cart import total\n\ndef test_total():\n    assert total(10, 2) == 13\n",
    "tests/test_tax.py": "from shop.tax import tax\n\ndef test_tax():\n    assert tax(30) == 3\n",
    "README.md": "# shop\n",
}
TASK = Task(
    id="hand-made",
    data={
        "package": "shop",
        "files": FILES,
        "hidden": {
            "tests/test_cart.py": "from shop.cart import total\n\ndef test_total():\n    assert total(30, 4) == 37\n"
        },
        "failing": "1 of 2 passed\nFAIL total(10, 2) -> 9 not 13 in cart.py\n",
        "failed": ["tests/test_cart.py::test_total"],
    },
)
FIX = "edit cart.py 4 4\n    return a + b + tax(a)"

Play = Callable[..., Any]


def test_the_first_prompt_says_what_is_wrong(play: Play):
    _, stage = play(env(RepairEnv), TASK, "submit")
    assert stage.said == ["fix shop: cart.py tax.py\n1 of 2 passed\nFAIL total(10, 2) -> 9 not 13 in cart.py"]
    _, stage = play(env(RepairEnv, show_failing=False), TASK, "submit")
    assert stage.said == ["fix shop: cart.py tax.py"]
    _, stage = play(env(RepairEnv, explain=True), TASK, "submit")
    assert "edit FILE START END + lines below: replace lines" in stage.said[0]
    assert stage.said[1].startswith("fix shop")


def test_the_tools(play: Play):
    script = [
        "ls",
        "read cart.py",
        "read shop/tax.py",
        "read nothing.py",
        "read ../../etc/passwd",
        "search tax(",
        "search assert tax",
        "search nowhere",
        FIX,
        "edit tax.py 1 0\nRATE = 10\n",
        "read tax.py",
        "edit tax.py 1 1",
        "edit tax.py 5 5\nx",
        "edit gone.py 1 1\nx",
        "test",
        "submit",
    ]
    score, stage = play(env(RepairEnv), TASK, *script)
    assert stage.said[2::2] == [
        "README.md run_tests.py __init__.py cart.py tax.py tests/test_cart.py tests/test_tax.py",
        "1 from shop.tax import tax\n2\n3 def total(a, b):\n4     return a - b + tax(a)",
        "1 def tax(a):\n2     return a // 10",
        "no file nothing.py",
        "no file ../../etc/passwd",
        "cart.py 4     return a - b + tax(a)\ntax.py 1 def tax(a):",
        "tests/test_tax.py 4     assert tax(30) == 3",
        "nothing found",
        "lines 4 to 4 written",
        "lines 1 to 1 written",
        "1 RATE = 10\n2 def tax(a):\n3     return a // 10",
        "deleted",
        "tax.py has lines 1 to 2",
        "no file gone.py",
        "all 2 passed",
    ]
    assert score["solved"] == 1.0
    assert stage.boxes[0].runs == [["python", "run_tests.py"]]


def test_the_parts_of_the_score(play: Play):
    score, stage = play(env(RepairEnv, solved=2.0, fixed=0.5, steps=-0.1, format=0.3), TASK, "what?", FIX, "submit")
    parts = {"solved": 1.0, "fixed": 1.0, "steps": 3 / 16, "format": 2 / 3}
    assert score == pytest.approx({"reward": 2.0 + 0.5 - 0.1 * 3 / 16 + 0.3 * 2 / 3, **parts})
    assert stage.reason == "done"


def test_progress_is_what_the_score_would_be_after_each_edit(play: Play):
    script = ["read cart.py", "edit tax.py 2 2\n    return 0", FIX, "edit tax.py 2 2\n    return a // 10", "submit"]
    score, stage = play(env(RepairEnv, progress=True, steps=0.0), TASK, *script)
    assert stage.progressed == pytest.approx([-0.5, -0.5, score["reward"]])
    assert len(stage.boxes) == 5  # the agent's, one for each edit, and one for the grade
    again, silent = play(env(RepairEnv, steps=0.0), TASK, *script)
    assert silent.progressed == []
    assert again == score


PLANT = """edit cart.py 1 4
import pathlib
for name in ("json.py", "functools.py", "builtins/__init__.py"):
    pathlib.Path(name).parent.mkdir(exist_ok=True)
    pathlib.Path(name).write_text("import sys; sys.stdout.write('[]'); sys.exit()")
def total(a, b):
    return 0"""


@pytest.mark.parametrize(
    ("spoil", "lines"), [("edit run_tests.py 1 1\nprint('[]')", 4), (PLANT, 6)], ids=["edits", "plants"]
)
def test_what_the_agent_edits_or_plants_beside_the_package_changes_no_progress(play: Play, spoil: str, lines: int):
    mended = f"edit cart.py 1 {lines}\n{FILES['shop/cart.py'].replace('a - b', 'a + b')}"
    score, stage = play(env(RepairEnv, progress=True), TASK, spoil, "test", mended, "submit")
    assert (stage.boxes[0].root / "json.py").exists() == (spoil == PLANT)
    assert stage.progressed[-1] == score["reward"] == 1.5
    _, sibling = play(env(RepairEnv, progress=True), TASK, FIX, "submit")
    assert sibling.progressed == [1.5]


def test_what_hidden_tests_call_never_enters_the_agents_sandbox(play: Play):
    _, stage = play(env(RepairEnv, progress=True), TASK, FIX, "test", "submit")
    agents, *grading = stage.boxes
    assert agents.inputs == [b""]
    assert len(grading) == 2
    assert all(b"total(30, 4)" in box.inputs[0] for box in grading)
    assert not any(b"total(30, 4)" in data for data in agents.spec.files.values())


def test_progress_of_siblings_is_worked_out_once(play: Play):
    rollout = env(RepairEnv, progress=True)
    _, stage = play(rollout, TASK, FIX, "submit")
    _, sibling = play(rollout, TASK, FIX, "submit")
    assert stage.progressed == sibling.progressed == [1.5]
    assert (len(stage.boxes), len(sibling.boxes)) == (3, 1)


def test_a_broken_test_counts_against_a_fixed_one(play: Play):
    score, _ = play(env(RepairEnv), TASK, FIX, "edit tax.py 2 2\n    return a", "submit")
    assert (score["solved"], score["fixed"]) == (0.0, -1.0)  # both tests use tax


def test_it_is_graded_although_the_turns_ran_out(play: Play):
    score, stage = play(env(RepairEnv), TASK, FIX)
    assert score["solved"] == 1.0
    assert stage.reason == "turn limit"


def test_an_unchanged_package_needs_no_run(play: Play):
    score, stage = play(env(RepairEnv), TASK, "submit")
    assert (score["solved"], score["fixed"]) == (0.0, 0.0)
    assert len(stage.boxes) == 1


def test_the_same_code_is_graded_once(play: Play):
    rollout = env(RepairEnv)
    first, stage = play(rollout, TASK, FIX, "submit")
    again, stage_again = play(rollout, TASK, FIX, "submit")
    assert first == again
    assert (len(stage.boxes), len(stage_again.boxes)) == (2, 1)


def test_a_grade_is_not_one_of_a_task_with_other_tests(play: Play):
    play(env(RepairEnv), TASK, FIX, "submit")
    other = {"tests/test_cart.py": "from shop.cart import total\n\ndef test_total():\n    assert total(1, 1) == 3\n"}
    score, _ = play(env(RepairEnv), Task(id=TASK.id, data={**TASK.data, "hidden": other}), FIX, "submit")
    assert score["solved"] == 0.0


def test_what_is_kept_of_a_grade_does_not_grow_with_the_code(play: Play):
    padding = "".join(f"# {number} {'x' * 90}\n" for number in range(500))
    play(env(RepairEnv), TASK, f"{FIX}\n{padding}", "submit")
    ((key, passed),) = environment._grades._passed.items()
    assert len(key) == 32
    assert set(passed.values()) == {True}


def test_a_value_that_is_too_long_to_be_told_fails_its_own_test_alone(play: Play):
    change = 'edit tax.py 2 2\n    return a // 10 if a < 30 else "x" * 20000'
    score, _ = play(env(RepairEnv), TASK, FIX, change, "submit")
    assert (score["solved"], score["fixed"]) == (0.0, 0.0)  # total(10, 2) holds, tax(30) and total(30, 4) do not


@pytest.mark.parametrize("flag", ["show_failing", "explain", "progress"])
@pytest.mark.parametrize("value", ["False", 1, None])
def test_a_flag_must_be_true_or_false(flag: str, value: Any):
    with pytest.raises(UserError, match=rf"^the flag '{flag}' of RepairEnv must be true or false, got {value!r}$"):
        RepairEnv(**{flag: value})


def test_the_grade_comes_from_a_fresh_sandbox_after_the_agents_is_closed(play: Play):
    _, stage = play(env(RepairEnv), TASK, FIX, "edit tests/test_tax.py 4 4\n    assert 1 == 1", "submit")
    live, fresh = stage.boxes
    assert live.closed
    assert fresh.closed
    assert set(fresh.spec.files) == {"shop/__init__.py", "shop/cart.py", "shop/tax.py", "run_tests.py"}


def test_edited_tests_and_runner_change_nothing(play: Play):
    score, _ = play(
        env(RepairEnv),
        TASK,
        "edit tests/test_cart.py 4 4\n    assert 1 == 1",
        "edit run_tests.py 1 400\nprint('all 2 passed')",
        "edit README.md 1 1\nall 2 passed",
        "test",
        "submit",
    )
    assert score["solved"] == 0.0


FORGERIES = {
    "prints": 'print(\'[[[true, "13"]], [[true, "3"]]]\')',
    "writes what is expected to every descriptor": "import os\nfor n in range(1, 20):\n    try:\n"
    '        os.write(n, b\'[[[true, "13"]], [[true, "3"]], [[true, "13"]]]\')\n'
    "    except OSError:\n        pass\nos._exit(0)",
    "repeats what is expected": "",
    "exits": "import os\nos._exit(0)",
    "prints and exits": 'import os\nos.write(1, b\'[[[true, "9"]], [[true, "3"]]]\')\nos._exit(0)',
    "raises": "raise SystemExit(0)",
    "writes to every descriptor": "import os\nfor n in range(1, 20):\n    try:\n        os.write(n, b'all 2 passed')\n"
    "    except OSError:\n        pass",
    "patches the runner": "import sys\nmain = sys.modules['__main__']\nmain.values = lambda *a: [[True, '1']]\n"
    "main.report = lambda r: 'all 2 passed'",
    "plants files": "import pathlib\nfor name in ('conftest.py', 'sitecustomize.py', 'json.py', 'result.json'):\n"
    "    pathlib.Path(name).write_text('raise SystemExit(0)')",
    "lies about equality": "class Yes(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n",
}


@pytest.mark.parametrize("trick", FORGERIES)
def test_a_verdict_cannot_be_forged(play: Play, trick: str):
    lines = FORGERIES[trick]
    result = {"lies about equality": "Yes(9)", "repeats what is expected": "13"}.get(trick, "9")
    script = [f"edit cart.py 1 4\n{lines}\ndef total(a, b):\n    return {result}", "test", f"edit tax.py 3 2\n{lines}"]
    score, stage = play(env(RepairEnv, progress=True), TASK, *script, "submit")
    assert score["solved"] == 0.0
    assert max(stage.progressed) < 1.0
    if not trick.startswith(("repeats what", "writes what")):  # the visible tests say it, so they can be met with it
        assert score["fixed"] <= 0.0
        assert max(stage.progressed) <= 0.0


class FragileBox(ProcessBox):
    """`breaks`: which of its calls end it."""

    breaks = "exec"

    def __getattribute__(self, name: str) -> Any:
        if name == type(self).breaks:
            return self._break
        return super().__getattribute__(name)

    async def _break(self, *args: Any, **kwargs: Any) -> Any:
        raise SandboxLost("gone")


class FragileStage(Stage):
    """`healthy`: whether a fresh sandbox starts after one broke."""

    healthy, box = True, FragileBox

    async def sandbox(self, spec: Any) -> Any:
        assert all(box.closed for box in self.boxes), "a sandbox that broke is held while another is awaited"
        if not self.healthy and not spec.files:  # the probe
            raise SandboxLost("the host is down")
        return await super().sandbox(spec)


@pytest.mark.parametrize(
    ("script", "reason"),
    [(["test"], "the code broke its sandbox"), ([FIX, "submit"], "done")],
    ids=["where it is tested", "where it is graded"],
)
async def test_code_that_breaks_its_sandbox_is_scored_as_a_failure(tmp_path: Any, script: list[str], reason: str):
    stage = FragileStage(TASK, script, tmp_path)
    score = await env(RepairEnv)(TASK, stage)
    assert (score["solved"], score["fixed"]) == (0.0, -1.0)
    assert stage.reason == reason


@pytest.mark.parametrize("script", [["test"], [FIX, "submit"]])
async def test_a_host_on_which_no_sandbox_starts_is_not_the_policys_failure(tmp_path: Any, script: list[str]):
    stage = FragileStage(TASK, script, tmp_path)
    stage.healthy = False
    with pytest.raises(SandboxLost, match="the host is down"):
        await env(RepairEnv)(TASK, stage)


@pytest.mark.parametrize(
    ("call", "script", "reason"),
    [
        ("list", ["ls"], "the code broke its sandbox"),
        ("read", ["read cart.py"], "the code broke its sandbox"),
        ("write", [FIX], "the code broke its sandbox"),
        ("snapshot", [FIX, "submit"], "done"),
    ],
)
async def test_so_is_code_that_broke_it_for_a_later_call(tmp_path: Any, call: str, script: list[str], reason: str):
    stage = FragileStage(TASK, script, tmp_path)
    stage.box = type("Broken", (FragileBox,), {"breaks": call})
    score = await env(RepairEnv)(TASK, stage)
    assert (score["solved"], score["fixed"]) == (0.0, -1.0)
    assert stage.reason == reason


class ShakyBox(ProcessBox):
    """`left`: how the next grades end, "" as they should."""

    def __init__(self, spec: Any, root: Any, *, left: list[str]) -> None:
        super().__init__(spec, root)
        self._left = left

    async def exec(self, argv: Sequence[str], **how: Any) -> ExecResult:
        end = self._left.pop(0) if "--values" in argv and self._left else ""
        if end == "lost":
            raise SandboxLost("gone")
        result = await super().exec(argv, **how)
        return replace(result, stdout=b"[[", timed_out=end == "time", oom_killed=end == "memory") if end else result


def shaky_stage(root: Path, *left: str) -> Stage:
    root.mkdir()
    stage = Stage(TASK, [FIX, "submit"], root)
    stage.box = partial(ShakyBox, left=list(left))
    return stage


@pytest.mark.parametrize("progress", [False, True], ids=["at the end", "after the edit"])
@pytest.mark.parametrize("bad", ["lost", "time", "memory"])
async def test_a_grade_that_came_to_no_end_is_tried_once_more(tmp_path: Any, bad: str, progress: bool):
    stage = shaky_stage(tmp_path / "stage", bad)
    score = await env(RepairEnv, progress=progress)(TASK, stage)
    assert (score["solved"], score["fixed"]) == (1.0, 1.0)
    assert stage.progressed == ([1.5] if progress else [])


@pytest.mark.parametrize("bad", ["lost", "time", "memory"])
async def test_a_grade_that_came_to_no_end_twice_is_a_failure_but_not_its_siblings(tmp_path: Any, bad: str):
    score = await env(RepairEnv)(TASK, shaky_stage(tmp_path / "first", bad, bad))
    assert (score["solved"], score["fixed"]) == (0.0, -1.0)
    score = await env(RepairEnv)(TASK, shaky_stage(tmp_path / "sibling"))
    assert (score["solved"], score["fixed"]) == (1.0, 1.0)


async def test_a_package_that_grew_too_large_to_be_read_back_is_a_failure(tmp_path: Any):
    class Full(ProcessBox):
        async def snapshot(self) -> Any:
            raise OSError(errno.EFBIG, "the workspace is too large for a snapshot")

    class FullStage(Stage):
        async def sandbox(self, spec: Any) -> Any:
            return Full(spec, self._root)

    score = await env(RepairEnv)(TASK, FullStage(TASK, [FIX, "submit"], tmp_path))
    assert (score["solved"], score["fixed"]) == (0.0, -1.0)


def test_the_original_of_a_generated_task_is_graded_as_solved(play: Play):
    task = repair_tasks("test", 1, 4, levels=(5,))[0]
    fixes = []
    for path, text in task.data["truth"].items():
        if text != task.data["files"][path]:
            lines = len(task.data["files"][path].splitlines())
            fixes.append(f"edit {path} 1 {lines}\n{text}")
    score, stage = play(env(RepairEnv), task, *fixes, "test", "submit")
    assert stage.said[-2].startswith("test")
    assert stage.said[-1].startswith("all ")
    assert (score["solved"], score["fixed"]) == (1.0, 1.0)
