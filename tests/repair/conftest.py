"""The stage as a fixture, and no grades from another test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from repair_stage import Stage

from longtail.types import Task
from longtail_repair import env as environment


@pytest.fixture(autouse=True)
def _nothing_graded_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in ("_grades", "_previews"):
        monkeypatch.setattr(environment, cache, environment._Grades())


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Any]:
    """Play a script against a rollout; returns (score, stage)."""

    def run(rollout: Any, task: Task, *script: str) -> Any:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        stage = Stage(task, script, root)
        return asyncio.run(rollout(task, stage)), stage

    return run
