"""What an attempt did, kept in memory for training and written to the journal as it happens."""

from __future__ import annotations

from longtail import events
from longtail.ports import Journal
from longtail.types import Call, Json, ModelCall, ToolCall


class Recorder:
    """The calls of one attempt, in the order in which their results arrived."""

    def __init__(self, trajectory_id: str, journal: Journal) -> None:
        self.trajectory_id = trajectory_id
        self.calls: list[Call] = []
        self.ended = ""  # why the episode says it ended, when it says so
        self._journal = journal

    @property
    def next_index(self) -> int:
        return len(self.calls)

    async def model_call(self, call: ModelCall) -> None:
        self.calls.append(call)
        await self._journal.append(events.model_sampled(self.trajectory_id, call))

    async def tool_call(self, call: ToolCall) -> None:
        self.calls.append(call)
        await self._journal.append(events.tool_returned(self.trajectory_id, call))

    async def note(self, kind: str, data: dict[str, Json]) -> None:
        if kind == "ended":
            self.ended = str(data.get("reason", ""))
        await self._journal.append(events.note(kind, self.trajectory_id, data))
