"""What a configuration names: found, called and checked; whatever goes wrong in it is told in one sentence."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from longtail.envs import Env, env, reward
from longtail.envs.functions import is_async, signature_of
from longtail.errors import LongtailError, UserError
from longtail.events import why_no_task
from longtail.ports import RolloutFn
from longtail.types import Task


@contextmanager
def blamed(what: str) -> Generator[None]:
    """Whatever the user's code raises here becomes a UserError that says where."""
    try:
        yield
    except LongtailError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {type(error).__name__}: {error}{_place(error)}") from error


def _place(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its text says it
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(("<frozen", __file__))]
    return f" ({own[-1].filename} line {own[-1].lineno})" if own else ""


def load_object(entry: str, key: str) -> Any:
    """The object that "package.module:name" names. Raises UserError."""
    module, colon, name = entry.partition(":")
    if not colon or not module or not name:
        raise UserError(f'{key} must be "package.module:name", got {entry!r}')
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # an environment beside the config is the common case
    with blamed(f"{key} = {entry!r}"):
        try:
            found = import_module(module)
        except ModuleNotFoundError as error:
            raise UserError(f"{key} = {entry!r}: {error}; is its package installed or in this directory?") from error
    if not hasattr(found, name):
        raise UserError(f"{key} = {entry!r}: module {module} has no '{name}'")
    return getattr(found, name)


def check_call(function: Any, what: str, *arguments: Any) -> None:
    """Raises UserError when a function does not take these arguments, the last of which is a mapping of named ones."""
    *places, named = arguments
    signature = signature_of(function, what)
    try:
        signature.bind(*places, **named)
    except TypeError as error:
        raise UserError(f"{what}: {error}") from None


def check_rollout(rollout: object) -> None:
    """Raises UserError for what is no rollout function."""
    if inspect.isclass(rollout) or not is_async(rollout):
        raise UserError(
            f"the rollout must be `async def rollout(task, ctx)`, got {rollout!r:.100}; "
            "wrap an environment class in longtail.env(...), a reward function in longtail.reward(...)"
        )


def load_rollout(entry: str, params: Mapping[str, Any]) -> RolloutFn:
    """A RolloutFn from an environment class, a RolloutFn or a reward function of TRL's signature."""
    found = load_object(entry, "env.entry")
    if inspect.isclass(found) and issubclass(found, Env):
        made = env(found, **params)
        with blamed(f"env.params of {entry}"):
            found(**params)  # as each episode will
        return made
    if inspect.isclass(found) or not callable(found):
        raise UserError(
            f"env.entry = {entry!r} must be a class derived from longtail.Env, a rollout function or a reward function"
        )
    if inspect.iscoroutinefunction(found) and list(inspect.signature(found).parameters)[:2] == ["task", "ctx"]:
        if params:
            raise UserError(f"env.params: {entry} is a rollout function, which takes none, got {', '.join(params)}")
        return cast("RolloutFn", found)
    what = f"env.params of the reward function '{entry}'"
    check_call(reward, what, found, params)
    with blamed(what):
        return reward(found, **params)


def load_tasks(entry: str, split: str, count: int, seed: int, params: Mapping[str, Any]) -> Sequence[Task]:
    """What a data set function returns, the first task of it looked at."""
    make: Callable[..., Any] = load_object(entry, "env.tasks")
    what = f"env.tasks '{entry}' with env.task_params"
    check_call(make, what, split, count, seed, params)
    with blamed(what):
        tasks = make(split, count, seed, **params)
        first = tasks[0] if len(tasks) else None
    if first is not None:
        check_task(first, what)
    return tasks


def check_task(task: object, what: str) -> None:
    """Raises UserError for what is no task, or one that cannot be journaled."""
    if why := why_no_task(task):
        raise UserError(f"{what}: {why}")
