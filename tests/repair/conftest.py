"""The stage as a fixture."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from repair_stage import Stage

from longtail.types import Task


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Any]:
    """Play a script against a rollout; returns (score, stage)."""

    def run(rollout: Any, task: Task, *script: str) -> Any:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        stage = Stage(task, script, root)
        return asyncio.run(rollout(task, stage)), stage

    return run
