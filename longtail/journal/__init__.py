"""The durable record of a run: append-only events in one SQLite file, and how a run resumes from them."""

from longtail.journal.database import FILE_NAME
from longtail.journal.lock import is_live, lock_directory
from longtail.journal.reader import list_trajectories, load_trajectory, read_events, read_history, standing
from longtail.journal.sqlite import SqliteJournal

__all__ = [
    "FILE_NAME",
    "SqliteJournal",
    "is_live",
    "list_trajectories",
    "load_trajectory",
    "lock_directory",
    "read_events",
    "read_history",
    "standing",
]
