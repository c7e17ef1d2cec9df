"""Python blocks of the docs run; links between pages lead somewhere; commands they name exist and would run."""

import dataclasses
import functools
import json
import re
import runpy
import shlex
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from longtail.algorithms.losses import PolicyLoss
from longtail.algorithms.presets import PRESETS, Algorithm
from longtail.build import SystemClock
from longtail.cli import app
from longtail.config import load_config
from longtail.errors import SandboxLost
from longtail.fakes import MemoryJournal, MemorySandboxes, NoTrace, ScriptedEngine, ToyRenderer, VirtualClock
from longtail.rollout.attempt import Assignment, World, run_attempt
from longtail.types import ExecResult, Message, Outcome, Sampling, SandboxSpec, Score, Task

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append((f"{page.relative_to(ROOT)}:{number}", block))
    return found


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=lambda value: value if ":" in value[:60] else "")
def test_python_blocks_run(where: str, code: str):
    exec(compile(code, where, "exec"), {"__name__": "docs"})


ASK = (Message(role="user", content="1+1="),)
PLAYS = [
    ("class Guess(Env)", Task(id="t", prompt=ASK, data={"secret": 7}), ["guess 3", "guess 7"], 1.0),
    ("class Notes(Env)", Task(id="t"), ["read a.txt", "write a.txt\ndone\n", "submit"], {"solved": 1.0}),
    ("class Notes(Env)", Task(id="t"), ["submit"], {"solved": 0.0}),
    ("def accuracy(", Task(id="t", prompt=ASK, data={"answer": "2"}), ["2"], 1.0),
]


async def grep(argv: Sequence[str], files: dict[str, bytes]) -> ExecResult:
    """Runs `grep -q WORD FILE`."""
    return ExecResult(exit_code=int(argv[2].encode() not in files[argv[3]]), stdout=b"", stderr=b"")


@pytest.mark.parametrize(("defines", "task", "replies", "score"), PLAYS, ids=[play[0] for play in PLAYS])
async def test_what_the_docs_define_can_be_played(defines: str, task: Task, replies: list[str], score: Score):
    (code,) = [code for _, code in blocks("python") if defines in code]
    names = {"__name__": "docs"}
    exec(code, names)
    world = World(
        rollout=names["rollout"],
        engine=ScriptedEngine(replies),
        renderer=ToyRenderer(),
        sandboxes=MemorySandboxes(grep),
        journal=MemoryJournal(),
        trace=NoTrace(),
        clock=SystemClock(),
        attempt_s=600.0,
    )
    assignment = Assignment(task=task, group_id="g0", member=0, attempt=0, seed=1, sampling=Sampling())
    trajectory = await run_attempt(world, assignment)
    assert (trajectory.outcome, trajectory.score) == (Outcome.DONE, score), trajectory.reason


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("name", ["configuration", "reference"])
def test_a_page_that_is_made_says_what_the_code_says(name: str):
    maker = runpy.run_path(str(ROOT / "docs" / f"make_{name}.py"))
    assert (ROOT / "docs" / f"{name}.md").read_text() == maker["page"](), f"run python docs/make_{name}.py"


def test_commands_in_shell_blocks_exist():
    known = set(get_command(app).commands)
    named = {
        line.split()[1] for _, block in blocks("bash") for line in block.splitlines() if line.startswith("longtail ")
    }
    assert named <= known
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {line.split()[1] for _, block in blocks("bash") for line in block.splitlines() if line.startswith("make ")}
    assert made <= targets


COMMANDS = sorted(
    {
        found.strip()
        for page in PAGES
        for found in re.findall(r"longtail ((?:train|eval|sft) recipes/[^\n`#;]*)", page.read_text())
    }
)


def test_commands_with_a_recipe_are_found():
    assert {command.split()[0] for command in COMMANDS} == {"train", "eval", "sft"}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_with_a_recipe_would_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the recipe's own model where the named one is not here, and without a sandbox."""
    monkeypatch.chdir(ROOT)
    here = re.sub(r"-o model\.path=(\S+)", lambda model: model[0] if Path(model[1]).exists() else "", command)
    more = ["-o", f"run_dir={json.dumps(str(tmp_path))}", "-o", "sandbox.level=none", "--dry-run"]
    done = CliRunner().invoke(app, [*shlex.split(here), *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.name)
def test_recipes_are_configurations(recipe: Path):
    assert load_config([recipe]).name == recipe.stem


def test_the_page_of_the_algorithms_names_every_preset_and_every_override():
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "algorithms.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {
        *PRESETS,
        *(field.name for kind in (Algorithm, PolicyLoss) for field in dataclasses.fields(kind)),
    } - {
        "name",
        "loss",
    }


@pytest.mark.parametrize(("host_is_well", "outcome"), [(True, Outcome.POLICY), (False, Outcome.INFRASTRUCTURE)])
async def test_the_recipe_for_a_lost_sandbox_tells_the_policys_doing_from_an_outage(host_is_well, outcome):
    (code,) = [code for _, code in blocks("python") if "from_its_sandbox" in code]
    names: dict[str, Any] = {}
    exec(code, names)

    async def rollout(task: Task, ctx: Any) -> float:
        box = await ctx.sandbox(SandboxSpec())
        box.closed = True  # as if it were lost
        await ctx.tool("run", {}, lambda: names["from_its_sandbox"](box.exec(["python"]), box, ctx))
        return 1.0

    world = fakes_of(rollout)
    if not host_is_well:
        world.sandboxes.create = functools.partial(only_once, world.sandboxes.create, count())
    assignment = Assignment(task=Task(id="t"), group_id="g", member=0, attempt=0, seed=0, sampling=Sampling())
    async with world.clock.running():
        assert (await run_attempt(world, assignment)).outcome is outcome


async def only_once(create: Any, calls: Iterator[int], spec: SandboxSpec) -> Any:
    if next(calls):
        raise SandboxLost("the host is down")
    return await create(spec)


def fakes_of(rollout: Any) -> World:
    return World(
        rollout=rollout,
        engine=ScriptedEngine([]),
        renderer=ToyRenderer(),
        sandboxes=MemorySandboxes(),
        journal=MemoryJournal(),
        trace=NoTrace(),
        clock=VirtualClock(),
        attempt_s=600.0,
    )
