"""The errors, and the one table that says what follows from each.

    LongtailError
    ├── UserError            bad input: one sentence, exit code 2, before resources are taken (also a ValueError)
    ├── PolicyFailure        the policy's doing: a limit reached, a broken sandbox, a malformed call too often
    │   └── LimitReached
    ├── InfrastructureError  engine, sandbox host, network, driver, disk
    │   ├── EngineError
    │   │   └── ContextFull  the policy's, once a rollout has made it a LimitReached
    │   ├── SandboxLost
    │   ├── DiskFull
    │   └── DeadlineExpired
    ├── TaskError            invalid task; reward code that raises, returns a wrong count or NaN
    └── ControlSignal        cancelled, superseded, stale, surplus

    class           retry                          scored   in the baseline
    policy          no                             yes      yes
    infrastructure  yes, own budget, backoff       no       no
    task            once                           no       no
    control         no                             no       no

A ConnectionError or TimeoutError is infrastructure. Anything else that an environment raises, for a missing file or a
full workspace too, is a TaskError: its author's bug, never the policy's zero. (What longtail's own host refuses, a full
disk for one, is raised as one of the above.) Of a group of errors, as asyncio.TaskGroup raises them, one decides:
deciding().
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from longtail.types import Outcome


class LongtailError(Exception):
    """Base of all errors that longtail raises on purpose."""


class UserError(LongtailError, ValueError):
    """Bad input. The message says what, where, what was expected and what to do."""


class PolicyFailure(LongtailError):
    """The policy did this; the attempt is scored."""


class LimitReached(PolicyFailure):
    """A limit of the task (turns, tokens, calls, seconds) was reached."""


class InfrastructureError(LongtailError):
    """Something below the policy failed; the attempt is retried and never scored."""


class EngineError(InfrastructureError):
    """The engine refused, died or did not answer."""


class ContextFull(EngineError):
    """The prompt leaves no room for a reply in the engine's context."""


class SandboxLost(InfrastructureError):
    """The sandbox died or broke its protocol for a reason that is not the policy's."""


class DiskFull(InfrastructureError):
    """No space left where the run writes."""


class DeadlineExpired(InfrastructureError):
    """A wait on infrastructure ended at its deadline."""


class TaskError(LongtailError):
    """The task cannot be run or graded."""


class ControlSignal(LongtailError):
    """The scheduler ended the attempt."""


# Most further attempts of one group member, by how the last one ended; `rollout.retries` may allow fewer. What is
# scored, and so in the baseline, says Trajectory.usable.
RETRIES: Mapping[Outcome, int] = {
    Outcome.DONE: 0,
    Outcome.POLICY: 0,
    Outcome.INFRASTRUCTURE: sys.maxsize,
    Outcome.TASK: 1,
    Outcome.CONTROL: 0,
}


def disk_is_full(error: BaseException) -> bool:
    """Whether the operating system refused a write for want of space or quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def first_cause(error: BaseException) -> Exception | None:
    """The first error in it that was made on purpose, or that a full disk made; None when there is none."""
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return next((cause for one in inner if (cause := first_cause(one))), None)
    if isinstance(error, LongtailError) or (isinstance(error, OSError) and disk_is_full(error)):
        return error
    return None


# Which of several errors decides: the class that says least about the policy. An outage beside a limit is no zero.
_FIRST = (Outcome.CONTROL, Outcome.INFRASTRUCTURE, Outcome.TASK, Outcome.POLICY)


def deciding(error: BaseException) -> BaseException:
    """The error itself; of a group, nested ones too, the first of the class that comes first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [deciding(one) for one in cast("BaseExceptionGroup[BaseException]", error).exceptions]
    return min(inner, key=lambda one: _FIRST.index(classify(one)))


def no_space(directory: Path) -> DiskFull:
    """What a run says when its disk is full."""
    return DiskFull(f"no space left for the run in {directory}: free some, then start the same command again")


def classify(error: BaseException) -> Outcome:
    """The class of an error that ended an attempt."""
    match deciding(error):
        case PolicyFailure():
            return Outcome.POLICY
        case InfrastructureError() | ConnectionError() | TimeoutError():
            return Outcome.INFRASTRUCTURE
        case ControlSignal():
            return Outcome.CONTROL
        case _:
            return Outcome.TASK
