"""What can be said of a user's function without calling it."""

from __future__ import annotations

import inspect
from typing import Any

from longtail.errors import UserError


def is_async(function: object) -> bool:
    """Whether it is a coroutine function, or an object whose call is one."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def signature_of(function: Any, what: str) -> inspect.Signature:
    """Raises UserError, which begins with `what`, for what has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # not callable, or a built-in that does not tell
        raise UserError(f"{what}: expected a Python function, got {function!r:.100}") from None
