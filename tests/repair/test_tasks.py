"""Generated tasks: proven, reproducible, and without the answer in them."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import UserError
from longtail.types import Task
from longtail_repair import runner
from longtail_repair.families import HELDOUT, TRAIN
from longtail_repair.tasks import LEVELS, repair_tasks

ALL = tuple(LEVELS)


def results(files: dict[str, str]) -> list[tuple[str, str, list[object]]]:
    return runner.run(files.get, sorted(path for path in files if path.startswith("tests/")))


def its_tests(task: Task) -> dict[str, str]:
    return {path: text for path, text in task.data["files"].items() if path.startswith("tests/")}


@given(st.integers(0, 10_000), st.sampled_from(["train", "test", "heldout"]), st.sampled_from(ALL))
@settings(max_examples=30, deadline=None)
def test_the_original_passes_and_each_bug_alone_fails(seed: int, split: str, level: int):
    task = repair_tasks(split, 3, seed, levels=(level,))[1]
    data, tests = task.data, its_tests(task)
    assert not any(failures for *_, failures in results({**data["truth"], **tests}))
    failed = [f"{path}::{name}" for path, name, failures in results(data["files"]) if failures]
    assert failed == data["failed"]
    assert failed
    assert len(data["bugs"]) == LEVELS[level][2]
    for bug in data["bugs"]:
        original = data["truth"][bug["path"]]
        alone = original.replace(bug["original"], bug["source"])
        assert alone != original
        assert any(failures for *_, failures in results({**data["truth"], **tests, bug["path"]: alone}))


@given(st.integers(0, 10_000), st.sampled_from(ALL))
@settings(max_examples=20, deadline=None)
def test_hidden_tests_pass_on_the_original_and_ask_for_nothing_that_the_visible_ones_say(seed: int, level: int):
    task = repair_tasks("test", 1, seed, levels=(level,))[0]
    hidden = task.data["hidden"]
    assert not any(failures for *_, failures in results({**task.data["truth"], **hidden}))
    asserts = [{line for text in files.values() for line in text.splitlines() if "assert" in line}
               for files in (hidden, its_tests(task))]  # fmt: skip
    assert asserts[0]
    assert not asserts[0] & asserts[1]


@given(st.integers(0, 10_000), st.sampled_from(ALL))
@settings(max_examples=20, deadline=None)
def test_the_fix_is_nowhere_to_be_read(seed: int, level: int):
    """No file but the package's own modules holds code of a repaired function; those hold none but unchanged lines."""
    data = repair_tasks("train", 1, seed, levels=(level,))[0].data
    assert all(path.endswith((".py", "README.md")) for path in data["files"])
    for bug in data["bugs"]:
        broken = {line.strip() for line in data["files"][bug["path"]].splitlines()}
        fixed = {line.strip() for line in bug["original"].splitlines()} - broken
        for path, text in data["files"].items():
            if path != bug["path"]:
                untouched = {line.strip() for line in data["truth"].get(path, "").splitlines()}
                assert not (fixed - untouched) & {line.strip() for line in text.splitlines()}
        for line in fixed:
            assert line not in data["files"]["README.md"]


def test_package_and_tests_are_compact_and_in_one_form():
    for task in repair_tasks("train", 40, 3, levels=ALL):
        package = {path: text for path, text in task.data["files"].items() if path.startswith(task.data["package"])}
        files, _, _ = LEVELS[task.data["level"]]
        assert len(package) == files + 1  # and __init__.py
        for text in package.values():
            assert len(text.splitlines()) <= 45
            assert re.sub(r"\n+", "\n", text).strip() == re.sub(r"\n+", "\n", ast.unparse(ast.parse(text))).strip()
            assert "\n\n\n" not in text


def test_a_task_depends_on_its_split_seed_and_number_alone():
    tasks = repair_tasks("train", 50, 7, levels=(1, 3))
    assert tasks[17] == repair_tasks("train", 1000, 7, levels=(1, 3))[17]
    assert tasks[17] != repair_tasks("test", 50, 7, levels=(1, 3))[17]
    assert tasks[17] != repair_tasks("train", 50, 8, levels=(1, 3))[17]
    assert len({str(task.data["truth"]) for task in tasks}) == 50
    assert tasks[-1] == tasks[49]
    assert tasks[3:5] == [tasks[3], tasks[4]]
    with pytest.raises(IndexError):
        tasks[50]


def test_held_out_families_are_never_trained_on():
    trained = {task.family for split in ("train", "test") for task in repair_tasks(split, 40, 0, levels=(1,))}
    held = {task.family for task in repair_tasks("heldout", 40, 0, levels=(1,))}
    assert trained <= {family.name for family in TRAIN}
    assert held == {family.name for family in HELDOUT}


def test_every_family_serves_the_easiest_and_the_hardest_level():
    for split, families in (("train", TRAIN), ("heldout", HELDOUT)):
        for family in families:
            for level in (min(ALL), max(ALL)):
                task = repair_tasks(split, 1, 5, levels=(level,), families=(family.name,))[0]
                assert (task.family, task.data["level"]) == (family.name, level)


def test_a_bug_sometimes_shows_only_in_a_caller():
    tasks = repair_tasks("train", 60, 1, levels=(3,))
    hidden = [
        t
        for t in tasks
        for bug in t.data["bugs"]
        if all(f"def test_{bug['function']}(" not in x for x in its_tests(t).values())
    ]
    assert hidden


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "split must be one of train, test, heldout, got 'dev'"),
        ({"levels": (1, 9)}, r"levels must be some of 1 to 5, got \[1, 9\]"),
        ({"levels": ()}, r"levels must be some of 1 to 5, got \[\]"),
        ({"families": ("cart", "carts")}, "no family 'carts' in split train; there are cart, "),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict[str, object], message: str):
    with pytest.raises(UserError, match=message):
        repair_tasks(**{"split": "train", "count": 1, "seed": 0, **arguments})
