"""Repair tasks: a package with bugs in it, its tests and its README. Task i is a pure function of (split, seed, i).

Every task is proven when it is made: the original passes all tests, each bug alone fails at least one, and so do all
together. A bug that no test can see is thrown away.

What a task holds (Task.data, which stays in the driver):

    files      what the agent's sandbox starts with: the package with its bugs, the tests, the README
    package    its name                       level      1..5
    hidden     test files that grade beside those in `files`: calls like theirs, other arguments, so that repeating
               the values that the visible tests ask for is no repair. No sandbox ever holds these files, and the
               agent's not even the calls: those alone are sent to the fresh sandbox that grades.
    failing    what run_tests.py says at the start; failed: the tests that fail, as path::name
    truth      {path: original source} of the package; bugs: [{path, function, operator, source, original}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from longtail.errors import TaskError, UserError
from longtail.types import Limits, Task
from longtail_repair import runner
from longtail_repair.drawn import DrawnTasks
from longtail_repair.families import HELDOUT, TRAIN, Family
from longtail_repair.mutate import Mutation, mutate
from longtail_repair.package import Function, Package, draw_package

SPLITS = ("train", "test", "heldout")
LEVELS: dict[int, tuple[int, int, int]] = {  # level -> files, functions, bugs
    1: (1, 3, 1),
    2: (2, 4, 1),
    3: (3, 5, 2),
    4: (4, 6, 2),
    5: (5, 7, 3),
}
_CANDIDATES = 7  # argument tuples drawn per function
_TRIES = 12  # mutations tried per bug before the package is drawn again
_HIDDEN = 0.35  # a bug in a function that others call shows only in them
_FLAT = "<package>"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTasks(DrawnTasks):
    """A data set that makes its tasks when they are asked for."""

    levels: tuple[int, ...]
    families: tuple[Family, ...]
    limits: Limits = field(default_factory=Limits)

    def _make(self, index: int) -> Task:
        rng = Random(f"{self.split}/{self.seed}/{index}")
        family, level = rng.choice(self.families), rng.choice(self.levels)
        name = f"{self.split}-{self.seed}-{index}"
        for _ in range(50):
            data = draw_task(family, level, rng)
            if data is not None:
                return Task(id=name, data=data, family=family.name, limits=self.limits)
        raise TaskError(f"task {name}: no visible bug found in family {family.name}")


def repair_tasks(
    split: str,
    count: int,
    seed: int,
    *,
    levels: Sequence[int] = (1, 2, 3),
    families: Sequence[str] = (),
    turns: int = 20,
    tokens: int = 1024,
) -> RepairTasks:
    """Tasks of one split: train, test (unseen tasks of the same families) or heldout (families never trained on)."""
    if split not in SPLITS:
        raise UserError(f"repair tasks: split must be one of {', '.join(SPLITS)}, got {split!r}")
    unknown = [level for level in levels if level not in LEVELS]
    if unknown or not levels:
        raise UserError(f"repair tasks: levels must be some of 1 to {max(LEVELS)}, got {list(levels)}")
    known = {family.name: family for family in (HELDOUT if split == "heldout" else TRAIN)}
    missing = [name for name in families if name not in known]
    if missing:
        raise UserError(f"repair tasks: no family {missing[0]!r} in split {split}; there are {', '.join(known)}")
    return RepairTasks(
        split=split,
        size=count,
        seed=seed,
        levels=tuple(levels),
        families=tuple(known[name] for name in families or known),
        limits=Limits(turns=turns, tokens=tokens),
    )


def draw_task(family: Family, level: int, rng: Random) -> dict[str, Any] | None:
    """The data of one task, or None when no bug of this draw can be seen by a test."""
    files, functions, bugs = LEVELS[level]
    package = draw_package(family, files=files, functions=functions, rng=rng)
    bench = _Bench(package, rng)
    mutations: dict[str, Mutation] = {}
    for name in rng.sample(list(package.functions), len(package.functions)):
        if len(mutations) < bugs:
            mutation = bench.visible_bug(name, rng)
            if mutation is not None:
                mutations[name] = mutation
    if len(mutations) < bugs:
        return None
    tests, hidden = bench.tests(rng)
    return _assemble(package, level, mutations, tests, hidden)


def _assemble(
    package: Package, level: int, mutations: Mapping[str, Mutation], tests: Mapping[str, str], hidden: Mapping[str, str]
) -> dict[str, Any] | None:
    truth = package.files()
    broken = package.files({name: mutation.source for name, mutation in mutations.items()})
    failed = runner.run({**broken, **tests}.get, sorted(tests))
    proofs = [runner.run({**truth, **files}.get, sorted(files)) for files in (tests, hidden)]
    if any(f for proof in proofs for *_, f in proof) or not any(f for *_, f in failed):
        return None
    bugs = [
        {
            "path": package.path(package.functions[name].module),
            "function": name,
            "operator": mutation.operator,
            "source": mutation.source,
            "original": package.functions[name].source,
        }
        for name, mutation in mutations.items()
    ]
    return {
        "package": package.name,
        "level": level,
        "hidden": hidden,
        "files": {**broken, **tests, "README.md": f"# {package.name}\n\n{package.about}\n"},
        "failing": runner.report(failed),
        "failed": [f"{path}::{name}" for path, name, failures in failed if failures],
        "truth": truth,
        "bugs": bugs,
    }


class _Bench:
    """Calls the functions of one package, with and without a bug, on drawn arguments."""

    def __init__(self, package: Package, rng: Random) -> None:
        self._package = package
        self._modules = runner.Modules(lambda path: None)
        self._modules.paths.add(_FLAT)
        self._namespace: dict[str, Any] = dict(package.named)
        for function in package.functions.values():
            self._define(function.source)
        self._cases = {f.name: self._draw_cases(f, rng) for f in package.functions.values()}
        self._needed: dict[str, dict[str, None]] = {name: {} for name in package.functions}  # calls that see a bug
        self._untested: set[str] = set()

    def _define(self, source: str) -> None:
        exec(compile(source, _FLAT, "exec"), self._namespace)

    def _value(self, call: str) -> str | None:
        """repr of a call's value; None when it raises or never ends."""
        try:
            return repr(self._modules.guarded(eval, runner.compiled(call, "<test>", "eval"), self._namespace))
        except runner.CAUGHT:
            return None

    def _draw_cases(self, function: Function, rng: Random) -> dict[str, str]:
        """Call -> value of the original, both short enough to read."""
        cases: dict[str, str] = {}
        for _ in range(_CANDIDATES):
            drawn = [repr(draw(rng, self._package.constants)) for draw in function.arguments]
            if function.has_default and rng.random() < 0.5:
                drawn.pop()
            call = f"{function.name}({', '.join(drawn)})"
            value = self._value(call) if len(call) <= 60 and call not in cases else None
            if value is not None and len(value) <= 40:
                cases[call] = value
        return cases

    def visible_bug(self, name: str, rng: Random) -> Mutation | None:
        """A mutation that changes the value of some drawn call; that call becomes a test.

        A function that others call is sometimes left without tests of its own: its bug shows in the callers alone.
        """
        function = self._package.functions[name]
        callers = [n for n in self._package.callers(name)[1:] if n not in self._untested]
        is_hidden = bool(callers) and not self._needed[name] and rng.random() < _HIDDEN
        watchers = callers if is_hidden else [name]
        try:
            for _ in range(_TRIES):
                mutation = mutate(function.source, rng)
                if mutation is not None and self._is_visible(watchers, mutation, rng):
                    self._untested |= {name} if is_hidden else set()
                    return mutation
            return None
        finally:
            self._define(function.source)

    def _is_visible(self, watchers: Sequence[str], mutation: Mutation, rng: Random) -> bool:
        self._define(mutation.source)
        seen = {
            watcher: [call for call, value in self._cases[watcher].items() if self._value(call) != value]
            for watcher in watchers
        }
        for watcher, calls in seen.items():
            self._needed[watcher] |= dict.fromkeys(rng.sample(calls, min(2, len(calls))))
        return any(seen.values())

    def tests(self, rng: Random) -> tuple[dict[str, str], dict[str, str]]:
        """Path -> source of one test file per module; and of the hidden ones, which have the calls left over."""
        shown: dict[str, list[str]] = {}
        for name in self._package.functions:
            if name not in self._untested:
                needed = self._needed[name]
                others = [call for call in self._cases[name] if call not in needed]
                shown[name] = [*needed, *rng.sample(others, min(len(others), 1 if needed else 2))]
        left = {
            name: [call for call in cases if call not in shown.get(name, ())] for name, cases in self._cases.items()
        }
        return self._test_files(shown), self._test_files({name: calls for name, calls in left.items() if calls})

    def _test_files(self, calls: Mapping[str, Sequence[str]]) -> dict[str, str]:
        files: dict[str, str] = {}
        for module in self._package.modules:
            here = [name for name in calls if self._package.functions[name].module == module]
            parts = [f"from {self._package.name}.{module} import {', '.join(sorted(here))}"]
            for name in here:
                cases = self._cases[name]
                lines = [f"    assert {call} {_operator(cases[call])} {cases[call]}" for call in calls[name]]
                parts.append("\n".join([f"def test_{name}():", *lines]))
            if here:
                files[f"tests/test_{module}.py"] = "\n\n".join(parts) + "\n"
        return files


def _operator(value: str) -> str:
    return "is" if value in ("True", "False", "None") else "=="
