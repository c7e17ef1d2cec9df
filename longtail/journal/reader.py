"""Reading a journal: of a live, finished or crashed run, while a writer is at work or not. Never writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from longtail import events as ev
from longtail.errors import UserError
from longtail.history import HISTORY_KINDS, SUMMARY_KINDS, History, TrajectorySummary, history, summaries
from longtail.journal import checkpoints
from longtail.journal.codec import event_of
from longtail.journal.database import meaning, open_reader, stream
from longtail.types import Event, Trajectory


def read_events(
    directory: Path, *, kinds: Iterable[str] = (), trajectory: str | None = None, after: int = 0
) -> Iterator[Event]:
    """Events in order of seq, all in one consistent view. `kinds` empty: all; `after`: only those with a larger seq."""
    wanted = tuple(kinds)
    where, values = ["seq > ?"], [after, *wanted]
    if wanted:
        where.append(f"kind IN ({', '.join('?' * len(wanted))})")
    if trajectory is not None:
        where.append("trajectory = ?")
        values.append(trajectory)
    query = f"SELECT seq, trajectory, kind, at_s, data, arrays FROM events WHERE {' AND '.join(where)} ORDER BY seq"
    with closing(open_reader(directory)) as connection:
        try:
            for row in stream(connection, query, values):
                yield event_of(row)
        except apsw.Error as error:
            raise meaning(error, directory) from error


def read_history(directory: Path) -> History:
    return history(read_events(directory, kinds=HISTORY_KINDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run starts again: its last committed step whose checkpoint is there."""

    step: int = 0
    checkpoint: str = ""  # relative to the run directory; "" at step 0
    past: History = field(default_factory=History)  # rolled back to `step`
    rolled_back: tuple[int, ...] = ()  # committed steps without a checkpoint after them: done again


def standing(directory: Path) -> Standing:
    past = read_history(directory)
    whole = [s for s in past.steps if checkpoints.is_complete(directory, s.checkpoint)]
    step, name = (whole[-1].step, whole[-1].checkpoint) if whole else (0, "")
    gone = tuple(past.roll_back(step))
    return Standing(step=step, checkpoint=name, past=past, rolled_back=gone)


def load_trajectory(directory: Path, trajectory_id: str) -> Trajectory:
    """The record of one attempt, finished or not. Raises UserError for an unknown id."""
    try:
        return ev.trajectory_from(read_events(directory, trajectory=trajectory_id))
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{directory} has no trajectory {trajectory_id!r}; list them with: longtail show {directory}"
        ) from None


def list_trajectories(directory: Path, *, superseded: bool = False) -> list[TrajectorySummary]:
    """All live trajectories in order of their start; with `superseded` also those that a resumed run rolled back."""
    lines = summaries(read_events(directory, kinds=SUMMARY_KINDS))
    for line in lines:
        if line.outcome is None:
            _count_unfinished(directory, line)
    return [line for line in lines if superseded or not line.superseded]


def _count_unfinished(directory: Path, line: TrajectorySummary) -> None:
    record = load_trajectory(directory, line.id)
    line.turns = len(record.model_calls)
    line.tokens = sum(len(call.completion.ids) for call in record.model_calls)
    line.seconds = record.ended_s - record.started_s
