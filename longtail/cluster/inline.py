"""Roles in this process: for tests and debugging. The same calls, no isolation."""

from __future__ import annotations

from typing import Any

from longtail.cluster.factory import build


class InlineCluster:
    """Implements ports.Cluster."""

    def __init__(self) -> None:
        self._roles: list[Any] = []

    async def start(self, name: str, factory: str, **kwargs: Any) -> Any:
        role = build(factory, kwargs)
        self._roles.append(role)
        return role

    async def close(self) -> None:
        while self._roles:
            await self._roles.pop().close()
