"""Measurements of this installation: one module a bench, each with records()."""

from __future__ import annotations

from importlib.metadata import version


def versions() -> dict[str, str]:
    """What a record was measured with."""
    return {package: version(package) for package in ("longtail", "torch", "transformers")}
