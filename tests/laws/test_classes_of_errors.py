"""Whose fault an error is, for what environments raise."""

import errno

import pytest

from longtail.errors import DiskFull, LimitReached, SandboxLost, TaskError, classify
from longtail.types import Outcome

OF = {
    LimitReached("turns"): Outcome.POLICY,
    SandboxLost("gone"): Outcome.INFRASTRUCTURE,
    DiskFull("the journal"): Outcome.INFRASTRUCTURE,
    ConnectionResetError(errno.ECONNRESET, "a service of the environment"): Outcome.INFRASTRUCTURE,
    TimeoutError("a service of the environment"): Outcome.INFRASTRUCTURE,
    TaskError("no answer"): Outcome.TASK,
    FileNotFoundError(errno.ENOENT, "a file that the agent never made"): Outcome.TASK,
    IsADirectoryError(errno.EISDIR, "a folder that the agent made instead"): Outcome.TASK,
    OSError(errno.ENOSPC, "a full workspace"): Outcome.TASK,
    KeyError("answer"): Outcome.TASK,
}


@pytest.mark.parametrize("error", OF, ids=repr)
def test_each_error_has_one_class(error: Exception) -> None:
    assert classify(error) is OF[error]
