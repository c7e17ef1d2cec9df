"""Sandboxes of each level, one set for each test file."""

from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest
import pytest_asyncio

from longtail.ports import Sandboxes
from longtail.sandboxes.bwrap import BwrapSandboxes
from longtail.sandboxes.local import LocalSandboxes
from longtail.sandboxes.probe import LevelReport, probe


@cache
def bwrap_report() -> LevelReport:
    return probe()[0]


def require_bwrap() -> None:
    report = bwrap_report()
    if not report.works:
        pytest.skip(f"bwrap does not work here: {report.reason}; {report.fix}")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["bwrap", "none"])
async def sandboxes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Sandboxes]:
    workdir: Path = tmp_path_factory.mktemp("sandboxes")
    if request.param == "bwrap":
        require_bwrap()
    made = BwrapSandboxes(workdir, 8) if request.param == "bwrap" else LocalSandboxes(workdir)
    yield made
    await made.close()
    assert list(workdir.iterdir()) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bwrap(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BwrapSandboxes]:
    require_bwrap()
    made = BwrapSandboxes(tmp_path_factory.mktemp("bwrap"), 8)
    yield made
    await made.close()
