"""Names of factories: "package.module:function"."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def build(factory: str, kwargs: Mapping[str, Any]) -> Any:
    """What the named function returns."""
    module, _, name = factory.partition(":")
    return getattr(import_module(module), name)(**kwargs)
