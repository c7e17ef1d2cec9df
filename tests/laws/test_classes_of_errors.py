"""Whose fault an error is, for what environments raise."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.errors import ControlSignal, DiskFull, LimitReached, SandboxLost, TaskError, classify, deciding
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


SINGLE = st.sampled_from([*OF, ControlSignal("superseded")])
NESTED = st.recursive(
    SINGLE, lambda inner: st.lists(inner, min_size=1, max_size=4).map(lambda e: ExceptionGroup("", e))
)


def leaves(error: Exception) -> list[Exception]:
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [one for inner in error.exceptions for one in leaves(inner)]


@given(NESTED)
def test_of_a_group_the_class_that_says_least_about_the_policy_decides(error: Exception) -> None:
    classes = [classify(one) for one in leaves(error)]
    first = next(c for c in (Outcome.CONTROL, Outcome.INFRASTRUCTURE, Outcome.TASK, Outcome.POLICY) if c in classes)
    assert classify(error) is first
    assert deciding(error) is leaves(error)[classes.index(first)]
